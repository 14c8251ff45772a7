"""Has Spark find ``format("kvstore")`` by itself.

Spark imports every package called ``pyspark_…`` when it looks for the first Python data source, and if one of them
raises, it finds none of the others either. So this one imports nothing that may fail, or takes long; what is needed is
imported when somebody reads a store.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any

with suppress(ImportError):
    from pyspark.sql.datasource import DataSource

    class DefaultSource(DataSource):
        """Stands for :class:`kvstore.spark.KvStoreSource`, and becomes one as soon as it is made."""

        def __new__(cls, options: MutableMapping[str, str]) -> Any:
            """The source itself."""
            from kvstore.spark import KvStoreSource

            return KvStoreSource(options)

        @classmethod
        def name(cls) -> str:
            """Short name of the format."""
            return "kvstore"
