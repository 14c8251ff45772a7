"""No catalog edit is forgotten: the state takes each, also about something gone, and random histories have it."""

from __future__ import annotations

from itertools import count

import pytest

from kvstore.meta.state import CatalogState
from logformat.catalog.edits import BeginEpoch, CreateTable, Edit, LoseLead, Payload
from logformat.ids import Epoch, Txid
from tests.support import edits as random_edits
from tests.support.filled_edits import filled

KINDS = Payload.__subclasses__()
NOT_RANDOM = {BeginEpoch, LoseLead}
"""They begin and end a leadership; tests/replica and tests/checkpoint/test_recovery.py have them."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind is not CreateTable], ids=lambda kind: kind.__name__)
def test_the_state_takes_every_edit_and_one_about_something_gone_does_nothing(kind: type[Payload]) -> None:
    payload, empty = filled(kind, count(100)), CatalogState()
    state = empty.after(Edit(txid=Txid(1), epoch=Epoch(1), time_ms=5, payload=payload))
    assert state.txid == 1
    if empty.lacks(payload) is not None:
        # A writer id is given out for ever, whatever became of its table.
        assert state.is_same(CatalogState(txid=Txid(1), next_writer_id=state.next_writer_id))


def test_random_histories_have_every_edit() -> None:
    assert {*random_edits.RANDOM_KINDS} | NOT_RANDOM >= {*KINDS}
