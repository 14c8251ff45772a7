"""Reads of the past, as methods of a table."""

from __future__ import annotations

import pyarrow as pa

from kvstore.history.past import Past
from kvstore.history.versions import history_of
from kvstore.read.changelog import Start
from logformat.rows.intake import Keys


class HistoryReads:
    """The part of :class:`kvstore.Table` that explains rows and undoes changes."""

    def _past(self) -> Past:
        raise NotImplementedError

    def history(self, key: Keys, start: Start = "earliest") -> pa.Table:
        """Every version of a row that the log holds, in order, and who wrote it.

        Only the log of the key's bucket is read, all of it after ``start``: about 10 million changes a second.

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
