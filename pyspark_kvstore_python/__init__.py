"""Lets Spark find ``format("kvstore")`` without a registration.

Spark imports every package whose name begins with ``pyspark_`` when it looks for the first Python data source, and an
error in one of them hides all others. So this package imports nothing that may fail or is slow; the source itself is
imported when a store is read or written.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

with suppress(ImportError):
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Placeholder of :class:`kvstore.spark.KvStoreSource`; its constructor returns one of those."""

        def __new__(cls, options: MutableMapping[str, str]) -> Any:
            """Return a new source of the real class."""
            from kvstore.spark import KvStoreSource

            return KvStoreSource(options)

        @classmethod
        def name(cls) -> str:
            """Short name of the format."""
            return "kvstore_python"
