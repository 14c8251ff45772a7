from __future__ import annotations

import pickle
import re

import pyarrow as pa
import pytest

from logformat import errors
from logformat.errors import StoreError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, StoreError)]

every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)


def drawn_tree() -> dict[str, str]:
    """Every error of the docstring, with its parent."""
    parents: dict[str, str] = {}
    path: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        if found := re.match(r"    ([│├└─ ]*)([A-Z]\w+(?:, [A-Z]\w+)*)", line):
            depth = len(found[1]) // 4
            for name in found[2].split(", "):
                parents[name] = path[depth - 1] if depth else "Exception"
                path[depth:] = [name]
    return parents


def test_the_tree_in_the_docstring_is_the_class_tree() -> None:
    assert drawn_tree() == {kind.__name__: kind.__bases__[0].__name__ for kind in KINDS}


def test_a_wrong_call_is_also_a_value_error() -> None:
    also = {kind for kind in KINDS if issubclass(kind, ValueError)}
    assert also == {kind for kind in KINDS if issubclass(kind, errors.InvalidRequest)}


@every_kind
def test_an_error_has_its_message_and_its_facts(kind: type[StoreError]) -> None:
    assert str(kind("It broke.")) == "It broke."
    error = kind("It broke.", path="/a/b", offset=7)
    assert str(error) == "It broke. path=/a/b offset=7"
    assert repr(error) == f"{kind.__name__}('It broke.', path='/a/b', offset=7)"
    assert repr(kind("It broke.")) == f"{kind.__name__}('It broke.')"
    assert (error.message, error.where) == ("It broke.", {"path": "/a/b", "offset": 7})


@every_kind
def test_an_error_survives_pickling(kind: type[StoreError]) -> None:
    error = kind("It broke.", path="/a/b", given=pa.list_(pa.int8()))
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.message, again.where, str(again)) == (kind, error.message, error.where, str(error))
    assert repr(again) == repr(error)


@every_kind
def test_every_error_documents_what_is_left_after_it(kind: type[StoreError]) -> None:
    assert kind.__doc__
