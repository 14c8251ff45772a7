"""What :meth:`kvstore.ReadTable.find` looks for: for each column one value, some values, or a range."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import and_
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, SchemaMismatch
from logformat.rows import intake
from logformat.rows.entries import codes_of

_ENDS = 2


@dataclass(frozen=True)
class Condition:
    """What is asked of one column.

    Attributes:
        values: Values of which the column has one, without duplicates; None for a range.
        low, high: The ends of a range, which belong to it; None for no end.
    """

    column: str
    values: pa.Array | None = None
    low: pa.Scalar | None = None
    high: pa.Scalar | None = None

    @property
    def expression(self) -> pc.Expression:
        """The condition, for :meth:`kvstore.ReadTable.scan`."""
        field = pc.field(self.column)
        if self.values is not None:
            if self._is_set:
                return field.isin(self._set)
            return field == self.values[0] if self.values[0].is_valid else field.is_null()
        ends = [None if self.low is None else field >= self.low, None if self.high is None else field <= self.high]
        return reduce(and_, (end for end in ends if end is not None))

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Whether it is true for each row, bool; null is false. For few rows much faster than the expression."""
        column = rows.column(self.column)
        if self.values is not None:
            if self._is_set:
                return pc.is_in(column, value_set=self._set)
            return pc.equal(column, self.values[0]) if self.values[0].is_valid else pc.is_null(column)
        ends = []
        if self.low is not None:
            ends.append(pc.greater_equal(column, self.low))
        if self.high is not None:
            ends.append(pc.less_equal(column, self.high))
        return reduce(pc.and_, ends)

    @property
    def _is_set(self) -> bool:
        """Whether there are several values, or one that is no number: it is equal to none, but found in a set."""
        assert self.values is not None
        return len(self.values) != 1 or pc.equal(self.values[0], self.values[0]).as_py() is False

    @property
    def _set(self) -> pa.Array:
        """The values, of which a set tells the zeros of floats apart, as a comparison does not."""
        assert self.values is not None
        if not pa.types.is_floating(self.values.type):
            return self.values
        return pa.concat_arrays([self.values, pc.negate(self.values.filter(pc.equal(self.values, 0)))])

    def codes(self) -> list[bytes]:
        """Codes of the values, in their order."""
        assert self.values is not None
        return sorted(set(codes_of([self.values]).to_list()))


def conditions_of(given: Mapping[str, Any], schema: pa.Schema) -> list[Condition]:
    """The conditions of the arguments of :meth:`kvstore.ReadTable.find`.

    Args:
        schema: Columns of the table.

    Raises:
        InvalidRequest: There is none, or a range has not two ends.
        SchemaMismatch: There is no such column, a value does not fit it, or it has values that have no order.
    """
    if not given:
        raise InvalidRequest("Name a column and what it has, such as find(mail='a@x'); scan() reads all rows.")
    if unknown := [name for name in given if name not in schema.names]:
        raise SchemaMismatch("The table has no such column.", unknown=unknown, columns=schema.names)
    return [_condition(schema.field(name), value) for name, value in given.items()]


def matching(rows: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.RecordBatch:
    """The rows for which all conditions are true."""
    return rows.filter(satisfying(rows, conditions))


def satisfying(rows: pa.RecordBatch, conditions: Sequence[Condition]) -> pa.Array:
    """Whether all conditions are true for each row, bool; null is false."""
    return reduce(pc.and_, (each.of(rows) for each in conditions))


def expression_of(conditions: Sequence[Condition]) -> pc.Expression:
    """All conditions together."""
    return reduce(and_, (each.expression for each in conditions))


def _condition(field: pa.Field, given: Any) -> Condition:
    if pa.types.is_nested(field.type):
        raise SchemaMismatch(
            "find() compares plain values, not lists, maps or structs; use scan(filter=…).", column=field.name
        )
    if pa.types.is_float16(field.type):
        raise SchemaMismatch("find() can't compare values of float16, as Arrow does not.", column=field.name)
    if isinstance(given, tuple):
        if len(given) != _ENDS or given == (None, None):
            raise InvalidRequest(
                "A range is a tuple of its two ends, which both belong to it, such as (18, 30); None is no end. Several"
                " values are a list.",
                column=field.name,
                given=shown(given),
            )
        low, high = (None if end is None else _values(field, [end])[0] for end in given)
        return Condition(field.name, None, low, high)
    values = _values(field, list(given) if isinstance(given, (list, set, frozenset)) else [given]).unique()
    if pa.types.is_floating(field.type):
        values = values.filter(pc.fill_null(pc.invert(pc.is_nan(values)), True))  # it equals nothing
    return Condition(field.name, values)


def _values(field: pa.Field, given: Any) -> pa.Array:
    """Values as the column stores them.

    Raises:
        SchemaMismatch: One does not fit.
    """
    schema = pa.schema([field.with_nullable(True)])
    return intake.one_batch([{field.name: value} for value in given], schema).column(0)
