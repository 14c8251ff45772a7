"""A write that replaces all rows of a table: rows that are not written again are deleted."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa

from kvstore.errors import UnsupportedOperation
from kvstore.meta.state import TableDefinition
from logformat.rows.changes import Changes
from logformat.rows.intake import one_batch


def check_replaceable(definition: TableDefinition) -> None:
    """Verify that deletes and upserts can replace the rows of a table.

    Raises:
        UnsupportedOperation: It has no key, merges rows, or takes no deletes.
    """
    options = definition.options
    if definition.primary_key is None or options.merge_engine != "last_row" or options.delete_behavior != "allow":
        raise UnsupportedOperation(
            "Only a table with a key, without a merge engine and with deletes allowed can be replaced; write rows of "
            "the same keys instead.",
            table=definition.name,
        )


def deletes_of_others(there: pa.Table, written: Iterable[Changes], schema: pa.Schema) -> Changes:
    """Deletes of the keys that are not written.

    Args:
        there: The key's columns of all rows.
        written: Rows of any schema of the table.
        schema: The current one.
    """
    names = there.schema.names
    kept = [pa.Table.from_batches([changes.rows.select(names)]).cast(there.schema) for changes in written]
    gone = there.join(pa.concat_tables(kept), names, join_type="left anti") if kept else there
    return Changes.deletes(one_batch(gone, there.schema), schema)
