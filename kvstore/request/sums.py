"""Numbers that are added to columns of a row: what a caller may give, and sums where the bytes of the row are."""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Context, Decimal
from functools import lru_cache
from math import isfinite
from typing import Any, Protocol, TypeAlias

import pyarrow as pa

from kvstore.arguments import shown
from kvstore.errors import InvalidRequest, InvalidTargetColumns, SchemaMismatch
from kvstore.meta.state import TableDefinition
from logformat.ids import SchemaId
from logformat.log.batch import BatchHeader, decode_verified
from logformat.rows.few.few_rows import CellPlace, FewRowsCodec, Operation
from logformat.rows.types.registry import column_type

_EXACT = Context(prec=100)


@dataclass(slots=True, eq=False)  # frozen would make setting its fields slow
class Amounts:
    """What is added to the columns of a row.

    Attributes:
        of: For each column its amount: an int for integers, a float for floats, a Decimal for decimals.
        fields: The columns.
    """

    of: dict[str, Any]
    fields: Mapping[str, pa.Field]

    @classmethod
    def given(cls, definition: TableDefinition, amounts: Any) -> Amounts:
        """Amounts as a caller gives them.

        Raises:
            InvalidTargetColumns: There is no such column, or it can't be set.
            SchemaMismatch: A column has no numbers, or an amount is no number that fits it.
        """
        if not (type(amounts) is dict or isinstance(amounts, Mapping)) or not amounts:
            raise SchemaMismatch(
                "Amounts are a dict from column name to number, and not empty.", amounts=shown(amounts)
            )
        fields, has_integers = _fields(definition, tuple(amounts))
        if has_integers and set(map(type, amounts.values())) == {int}:
            return cls(dict(amounts), fields)
        return cls({name: amount_of(fields[name], amount) for name, amount in amounts.items()}, fields)

    def added(self, name: str, value: Any) -> Any:
        """The sum in one column.

        Raises:
            InvalidRequest: The value is null, or the sum is more than the column can have.
        """
        if value is None:
            raise InvalidRequest("A column that is null can't be incremented; store a number first.", column=name)
        amount = self.of[name]
        if isinstance(amount, Decimal):
            return _EXACT.add(value, amount)
        total = value + amount
        if isinstance(total, float) and not isfinite(total) and isfinite(value):
            raise self.overflow(name, value)
        return total

    def overflow(self, name: str, value: Any) -> InvalidRequest:
        """The error for a sum that its column can't have."""
        return InvalidRequest(
            "The sum does not fit the column; the row stays as it is.",
            column=name,
            type=self.fields[name].type,
            value=value,
            amount=self.of[name],
        )


@lru_cache(maxsize=1024)
def _fields(definition: TableDefinition, names: tuple[str, ...]) -> tuple[Mapping[str, pa.Field], bool]:
    """The columns of these names, and whether all of them have integers; raises what :meth:`Amounts.given` raises."""
    schema = definition.schema
    if unknown := [name for name in names if name not in schema.names]:
        raise InvalidTargetColumns("The table has no such column.", unknown=unknown, columns=schema.names)
    automatic = definition.options.auto_increment
    if fixed := [name for name in names if name in (definition.primary_key or ()) or name == automatic]:
        raise InvalidTargetColumns(
            "A column of the key, or one that the table fills, can't be incremented.", columns=fixed
        )
    fields = {name: schema.field(name) for name in names}
    return fields, all(pa.types.is_integer(field.type) for field in fields.values())


def amount_of(field: pa.Field, given: Any) -> Any:
    """An amount as a caller gives it, in the form of its column.

    Raises:
        SchemaMismatch: It is no number that fits.
    """
    kind, types = field.type, pa.types
    try:
        if types.is_integer(kind) and not isinstance(given, bool):
            return operator.index(given)
        if types.is_floating(kind) and not isinstance(given, (bool, str)) and isfinite(given):
            return float(given)
        if types.is_decimal(kind) and not isinstance(given, bool):
            amount = given if isinstance(given, Decimal) else Decimal(operator.index(given))
            if amount.is_finite():
                _check_places(field, amount)
                return amount
    except SchemaMismatch:
        raise
    except (TypeError, ValueError, OverflowError):
        pass
    if not column_type(kind).is_number:
        raise SchemaMismatch("Only columns of numbers can be incremented.", column=field.name, type=kind)
    raise SchemaMismatch(
        "An amount is a finite number that fits its column.", column=field.name, type=kind, given=shown(given)
    )


def _check_places(field: pa.Field, amount: Decimal) -> None:
    """Refuse a decimal with more digits after the point than its column has; zeros at its end are none."""
    number = amount.as_tuple()
    digits = "".join(map(str, number.digits))
    zeros = len(digits) - len(digits.rstrip("0"))
    if amount and int(number.exponent) + zeros < -field.type.scale:
        raise SchemaMismatch(
            "The amount does not fit the column: it has more digits after the point.",
            column=field.name,
            type=field.type,
            amount=shown(amount),
        )


class StoredRows(Protocol):
    """How rows are stored; see :class:`kvstore.request.encoded.EncodedWrites`."""

    schema: pa.Schema
    schema_id: SchemaId
    rows: FewRowsCodec


class StoredSums:
    """Amounts that are added to the row of one key where its bytes are, by this process or by another one.

    Attributes:
        key: An operation on the key.
        amounts: What is added, by the name of its column.
        keep: Notes the operation that was stored.
    """

    def __init__(
        self,
        writes: StoredRows,
        key: Operation,
        amounts: Amounts,
        numbers: _Numbers,
        keep: Callable[[Operation], None],
    ) -> None:
        self.key, self.amounts, self.keep = key, amounts.of, keep
        self._writes = writes
        self._amounts = amounts
        self._numbers = numbers

    @classmethod
    def of(
        cls,
        writes: StoredRows,
        key: Operation,
        amounts: Amounts,
        keep: Callable[[Operation], None] = lambda _: None,
    ) -> StoredSums | None:
        """None if a column has no plain form."""
        numbers = _numbers_at(writes.schema, writes.rows, tuple(amounts.of))
        return None if numbers is None else cls(writes, key, amounts, numbers, keep)

    def operation(self, stored: bytes) -> Operation:
        """What stores the sums.

        Args:
            stored: The row, long enough but not verified yet.

        Raises:
            InvalidRequest: A column is null, or can't have the sum.
        """
        sums = [(place, self._sum_at(name, place, form, stored)) for name, place, form in self._numbers]
        return self._writes.rows.changed(self.key.code, self.key.key, stored, sums)

    def logged(self, header: BatchHeader, data: memoryview) -> Operation:
        """What stored the sums, as a verified batch of the log has it.

        Raises:
            SchemaMismatch: The table was another one by then.
        """
        if header.schema_id != self._writes.schema_id or not header.record_count:
            raise SchemaMismatch("The table was altered meanwhile.")
        last = decode_verified(header, data, self._writes.schema).rows.slice(header.record_count - 1)
        (operation,) = self._writes.rows.operations(last, pa.array([False])) or [self.key]
        return operation

    def _sum_at(self, name: str, place: CellPlace, form: struct.Struct, stored: bytes) -> bytes:
        (value,) = form.unpack_from(stored, place.start)
        value = None if stored[place.null_at] & place.null_bit else value
        try:
            return form.pack(self._amounts.added(name, value))
        except (struct.error, OverflowError) as error:
            raise self._amounts.overflow(name, value) from error


_Numbers: TypeAlias = list[tuple[str, CellPlace, struct.Struct]]


@lru_cache(maxsize=1024)
def _numbers_at(schema: pa.Schema, rows: FewRowsCodec, names: tuple[str, ...]) -> _Numbers | None:
    """Where the bytes of a row have the numbers of columns, and their forms; None if one has none of plain form."""
    numbers = []
    for name in names:
        kind, place = schema.field(name).type, rows.place_of(name)
        if place is None or pa.types.is_decimal(kind):
            return None
        numbers.append((name, place, struct.Struct(f"<{column_type(kind).struct_code(kind)}")))
    return numbers
