"""Reads of the past, as methods of a table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import pyarrow as pa

from kvstore.history.origin import Origins
from kvstore.history.past import Past
from kvstore.history.selection import Selection
from kvstore.history.since import keys_changed
from kvstore.history.undoing import Undo, undo_of
from kvstore.history.versions import history_of
from kvstore.read.changelog import End, Start
from logformat.rows.intake import Keys


class HistoryReads(ABC):
    """The part of :class:`kvstore.Table` that explains rows and undoes changes."""

    @abstractmethod
    def _past(self) -> Past:
        """The logs and the catalog that history is read from."""

    def history(self, key: Keys, start: Start = "earliest") -> pa.Table:
        """Every version of a row that the log holds, in order, and who wrote it.

        Only the log of the key's bucket is read, all of it after ``start``.

        Args:
            key: A scalar, a tuple in key order, or a dict. It need not have a row now.
            start: See :meth:`changelog`; ``full`` is refused.

        Returns:
            The columns of :meth:`binlog`, and for each change: ``writer`` (the name, or the id of a writer without
            one), ``writer_id``, ``epoch`` (its number if the writer sends epochs, else the writer's incarnation),
            ``sequence``, ``run`` (such as a query of Spark), and the ingestion ``job``, its ``task`` and ``file`` (for
            the latest tasks). A batch without a writer has nulls there. The schema's metadata has ``log_start``, the
            first offset that the log holds: versions before it are gone.

        Raises:
            SchemaMismatch: The key does not fit.
            InvalidRequest: ``start`` is not possible.
            OffsetOutOfRange: The log does not hold ``start``.
            UnsupportedOperation: It is a log table, or the changelog is a WAL image.
            CorruptBatch: The log is damaged.
        """
        return history_of(self._past(), key, start)

    def origins(self) -> Origins:
        """Says of batches of the log who wrote them, by what the catalog says now."""
        return self._past().origins()

    def undo(
        self,
        start: Start,
        end: End | None = None,
        writer: str | int | None = None,
        epoch: int | None = None,
        job: str | None = None,
        task: int | None = None,
    ) -> Undo:
        """The changes that undo others: all since ``start``, or only some of them while later changes of others stay.

        Nothing is written. With ``start`` alone, the result restores all rows to their state at ``start``. Apply it
        before other changes; with ``overwrite`` if the table's engine is not ``last_row`` or the table fills a column;
        see :meth:`Bucket.apply`, and for several buckets :meth:`by_bucket`. A :class:`kvstore.Patch` of it finds out
        whether there were other changes, and is applied once.

        With any other argument, only the changes of that range and origin are undone, column by column: each column
        that they changed gets its earlier value. If another change came later and changed the same column of a row, or
        if it removed the row or stored it again, the row stays as it is, and its key is in ``conflicts`` of the result.

        Each changed key is in the result once, in key order: with a delete if it had no row, otherwise with its row.
        So a very long result may be applied in parts. Memory holds every change of the rows concerned, from the first
        that is undone on.

        Args:
            start: An offset (as of :meth:`offsets`, or ``log_end_offset`` of a write), offsets for each bucket, a
                time, ``earliest`` or ``latest``; changes before it stay.
            end: Exclusive, in the same forms; changes from there on stay.
            writer: Name or id of a writer, as :meth:`history` shows it; changes of others stay. A name stands for all
                runs that had it; the id for one of them.
            epoch: Number of an epoch of ``writer``; or the incarnation of a writer that sends batches. Alone, the epoch
                of this number if only one writer has it.
            job: Name of an ingestion job, in place of a writer.
            task: Number of a task of ``job``.

        Raises:
            InvalidRequest: An argument is none of these; no change in the range has this origin; or several runs of the
                writer have an epoch of this number.
            UnsupportedOperation: The table's changelog is a WAL image; or its engine is not ``last_row``, and there are
                arguments other than ``start``.
            OffsetOutOfRange: The log does not hold ``start`` or ``end``.
            CorruptBatch: The log is damaged.
        """
        return undo_of(self._past(), start, end, Selection.of(writer, epoch, job, task))

    def keys_changed(
        self,
        keys: pa.RecordBatch,
        start: Mapping[int, int],
        end: Mapping[int, int] | None,
        schema_id: int,
        since: str = "the keys were read; read them again",
    ) -> tuple[pa.RecordBatch, dict[int, int]]:
        """Those of some keys that changed in ranges of offsets, and the ends of these ranges.

        Args:
            keys: The key's columns, in key order; each key once.
            start: The first offset of each bucket.
            end: The end (exclusive) for each bucket that is read, which the files of the log have; None for all that
                was acknowledged.
            schema_id: Schema of the keys.
            since: End of the message if its columns were renamed: since when, and what to do.

        Raises:
            SchemaMismatch: Columns of that schema were renamed or dropped since.
            OffsetOutOfRange: The log does not hold ``start``.
            UnsupportedOperation: It is a log table.
            CorruptBatch: The log is damaged.
        """
        return keys_changed(self._past(), keys, start, end, schema_id, since)
