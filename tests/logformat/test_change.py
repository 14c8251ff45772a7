from __future__ import annotations

import numpy as np
import pytest

from logformat import ChangeType
from logformat.log.change import words_of

FORMS = [
    (0, "+A", "append"),
    (1, "+I", "insert"),
    (2, "-U", "update_preimage"),
    (3, "+U", "update_postimage"),
    (4, "-D", "delete"),
]


@pytest.mark.parametrize(("code", "short", "word"), FORMS)
def test_code_short_form_and_word_name_the_same_change(code: int, short: str, word: str) -> None:
    change = ChangeType(code)
    assert ChangeType(short) is ChangeType(word) is change
    assert (int(change), change.short, change.word, str(change)) == (code, short, word, short)


def test_other_names_are_not_changes() -> None:
    assert [int(change) for change in ChangeType] == [code for code, _, _ in FORMS]
    for unknown in (5, -1, "", "+X", "INSERT", None):
        with pytest.raises(ValueError, match="is not a valid ChangeType"):
            ChangeType(unknown)


def test_codes_become_a_column_of_words() -> None:
    assert words_of(np.array([4, 0, 1, 3, 2, 2], np.uint8)).to_pylist() == [FORMS[i][2] for i in (4, 0, 1, 3, 2, 2)]
    assert words_of(np.zeros(0, np.uint8)).to_pylist() == []
