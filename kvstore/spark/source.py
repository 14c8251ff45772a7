"""``format("kvstore")``: reads a table, its changelog or its binlog as Arrow batches, and writes a table.

* A batch query's offsets are pinned when it is loaded: every task, and every query on the same DataFrame, reads the
  same offsets. With a schema given to Spark they are pinned at the first query, because Spark does not call the source
  before.
* If the table was dropped meanwhile, an error says so; another table of its name is never read instead.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
)
from pyspark.sql.types import StructType

from kvstore.errors import SchemaMismatch, UnsupportedOperation
from kvstore.replica.location import replica_at
from kvstore.spark.failures import errors_shown_alone
from kvstore.spark.options import Options
from kvstore.spark.read.address import found
from kvstore.spark.read.batch import KvStoreReader
from kvstore.spark.read.sources import followed, load
from kvstore.spark.read.stream import KvStoreStreamReader
from kvstore.spark.read.tasks import Loaded, Pinned
from kvstore.spark.types import spark_schema
from kvstore.spark.write.sink import KvStoreStreamWriter, KvStoreWriter
from kvstore.store.session import check_follows_not


@errors_shown_alone
class KvStoreSource(DataSource):
    """The data source; register it with ``spark.dataSource.register(KvStoreSource)``.

    Options: ``path`` (a directory or a ``file:`` URI; or the URL of a replica, which is only read) and ``table``
    (``name``, ``name$changelog`` or ``name$binlog``); docs/spark.md has the others.

    Spark runs in another process than the writer and reads what is durable: an acknowledged write at once, or, with
    durability ``interval`` or ``none``, later; after ``table.flush()`` all writes are visible.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._options = Options.of(options)
        self._loaded: Loaded | None = None

    @classmethod
    def name(cls) -> str:
        """Short name of the format."""
        return "kvstore"

    def schema(self) -> StructType:
        """Columns of the source; this call pins what every query on the DataFrame reads."""
        return spark_schema(self.load().columns)

    def load(self, *, keep_log: bool = True) -> Loaded:
        """What is found at the first call.

        Args:
            keep_log: Whether a lease may keep the log from now on; else from the first plan of a query on.
        """
        if self._loaded is None:
            self._loaded = load(self._options, keep_log=keep_log)
        return self._loaded

    def pin(self, schema: StructType) -> Pinned:
        """The pinned read, which has the columns in ``schema``.

        Raises:
            SchemaMismatch: The source does not have them.
            OffsetOutOfRange: Only a stream can begin where the options say.
        """
        self._options.check_use("read")
        loaded = self.load()
        if loaded.pinned is None:
            loaded = self._loaded = load(self._options)  # perhaps it can be read by now
        if loaded.pinned is None:
            assert loaded.late is not None
            raise loaded.late
        _check(schema, loaded.columns)
        return loaded.pinned

    def reader(self, schema: StructType) -> KvStoreReader:
        """A reader of the columns in ``schema``."""
        return KvStoreReader(self.pin(schema), schema, self._options)

    def streamReader(self, schema: StructType) -> KvStoreStreamReader:  # noqa: N802
        """A reader that follows the changes and returns the columns in ``schema``."""
        self._options.check_use("read")
        address, table = followed(self._options)
        _check(schema, address.stored(self._options.columns))
        return KvStoreStreamReader(address, table, schema, self._options)

    def writer(self, schema: StructType, overwrite: bool) -> KvStoreWriter:
        """A writer of one DataFrame with the columns in ``schema``, all or nothing."""
        self._options.check_use("batch write")
        self.check_writable()
        with found(self._options) as (address, table):
            return KvStoreWriter(address, table, schema, self._options, replaces=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> KvStoreStreamWriter:  # noqa: N802
        """A writer of a stream's batches with the columns in ``schema``, each applied once."""
        self._options.check_use("stream write")
        self.check_writable()
        with found(self._options) as (address, table):
            return KvStoreStreamWriter(address, table, schema, self._options, replaces=overwrite)

    def check_writable(self) -> None:
        """Refuse a replica.

        Raises:
            UnsupportedOperation: It is one, or a copy that follows one.
        """
        if (url := replica_at(self._options.path)) is not None:
            raise UnsupportedOperation(
                "A replica is read-only; give `path` the directory of the store that ships to it. A shared table is "
                "written by kvstore.spark.write() and kvstore.spark.sink().",
                url=url,
            )
        check_follows_not(Path(self._options.path))


def _check(schema: StructType, columns: pa.Schema) -> None:
    """Verify that Spark's schema has only the given columns, with their types.

    Raises:
        SchemaMismatch: It has another column or type.
    """
    if len(set(schema.names)) < len(schema.names):
        raise SchemaMismatch("The schema given to load() names a column twice; name each once.", names=schema.names)
    expected = spark_schema(columns)
    for field in schema:
        if field.name not in columns.names or field.dataType != expected[field.name].dataType:
            raise SchemaMismatch(
                "The schema given to load() differs from that of the table; it may only leave columns out.",
                column=field.simpleString(),
                expected=expected.simpleString(),
            )
