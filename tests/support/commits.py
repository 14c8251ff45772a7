"""Commits over several buckets whose end is not journaled, as if their process had died just before it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import pytest

from kvstore.errors import StoreFull
from kvstore.meta.journal import Journal
from kvstore.meta.state import CatalogState
from logformat.catalog.edits import EndCommit, Payload

Edits: TypeAlias = Payload | Sequence[Payload]


def refuse_ends_of_commits(patch: pytest.MonkeyPatch) -> None:
    """Leave every commit open that is decided while the patch lasts, with its staged rows."""
    append_later = Journal.append_later

    def without_ends(self: Journal, decide: Callable[[CatalogState], Edits]) -> CatalogState:
        def looked_at(state: CatalogState) -> Edits:
            decided = decide(state)
            if any(isinstance(each, EndCommit) for each in ([decided] if isinstance(decided, Payload) else decided)):
                raise StoreFull("planted")
            return decided

        return append_later(self, looked_at)

    patch.setattr(Journal, "append_later", without_ends)
