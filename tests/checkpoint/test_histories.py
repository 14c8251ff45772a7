"""Whatever is done to a catalog and whenever it is checkpointed: it is what its edits make of an empty one."""

from __future__ import annotations

import logging
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings, strategies as st

from kvstore.meta.state import CatalogState
from logformat.catalog import edits
from tests.checkpoint.catalogs import Catalog
from tests.support.proof import Proves

EDITS_MAX = 500
NIGHTLY = 10_000
HISTORIES = 15 if settings().max_examples <= 100 else NIGHTLY
steps = st.one_of(
    st.integers(1, 60),
    st.sampled_from(["checkpoint", "checkpoint", "reopen", "look", "lose the newest image", "recover"]),
)
histories = st.lists(steps, min_size=4, max_size=25)


def live(seed: int, history: list[int | str]) -> None:
    """Go through a history; then the live state is image + journal, and a replay from zero."""
    with tempfile.TemporaryDirectory() as directory:
        catalog = Catalog(Path(directory) / "s", seed)
        beside = catalog.opened()
        for step in history:
            if isinstance(step, int):
                catalog.append(min(step, EDITS_MAX - len(catalog.edits)))
            elif step == "checkpoint":
                done = catalog.controller().checkpoint()
                assert done.txid == len(catalog.edits)
                assert len(catalog.image_txids) <= 2
                if done.previous is not None:
                    assert catalog.image_txids == [done.txid, done.previous]
                    # All that the older image does not have.
                    assert done.previous - 7 < catalog.first_edit <= done.previous + 1
            elif step == "reopen":
                catalog.reopen()
            elif step == "look":
                assert beside.state().is_same(catalog.expected)
            elif step == "recover":
                catalog.recover()
                beside.close()
                beside = catalog.opened()
            elif len(catalog.image_txids) > 1:
                catalog.image_path().unlink()
        assert catalog.journal.state().is_same(catalog.expected)
        assert catalog.reloaded().is_same(catalog.expected)
        assert beside.state().is_same(catalog.expected)
        assert catalog.from_zero().is_same(catalog.expected)
        beside.close()
        catalog.journal.close()


def test_live_is_image_and_journal_is_replay_from_zero(proves: Proves) -> None:
    settings(max_examples=HISTORIES)(given(st.integers(0, 2**32), histories)(live))()
    proves("catalog histories", HISTORIES)


@pytest.mark.nightly
def test_ten_thousand_histories(proves: Proves) -> None:
    settings(max_examples=NIGHTLY)(given(st.integers(0, 2**32), histories)(live))()
    proves("catalog histories", NIGHTLY)


@given(st.integers(0, 2**32), st.data())
def test_replay_is_idempotent(seed: int, data: st.DataObject) -> None:
    """From anywhere before the end of a state, edits that are in it already change nothing."""
    with tempfile.TemporaryDirectory() as directory:
        catalog = Catalog(Path(directory) / "s", seed)
        catalog.append(40)
        catalog.journal.close()
    state, begin = CatalogState(), data.draw(st.integers(0, 39))
    for edit in [*catalog.edits[: data.draw(st.integers(begin, 40))], *catalog.edits[begin:], *catalog.edits]:
        state = state.after(edits.decode(edits.encode(edit)))
    assert state.is_same(catalog.expected)


def test_an_edit_about_something_gone_warns_and_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    catalog = Catalog(tmp_path / "s", seed=5)
    with caplog.at_level(logging.CRITICAL):
        catalog.append(300)
    gone, state = [], CatalogState()
    for edit in catalog.edits:
        if (table := state.lacks(edit.payload)) is not None:
            gone.append(f"edit {edit.txid} of the catalog is about {table}, which is gone")
            before, state = state, state.after(edit)
            if not hasattr(edit.payload, "writer_id"):
                assert replace(state, txid=before.txid) == before
        else:
            state = state.after(edit)
    assert len(gone) > 10
    caplog.clear()
    assert catalog.reloaded().is_same(catalog.expected)
    assert [record.getMessage() for record in caplog.records] == gone
    catalog.journal.close()
