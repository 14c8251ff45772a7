"""Nothing of the catalog can be forgotten: every field of every struct comes back from an image.

Of edits ``tests/logformat/test_edits.py`` says the same.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from uuid import UUID

from kvstore.disk.files import Files
from kvstore.meta import image
from kvstore.meta.consumers import NamedConsumer, TableConsumers
from kvstore.meta.state import CatalogState, TableDefinition
from kvstore.meta.writers import NamedWriter, OpenCommit, TableWriters
from logformat.catalog.edits import SecondaryIndex, SecondaryIndexes, TableOptions
from logformat.catalog.image import counts_of
from logformat.catalog.jobs import EndedTask, JobOptions, JobStatistics, JobStatus, OpenTask, SourceFile, TaskCounts
from logformat.catalog.replicas import Finding, ReplicaStatus, Shipped, Stream
from logformat.ids import Epoch
from tests.support.filled import Filler, fields_of

STORE = UUID(int=5)


def filled() -> CatalogState:
    state: CatalogState = Filler().of(CatalogState)
    (table,) = state.tables.values()
    assert table.id in state.tables
    return state


def through_an_image(state: CatalogState, path: Path) -> CatalogState:
    made = image.image_of(state, STORE, epoch=Epoch(3), now_ms=5)
    image.save(path, made, Files())
    found = image.load(path, STORE)
    assert found.head == made.head
    return found.state


def test_every_field_of_the_state_comes_back_from_an_image(tmp_path: Path) -> None:
    filler = Filler()
    state: CatalogState = filler.of(CatalogState)
    assert filler.structs == {
        *(CatalogState, TableDefinition, TableOptions, TableWriters, NamedWriter, OpenCommit),
        *(SecondaryIndex, SecondaryIndexes),
        *(TableConsumers, NamedConsumer, ReplicaStatus, Shipped, Finding, Stream),
        *(JobStatus, JobOptions, JobStatistics, OpenTask, SourceFile, TaskCounts, EndedTask),
    }
    assert all(counts_of(image.items_of(state)).values()), "a kind of record is missing"
    found = through_an_image(state, tmp_path / "image")
    assert found.is_same(state)
    assert repr(found) == repr(dataclasses.replace(state, replicas=dict(sorted(state.replicas.items()))))


def test_no_field_is_left_out_when_states_are_compared() -> None:
    state = filled()
    for name, default in fields_of(CatalogState):
        assert not dataclasses.replace(state, **{name: default}).is_same(state), name
    (id,) = state.tables
    for name, value in vars(Filler().of(TableDefinition)).items():
        other = dataclasses.replace(
            state.tables[id], **{name: value if value != getattr(state.tables[id], name) else 8}
        )
        changed = dataclasses.replace(state, tables={id: other})
        assert not changed.is_same(state), name
    assert state.is_same(dataclasses.replace(state, tables={id: dataclasses.replace(state.tables[id])}))


def test_an_empty_catalog_comes_back_from_an_image(tmp_path: Path) -> None:
    assert through_an_image(CatalogState(), tmp_path / "image") == CatalogState()
