"""The aggregate functions, and the columns they take.

========================== =================================== ============================================
function                   columns                             result of the stored and the incoming value
========================== =================================== ============================================
sum, product               integers, floats, decimals (128)    their sum or product
max, min                   all but booleans and nested ones    the larger or smaller; if equal, the stored one
last_value                 any                                 the incoming one, even if null
last_value_ignore_nulls    any                                 the incoming one
first_value                any                                 the stored one, even if null
first_value_ignore_nulls   any                                 the stored one
listagg, string_agg        text                                both, a delimiter between them
bool_and, bool_or          booleans                            whether both are, or one of them is, true
rbm32, rbm64               bytes                               the union of two roaring bitmaps
========================== =================================== ============================================

* Null and a value merge to the value, except where the table says "even if null".
* A result that does not fit an integer or decimal column raises AggregateOverflow. Products of decimals are rounded to
  the column's scale, half away from zero. Floats are added in order of arrival, without overflow.
* Text and bytes compare byte by byte. NaN is the largest float, as in Spark, and -0.0 equals 0.0.
* Bitmaps are in the portable format of CRoaring; rbm64 is not what Java's ``Roaring64Bitmap.serialize`` writes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from logformat.errors import InvalidRequest
from logformat.rows.types.column_type import Layout
from logformat.rows.types.registry import column_type
from merge_engines.functions.bitmaps import require_pyroaring

types = pa.types


def _is_summed(kind: pa.DataType) -> bool:
    return column_type(kind).is_number and not pa.types.is_decimal256(kind)


def _is_ordered(kind: pa.DataType) -> bool:
    return column_type(kind).layout not in (Layout.FLAG, Layout.NESTED)


def _is_any(_: pa.DataType) -> bool:
    return True


_NUMBERS: tuple[Callable[[pa.DataType], bool], str] = (_is_summed, "integers, floats and decimals of at most 38 digits")
_ORDERED = (_is_ordered, "integers, floats, decimals, text, bytes, dates, times and durations")
_ANY = (_is_any, "any")
_BOOLEANS = (types.is_boolean, "booleans")
_BYTES = (types.is_binary, "binary")
_ALLOWED: dict[str, tuple[Callable[[pa.DataType], bool], str]] = {
    "sum": _NUMBERS,
    "product": _NUMBERS,
    "max": _ORDERED,
    "min": _ORDERED,
    "last_value": _ANY,
    "last_value_ignore_nulls": _ANY,
    "first_value": _ANY,
    "first_value_ignore_nulls": _ANY,
    "listagg": (types.is_string, "string"),
    "bool_and": _BOOLEANS,
    "bool_or": _BOOLEANS,
    "rbm32": _BYTES,
    "rbm64": _BYTES,
}
NAMES = tuple(_ALLOWED)
_ALIASES = {"string_agg": "listagg"}


@dataclass(frozen=True, slots=True, order=True)
class Function:
    """A function that merges a column.

    Attributes:
        name: One of ``NAMES``.
        delimiter: Of ``listagg``; empty for the others.
    """

    name: str
    delimiter: str = ""

    def __repr__(self) -> str:
        return f"listagg({self.delimiter!r})" if self.name == "listagg" else repr(self.name)

    def check(self, column: str, kind: pa.DataType) -> None:
        """Check that this function can merge a column of this type.

        Raises:
            InvalidRequest: It can't.
            UnsupportedOperation: The package needed is not installed.
        """
        is_allowed, allowed = _ALLOWED[self.name]
        if not is_allowed(kind):
            raise InvalidRequest(
                "This function does not take columns of this type.",
                column=column,
                function=self.name,
                type=kind,
                allowed=allowed,
            )
        if self.name in ("rbm32", "rbm64"):
            require_pyroaring(column, self.name)


def listagg(delimiter: str = ",") -> Function:
    """Appends text, with ``delimiter`` between; a function for :class:`merge_engines.aggregate.Aggregate`.

    Raises:
        InvalidRequest: The delimiter is not text.
    """
    if not isinstance(delimiter, str):
        raise InvalidRequest("The delimiter of listagg must be text.", given=type(delimiter).__name__)
    try:
        delimiter.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest("The delimiter of listagg is not valid text.", given=ascii(delimiter)) from error
    return Function("listagg", delimiter)


string_agg = listagg


def function_given(column: str, given: Any) -> Function:
    """The function that a user named.

    Raises:
        InvalidRequest: A function of that name does not exist.
    """
    if isinstance(given, Function):
        return given
    name = _ALIASES.get(given, given) if isinstance(given, str) else None
    if name == "listagg":
        return listagg()
    if name in _ALLOWED:
        return Function(name)
    names = ", ".join((*NAMES, *_ALIASES))
    raise InvalidRequest(f"Unknown function; the functions are {names}.", column=column, function=repr(given))


LAST_VALUE = Function("last_value")
LAST_VALUE_IGNORE_NULLS = Function("last_value_ignore_nulls")
