"""Lets Spark find ``format("kvstore_python")``: the source in Python, also where the connector is ``kvstore``.

Like :mod:`pyspark_kvstore`, it imports nothing that may fail or is slow.
"""

from __future__ import annotations

from contextlib import suppress

with suppress(ImportError):
    from pyspark_kvstore import DefaultSource as _DefaultSource

    class DefaultSource(_DefaultSource):
        """The same under another name."""

        @classmethod
        def name(cls) -> str:
            """Short name of the format."""
            return "kvstore_python"
