"""The engine that merges each column by its own function; see :mod:`merge_engines.functions.function`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import pyarrow as pa

from logformat.errors import InvalidRequest
from merge_engines.engine import DeleteBehavior, Merged, Operations
from merge_engines.functions.function import LAST_VALUE_IGNORE_NULLS, Function, function_given
from merge_engines.update import update_columns

DEFAULT = LAST_VALUE_IGNORE_NULLS
"""The function of columns that have none of their own."""


@dataclass(frozen=True, slots=True, init=False, repr=False)
class Aggregate:
    """Merges each column by its own function.

    Args:
        functions: From column name to the name of a function, or to what :func:`listagg` returns. The other columns
            keep their last value that is not null.

    Attributes:
        functions: Sorted by column.

    Raises:
        InvalidRequest: A function of that name does not exist.
    """

    functions: tuple[tuple[str, Function], ...]
    delete_behaviors: ClassVar[tuple[DeleteBehavior, ...]] = ("ignore", "allow", "disable")
    takes_targets: ClassVar[bool] = True

    def __init__(self, functions: Mapping[str, str | Function] | None = None) -> None:
        given = {} if functions is None else functions
        if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
            raise InvalidRequest("Aggregate takes a mapping from column name to function.", given=type(given).__name__)
        by_column = sorted((name, function_given(name, function)) for name, function in given.items())
        object.__setattr__(self, "functions", tuple(by_column))

    def __repr__(self) -> str:
        return f"Aggregate({dict(self.functions)!r})"

    def check(self, schema: pa.Schema, key_names: Sequence[str]) -> None:
        """See :class:`merge_engines.engine.MergeEngine`.

        Raises:
            UnsupportedOperation: A function needs a package that is not installed.
        """
        for name, function in self.functions:
            if name not in schema.names:
                raise InvalidRequest(
                    "The table has no column of that name to aggregate.", column=name, function=function.name
                )
            if name in key_names:
                raise InvalidRequest(
                    "A key column can't have a function: it never changes.", column=name, function=function.name
                )
            function.check(name, schema.field(name).type)

    def merge(self, operations: Operations) -> Merged:
        """See :class:`merge_engines.engine.MergeEngine`.

        Raises:
            AggregateOverflow: A sum or product, final or intermediate, does not fit its column.
        """
        functions = dict(self.functions)
        return update_columns(operations, lambda name: functions.get(name, DEFAULT))
