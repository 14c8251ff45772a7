"""What a filter of a scan asks of single columns, so that the key, or a secondary index, can be searched for it.

pyarrow shows the parts of an expression only in the form in which it pickles it: an Arrow file, whose one row has the
literals and the options of functions, and whose metadata have the parts in their order. What is not understood here is
left out, which makes the conditions weaker and never wrong: they only say which rows to look at. A filter that is
nothing but comparisons of columns with values is understood wholly; a few rows are then tested a hundred times faster
than by the expression, for which Arrow makes a plan each time.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from hashlib import sha256
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from kvstore.indexing.conditions import Condition
from logformat.rows import intake
from logformat.rows.python_values import MISFITS

Known: TypeAlias = Mapping[str, Condition]
"""What is true of every row that passes a part of a filter, by column."""
_TURNED = {"equal": "equal", "less": "greater", "less_equal": "greater_equal"}
_TURNED |= {value: key for key, value in _TURNED.items()}
_COMPARISONS = frozenset(_TURNED)
_PREFIXED = frozenset(("starts_with", "match_like"))
_MAGIC_BYTES = 8
_DIGEST_CHARACTERS = 32
_EXACT_BITS = {pa.float64(): 53, pa.float32(): 24, pa.float16(): 11}
_U16, _I32, _U32 = struct.Struct("<H"), struct.Struct("<i"), struct.Struct("<I")
_HEADER, _METADATA, _KEY, _VALUE = 2, 2, 0, 1
_LAST_CHARACTER, _SURROGATES, _AFTER_SURROGATES = 0x10FFFF, 0xD800, 0xE000


@dataclass(frozen=True)
class _Column:
    name: str


@dataclass(frozen=True)
class _Literal:
    values: pa.Array


class Comparison(NamedTuple):
    """A comparison of a column with a value of its type, or with several if the function is ``is_in``."""

    column: str
    function: str
    value: pa.Scalar | pa.Array

    def of(self, rows: pa.RecordBatch) -> pa.Array:
        """Whether it is true for each row, bool; for a null it is false or null."""
        column = rows.column(self.column)
        if self.function == "is_in":
            return pc.is_in(column, value_set=self.value)
        return pc.call_function(self.function, [column, self.value])


@dataclass(frozen=True)
class Understood:
    """What is understood of a filter.

    Attributes:
        conditions: True for every row for which the filter is true, each about another column.
        comparisons: All that the filter asks: it is true where all of them are; None if it asks something else.
    """

    conditions: Sequence[Condition]
    comparisons: Sequence[Comparison] | None = None

    def matching(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """The rows for which all comparisons are true."""
        return rows.filter(self.true_for(rows))

    def true_for(self, rows: pa.RecordBatch) -> pa.Array:
        """Whether all comparisons are true for each row, bool; false or null where one is null."""
        assert self.comparisons
        return reduce(pc.and_, (each.of(rows) for each in self.comparisons))


@dataclass(frozen=True)
class _Part:
    """A part that is a condition, or nothing that is known.

    Attributes:
        comparisons: See :class:`Understood`.
    """

    known: Known
    comparisons: tuple[Comparison, ...] | None = None


_UNKNOWN = _Part({})
_Operand: TypeAlias = _Column | _Literal | _Part


def understood(filter: pc.Expression, schema: pa.Schema) -> Understood:
    """What is understood of a filter; if that is all of it, the filter fits the columns.

    Args:
        schema: Columns of the table.
    """
    operand = _read(filter, schema)
    comparisons = operand.comparisons if isinstance(operand, _Part) else None
    try:
        for each in comparisons or ():
            each.of(intake.empty(schema))
    except MISFITS:
        comparisons = None  # a type without an order
    return Understood(list(_truth(operand, schema).values()), comparisons)


def has_places(filter: pc.Expression) -> bool:
    """Whether a filter has a column by its place, such as ``pc.field(0)``."""
    return _pickled(filter) is None and "FieldPath(" in str(filter)


def has_nan(filter: pc.Expression) -> bool:
    """Whether a filter has a literal that is no number; True if that can't be said."""
    read = _pickled(filter)
    return read is None or any(
        pa.types.is_floating(column.type) and pc.any(pc.is_nan(column)).as_py() for column in read[0].columns
    )


def digest_of(filter: pc.Expression, columns: Sequence[str]) -> str:
    """A text that is the same for filters with the same parts, whatever their columns are called meanwhile.

    Args:
        columns: Names of the stored columns, as they are called now.
    """
    read = _pickled(filter)
    if read is None:
        parts = [("text", str(filter))]
    else:
        literals, message = read
        parts = []
        for kind, text in _metadata(message.metadata.to_pybytes()):
            if kind in ("literal", "options"):
                value = literals.column(int(text))
                text = f"{value.type} {_plain(value)!r}"
            elif kind == "field_ref" and text in columns:
                text = str(columns.index(text))
            parts.append((kind, text))
    return sha256(repr(parts).encode()).hexdigest()[:_DIGEST_CHARACTERS]


def _plain(values: pa.Array) -> list[Any]:
    """Values without classes, moments as numbers: Python's have no nanoseconds, and pandas has its own."""
    kind = values.type
    if pa.types.is_temporal(kind) and not pa.types.is_interval(kind):
        return values.view(pa.int32() if kind.bit_width == 32 else pa.int64()).to_pylist()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = iter(_plain(values.flatten()))
        lengths = pc.list_value_length(values).to_pylist()
        return [None if length is None else list(islice(items, length)) for length in lengths]
    if pa.types.is_struct(kind) and kind.num_fields:
        columns = [_plain(column) for column in values.flatten()]
        return list(zip(*columns, strict=True))
    return values.to_pylist()


def _pickled(filter: pc.Expression) -> tuple[pa.RecordBatch, pa.Message] | None:
    try:
        _, (pickled,) = filter.__reduce__()
        return pa.ipc.open_file(pickled).get_batch(0), pa.ipc.read_message(pickled.slice(_MAGIC_BYTES))
    except pa.ArrowException:
        return None  # such as a column by its place; or a later pyarrow has another form


def _read(filter: pc.Expression, schema: pa.Schema) -> _Operand:
    read = _pickled(filter)
    if read is None:
        return _UNKNOWN
    literals, message = read
    calls: list[list[_Operand]] = [[]]
    options: list[Any] = [None]
    for kind, text in _metadata(message.metadata.to_pybytes()):
        match kind:
            case "field_ref":
                calls[-1].append(_Column(text))
            case "literal":
                calls[-1].append(_Literal(literals.column(int(text))))
            case "options":
                options[-1] = literals.column(int(text))
            case "call":
                calls.append([])
                options.append(None)
            case "end":
                operand = _known(text, calls.pop(), options.pop(), schema)
                calls[-1].append(operand)
            case _:
                return _UNKNOWN
    return calls[0][0]


def _known(function: str, operands: Sequence[_Operand], options: Any, schema: pa.Schema) -> _Part:
    """What is true of a row for which a call is true."""
    match operands:
        case [one, other] if function in ("and_kleene", "and"):
            return _Part(_both(_truth(one, schema), _truth(other, schema)), _all_of(one, other))
        case [one, other] if function in ("or_kleene", "or"):
            return _Part(_either(_truth(one, schema), _truth(other, schema)))
        case [condition, one, _Literal(other)] if function == "if_else" and other[0].as_py() is not True:
            return _Part(_both(_truth(condition, schema), _truth(one, schema)))  # so DuckDB writes IN
        case [_Column(name), _Literal(values)] if function in _COMPARISONS:
            return _compared(name, function, values, schema)
        case [_Literal(values), _Column(name)] if function in _COMPARISONS:
            return _compared(name, _TURNED[function], values, schema)
        case [_Column(name)] if function == "is_in" and options is not None:
            values = options.field("value_set")[0].values
            return _one_of(name, values, schema, "is_in" if _is_plain_set(values) else None)
        case [_Column(name)] if function == "is_null" and not options.field("nan_is_null")[0].as_py():
            return _one_of(name, pa.nulls(1), schema)
        case [_Column(name)] if function == "invert" and _type_of(name, schema) == pa.bool_():
            return _one_of(name, pa.array([False]), schema)
        case [_Column(name)] if function in _PREFIXED and not options.field("ignore_case")[0].as_py():
            return _beginning(name, options.field("pattern")[0], schema, is_like=function == "match_like")
    return _UNKNOWN


def _truth(operand: _Operand, schema: pa.Schema) -> Known:
    if isinstance(operand, _Column) and _type_of(operand.name, schema) == pa.bool_():
        return _one_of(operand.name, pa.array([True]), schema).known
    return operand.known if isinstance(operand, _Part) else {}


def _all_of(*parts: _Operand) -> tuple[Comparison, ...] | None:
    comparisons: tuple[Comparison, ...] = ()
    for part in parts:
        if not isinstance(part, _Part) or part.comparisons is None:
            return None
        comparisons += part.comparisons
    return comparisons


def _is_plain_set(values: pa.Array) -> bool:
    """Whether a set has each value once in one form: it tells the zeros of floats apart."""
    return not (values.null_count or pa.types.is_floating(values.type))


def _compared(name: str, function: str, literal: pa.Array, schema: pa.Schema) -> _Part:
    if literal.null_count:
        return _UNKNOWN
    if function == "equal":
        return _one_of(name, literal, schema, "equal")
    values = _exact(literal, _type_of(name, schema))
    if values is None:
        return _UNKNOWN
    is_low = function.startswith("greater")
    known = {name: Condition(name, None, values[0] if is_low else None, None if is_low else values[0])}
    return _Part(known, (Comparison(name, function, values[0]),))


def _one_of(name: str, values: pa.Array, schema: pa.Schema, function: str | None = None) -> _Part:
    """A part that is true for some values only.

    Args:
        function: Compares with them, if that is all that the part asks.
    """
    exact = _exact(values, _type_of(name, schema))
    if exact is None:
        return _UNKNOWN
    comparisons = function and (Comparison(name, function, exact[0] if function == "equal" else exact),)
    return _Part({name: Condition(name, exact.unique())}, comparisons or None)


def _beginning(name: str, pattern: pa.StringScalar, schema: pa.Schema, *, is_like: bool) -> _Part:
    try:
        text = pattern.as_buffer().to_pybytes().decode()
    except UnicodeDecodeError:  # for a column of bytes: Arrow writes every pattern as text
        return _UNKNOWN
    if is_like:
        text = text[: min((place for sign in "%_\\" if (place := text.find(sign)) >= 0), default=len(text))]
    if not text or not pa.types.is_string(_type_of(name, schema)):
        return _UNKNOWN
    last = ord(text[-1])
    high = None
    if last < _LAST_CHARACTER:
        following = _AFTER_SURROGATES if last + 1 == _SURROGATES else last + 1
        high = pa.scalar(text[:-1] + chr(following))
    return _Part({name: Condition(name, None, pa.scalar(text), high)})


def _both(one: Known, other: Known) -> Known:
    both = dict(one)
    for name, condition in other.items():
        both[name] = condition if name not in both else _narrower(both[name], condition)
    return both


def _narrower(one: Condition, other: Condition) -> Condition:
    if one.values is not None:
        return one if other.values is None or len(one.values) <= len(other.values) else other
    if other.values is not None:
        return other
    low, high = _end(one.low, other.low, is_greater=True), _end(one.high, other.high, is_greater=False)
    return Condition(one.column, None, low, high)


def _end(one: pa.Scalar | None, other: pa.Scalar | None, *, is_greater: bool) -> pa.Scalar | None:
    """The one of two ends that is greater, or less; one that is no number is passed over."""
    if one is None or other is None:
        return other if one is None else one
    if pa.types.is_decimal(one.type):  # Arrow compares none whose scale is negative
        return one if (one.as_py() > other.as_py()) == is_greater else other
    is_number = pc.equal(other, other).as_py()
    is_it = (pc.greater if is_greater else pc.less)(one, other).as_py()
    return one if is_it or not is_number else other


def _either(one: Known, other: Known) -> Known:
    wider = {name: _wider(one[name], other[name]) for name in one if name in other}
    return {name: condition for name, condition in wider.items() if condition is not None}


def _wider(one: Condition, other: Condition) -> Condition | None:
    if one.values is not None and other.values is not None:
        return Condition(one.column, pa.concat_arrays([one.values, other.values]).unique())
    if one.values is not None or other.values is not None:
        return None
    low = None if one.low is None or other.low is None else _end(one.low, other.low, is_greater=False)
    high = None if one.high is None or other.high is None else _end(one.high, other.high, is_greater=True)
    return None if low is None and high is None else Condition(one.column, None, low, high)


def _type_of(name: str, schema: pa.Schema) -> pa.DataType | None:
    return schema.field(name).type if name in schema.names else None


def _exact(values: pa.Array, kind: pa.DataType | None) -> pa.Array | None:
    """Values in the type of a column, if they are compared there as in their own type; else None."""
    if kind is None or pa.types.is_nested(kind):
        return None
    if values.type != kind and not _are_alike(values.type, kind):
        return None
    try:
        cast = values.cast(kind)
        if pa.types.is_null(values.type):
            return cast
        if cast.type != values.type and not cast.cast(values.type).equals(values):
            return None
    except pa.ArrowException:
        return None
    # Integers and floats are compared as floats, in which large integers are not exact.
    bits = min((_EXACT_BITS[each] for each in (values.type, kind) if each in _EXACT_BITS), default=None)
    if bits is not None and not (pa.types.is_floating(values.type) and pa.types.is_floating(kind)):
        there = values.cast(pa.float64(), safe=False).drop_null()
        if reduce(max, map(abs, there.to_pylist()), 0) >= 1 << bits:
            return None
    return cast


def _are_alike(one: pa.DataType, other: pa.DataType) -> bool:
    types = pa.types
    if types.is_null(one):
        return True
    if types.is_timestamp(one) and types.is_timestamp(other):
        return (one.tz is None) == (other.tz is None)
    if any(is_one(one) and is_one(other) for is_one in (_is_text, _is_bytes, types.is_time, types.is_duration)):
        return True
    if types.is_decimal(one) or types.is_decimal(other):
        return all(types.is_decimal(each) or types.is_integer(each) for each in (one, other))
    return all(types.is_integer(each) or types.is_floating(each) for each in (one, other))


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind)


def _is_bytes(kind: pa.DataType) -> bool:
    return pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)


def _metadata(message: bytes) -> Iterator[tuple[str, str]]:
    """Metadata of the schema in an Arrow message, in their order: pyarrow's own dict has each key only once.

    The message is a flatbuffer, which Arrow's format describes.
    """
    schema = _slot(message, _U32.unpack_from(message)[0], _HEADER)
    pairs = None if schema is None else _slot(message, schema, _METADATA)
    if pairs is None:
        return
    for number in range(_U32.unpack_from(message, pairs)[0]):
        position = pairs + _U32.size * (number + 1)
        pair = position + _U32.unpack_from(message, position)[0]
        yield _text(message, _slot(message, pair, _KEY)), _text(message, _slot(message, pair, _VALUE))


def _slot(message: bytes, table: int, number: int) -> int | None:
    """Place of what a field of a table refers to; None if the table does not have it."""
    fields = table - _I32.unpack_from(message, table)[0]
    entry = _U32.size + _U16.size * number
    offset = _U16.unpack_from(message, fields + entry)[0] if entry < _U16.unpack_from(message, fields)[0] else 0
    position = table + offset
    return position + _U32.unpack_from(message, position)[0] if offset else None


def _text(message: bytes, position: int | None) -> str:
    if position is None:
        return ""
    start = position + _U32.size
    return message[start : start + _U32.unpack_from(message, position)[0]].decode()
