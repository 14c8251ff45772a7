"""All errors of the project, with the caller's next step.

::

    StoreError
    ├── InvalidRequest (also a ValueError)   fix the call; nothing was written
    │   ├── SchemaMismatch          the data does not fit the table's columns
    │   ├── UnknownSchema           no such schema id
    │   ├── InvalidTargetColumns    these columns can't be the target of a partial update
    │   ├── DeletionDisabled        the table takes no deletes
    │   ├── BatchTooLarge           rows and what they replace do not fit into one batch
    │   ├── KeyTooLarge             an encoded key is longer than 511 bytes
    │   ├── AggregateOverflow       a merged value does not fit its column
    │   ├── NoSuchTable             also a KeyError
    │   ├── TableExists
    │   ├── UnsupportedOperation    the table or the store can't do this
    │   ├── OffsetOutOfRange        the log does not have that offset
    │   ├── RowsRefused             some rows of a writer were refused; all others were written
    │   ├── TransactionConflict     a row that a transaction has read is another one now: run it again
    │   ├── UniqueViolation         another row has a value of which a unique index allows one
    │   ├── NotAStore               the directory holds no store
    │   ├── StoreClosed             open the store again
    │   └── ForkedStore             open the store in this process
    ├── WriterRejected              begin a new writer or epoch; nothing was written
    │   ├── OutOfOrderSequence      an earlier batch of this writer is missing
    │   ├── WriterFenced            a newer incarnation of this writer exists
    │   └── StoreReplaced           the store's directory was moved, removed or replaced; open the store again
    ├── Unavailable                 try again later
    │   ├── StoreLocked             another process writes this bucket
    │   ├── StoreFull               no space left
    │   │   └── OutOfAddressSpace   of this process: raise its limit
    │   └── ReplicaBehind           a replica can't be updated, or does not reach far enough
    ├── CorruptData                 do not retry: run ``kvstore check``
    │   ├── CorruptBatch            a record batch of the log is damaged
    │   ├── CorruptImage            a file about the catalog is damaged
    │   ├── MissingVersion          a replica has a gap; repair it from its leader
    │   └── UnsupportedVersion      written by a newer version
    ├── Conflict                    rows of a patch changed since it was made: make it again
    ├── Diverged                    a copy has data that its new leader lacks: keep it, or raise the limit
    ├── LogFailed                   the disk failed; reopen the store
    ├── TaskFailed                  check the files, then resume the job; nothing of the task was applied
    └── NotAcknowledged             read the table: it is unknown whether these rows were written
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from logformat.urls import shown_text


class StoreError(Exception):
    """Base class of all errors.

    Attributes:
        message: What went wrong and what to do, one sentence or two.
        where: Named facts: ``path``, ``position``, ``offset``, ``column`` …; a URL among them has no credentials.
    """

    def __init__(self, message: str, /, **where: object) -> None:
        self.message = shown_text(message)
        super().__init__(self.message)
        self.where = {name: shown_text(fact) if isinstance(fact, str) else fact for name, fact in where.items()}

    def __str__(self) -> str:
        facts = " ".join(f"{name}={value}" for name, value in self.where.items())
        return f"{self.message} {facts}" if facts else self.message

    def __repr__(self) -> str:
        facts = "".join(f", {name}={value!r}" for name, value in self.where.items())
        return f"{type(self).__name__}({self.message!r}{facts})"

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.message, self.where)


def _again(kind: type[StoreError], message: str, where: dict[str, object]) -> StoreError:
    return kind(message, **where)


class InvalidRequest(StoreError, ValueError):
    """The call is wrong. Nothing was written."""


class SchemaMismatch(InvalidRequest):
    """The data does not fit the table's columns. Nothing was written."""


class UnknownSchema(InvalidRequest):
    """The table has no schema of that id. Nothing was written."""


class BatchTooLarge(InvalidRequest):
    """Rows, with what they replace, are more than one batch of changes holds. Nothing was written."""


class InvalidTargetColumns(InvalidRequest):
    """These columns can't be the target of a partial update. Nothing was written."""


class DeletionDisabled(InvalidRequest):
    """The table takes no deletes. Nothing was written."""


class KeyTooLarge(InvalidRequest):
    """An encoded key is longer than the index takes. Nothing was written."""


class AggregateOverflow(InvalidRequest):
    """A merged value does not fit its column. Nothing was written."""


class NoSuchTable(InvalidRequest, KeyError):
    """The store has no table of that name. It is also a KeyError, because ``store["files"]`` raises it, too."""


class TableExists(InvalidRequest):
    """The store already has a table of that name. Nothing was written."""


class UnsupportedOperation(InvalidRequest):
    """The table, or the way the store was opened, does not allow this. Nothing was written."""


class OffsetOutOfRange(InvalidRequest):
    """The log does not have that offset."""


class RowsRefused(InvalidRequest):
    """Some rows were refused because of their content; all others that were handed over before were written.

    A row that does not fit the columns is refused alone. What only the table can refuse, such as a value that a unique
    index has already or a sum that overflows, refuses its whole batch: up to ``batch_rows`` rows of one bucket, among
    them rows that would be written without the one that is the cause.

    Attributes:
        refused: One :class:`writer.Refused` for each refused part, a row or a batch, with its rows and its error.
    """

    def __init__(self, message: str, /, *, refused: Sequence[Any] = (), **where: object) -> None:
        super().__init__(message, **where)
        self.refused = list(refused)

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.message, {**self.where, "refused": self.refused})


class NotAStore(InvalidRequest):
    """The directory holds no store, and is not empty either. Nothing was written."""


class StoreClosed(InvalidRequest):
    """The store is closed; open it again. Nothing was written."""


class ForkedStore(InvalidRequest):
    """The store was opened before ``fork()``; open it in this process. Nothing was written."""


class WriterRejected(StoreError):
    """This writer can't continue; begin a new writer or epoch. Nothing was written."""


class OutOfOrderSequence(WriterRejected):
    """An earlier batch of this writer is missing, or this one is too old. Nothing was written."""


class WriterFenced(WriterRejected):
    """A newer incarnation of this writer exists. Nothing was written."""


class StoreReplaced(WriterRejected):
    """The directory of an open store, or one in it, was moved, removed or replaced; open the store again.

    What was acknowledged before stays in the directory that was moved. What was being written may be there, too.
    """


class Unavailable(StoreError):
    """The call can't be served now; it may succeed later. Nothing was written."""


class StoreLocked(Unavailable):
    """Another process writes this bucket. Nothing was written."""


class StoreFull(Unavailable):
    """The log or the index has no space left. Nothing was written."""


class OutOfAddressSpace(StoreFull):
    """This process may not map or allocate more memory. Nothing was written; the disk has nothing to do with it."""


class Diverged(StoreError):
    """A copy has data that the leader it follows lacks. Nothing was changed."""


class ReplicaBehind(Unavailable):
    """A replica can't be updated from the data there is, or does not reach as far as asked."""


class TransactionConflict(InvalidRequest):
    """A row that a transaction has read, or expects, is another one now. Nothing of it was written."""


class UniqueViolation(InvalidRequest):
    """Another row has values of which a unique index allows one. Nothing was written.

    Attributes:
        index: Name of the index.
        value: What the row has in the column of the index; of several columns a tuple.
        key: Key of the row that is there; of several columns a tuple.
    """

    @property
    def index(self) -> Any:  # noqa: D102
        return self.where.get("index")

    @property
    def value(self) -> Any:  # noqa: D102
        return self.where.get("value")

    @property
    def key(self) -> Any:  # noqa: D102
        return self.where.get("key")


class Conflict(StoreError):
    """Rows of a patch, or of a statement of Spark SQL, changed after they were read. Nothing was written.

    Or rows of a table with a WAL image, whose earlier rows are not known, changed while Spark read them.

    Attributes:
        keys: The keys of these rows, each as a dict; none for a WAL image.
    """

    def __init__(self, message: str, /, *, keys: Sequence[Any] = (), **where: object) -> None:
        super().__init__(message, **where)
        self.keys = list(keys)

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (type(self), self.message, {**self.where, "keys": self.keys})


class CorruptData(StoreError):
    """Stored bytes are damaged. Retrying does not help: run ``kvstore check``."""


class CorruptBatch(CorruptData):
    """A record batch of the log is damaged. Nothing was truncated."""


class CorruptImage(CorruptData):
    """A file of the catalog is damaged."""


class MissingVersion(CorruptData):
    """A replica has no continuous path to an offset, which the error names. Repair it from its leader."""


class UnsupportedVersion(CorruptData):
    """A newer version of kvstore wrote this."""


class LogFailed(StoreError):
    """The disk failed. Unacknowledged data may or may not be there after a reopen."""


class TaskFailed(StoreError):
    """A task of an ingestion job failed, and the job is paused. Nothing of the task was applied."""


class NotAcknowledged(StoreError):
    """Rows were sent, and it is unknown whether they were written: read the table before sending them again."""
