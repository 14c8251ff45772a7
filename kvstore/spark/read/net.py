"""One net change a key and commit: what Spark's `netChanges` needs, which takes a commit for one change of a key.

A commit may change a key several times (``+I -U +U -D``). Its net change leads from the row before the commit to the
row after it: none if there is neither, else an insert, a delete, or both images of an update.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from logformat.log.change import ChangeType
from logformat.rows.keys import KeyCodec

CHANGE_TYPE, VERSION = "_change_type", "_commit_version"
_BEGINS = [kind.word for kind in (ChangeType.INSERT, ChangeType.APPEND)]
"""Changes before which there was no row."""


def net_changes(batches: Iterable[pa.RecordBatch], key: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
    """Net changes of the changes of one bucket; what is appended to a log table is an insert.

    Args:
        batches: Whole commits, in order, with the columns of the key, ``_change_type`` and ``_commit_version``.
        key: The primary key; None for a log table.
    """
    if key is None:
        for batch in batches:
            yield _with_kinds(batch, pa.array([ChangeType.INSERT.word] * batch.num_rows, pa.string()))
        return
    for whole in whole_commits(batches):
        yield _net(whole, key)


def whole_commits(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same changes in batches between which no commit is cut."""
    waiting: list[pa.RecordBatch] = []
    for batch in batches:
        if not batch.num_rows:
            continue
        versions = batch.column(VERSION).to_numpy()
        cut = int(np.searchsorted(versions, versions[-1]))  # the last commit may go on
        if cut or (waiting and waiting[-1].column(VERSION)[-1].as_py() != versions[0]):
            yield pa.concat_batches([*waiting, batch.slice(0, cut)])
            waiting = []
        waiting.append(batch.slice(cut))
    if waiting:
        yield pa.concat_batches(waiting)


def _net(changes: pa.RecordBatch, key: Sequence[str]) -> pa.RecordBatch:
    columns = [changes.column(name) for name in key]
    fields = [pa.field(name, column.type, False) for name, column in zip(key, columns, strict=True)]
    keys = KeyCodec(fields).encode(columns).to_arrow().dictionary_encode().indices.to_numpy().astype(np.int64)
    versions = changes.column(VERSION).dictionary_encode().indices.to_numpy().astype(np.int64)
    groups = versions * (keys.max() + 1) + keys
    _, first = np.unique(groups, return_index=True)
    _, back = np.unique(groups[::-1], return_index=True)
    last = len(groups) - 1 - back
    kinds = changes.column(CHANGE_TYPE)
    had = ~pc.is_in(kinds, pa.array(_BEGINS)).to_numpy(zero_copy_only=False)[first]
    has = pc.not_equal(kinds, ChangeType.DELETE.word).to_numpy(zero_copy_only=False)[last]
    before = np.where(had & has, ChangeType.UPDATE_PREIMAGE.word, ChangeType.DELETE.word)[had]
    after = np.where(had & has, ChangeType.UPDATE_POSTIMAGE.word, ChangeType.INSERT.word)[has]
    places = np.concatenate([first[had], last[has]])
    order = np.argsort(places, kind="stable")
    found = changes.take(pa.array(places[order]))
    return _with_kinds(found, pa.array(np.concatenate([before, after])[order], pa.string()))


def _with_kinds(batch: pa.RecordBatch, kinds: pa.StringArray) -> pa.RecordBatch:
    place = batch.schema.get_field_index(CHANGE_TYPE)
    return batch.set_column(place, batch.schema.field(place), kinds)
