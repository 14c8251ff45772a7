"""Values of every type, and the JSON that the command line writes for them."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal
from typing import Any

import pyarrow as pa

FORMS: list[tuple[pa.DataType, Any, Any]] = [
    (pa.bool_(), True, True),
    (pa.int8(), -128, -128),
    (pa.int64(), -(2**63), -(2**63)),
    (pa.uint64(), 2**64 - 1, 2**64 - 1),
    (pa.float16(), 0.1, 0.1),
    (pa.float32(), 0.1, 0.1),
    (pa.float64(), 0.1, 0.1),
    (pa.float64(), math.nan, "NaN"),
    (pa.float32(), math.inf, "Infinity"),
    (pa.float16(), -math.inf, "-Infinity"),
    (pa.string(), 'é\x1b\n"', 'é\x1b\n"'),
    (pa.binary(), b"\0\xff", "AP8="),
    (pa.binary(2), b"ab", "YWI="),
    (pa.decimal128(38, 2), Decimal("1.50"), "1.50"),
    (pa.decimal128(5, -2), Decimal("1E+3"), "1000"),
    (pa.date32(), dt.date(1, 2, 3), "0001-02-03"),
    (pa.time32("s"), dt.time(23, 59, 59), "23:59:59"),
    (pa.time32("ms"), dt.time(0, 0, 0, 5000), "00:00:00.005"),
    (pa.time64("us"), dt.time(1, 2, 3, 4), "01:02:03.000004"),
    (pa.time64("ns"), 1, "00:00:00.000000001"),
    (pa.timestamp("s"), -1, "1969-12-31T23:59:59"),
    (pa.timestamp("ms"), 1, "1970-01-01T00:00:00.001"),
    (pa.timestamp("us", "UTC"), 1, "1970-01-01T00:00:00.000001Z"),
    (pa.timestamp("ns", "UTC"), -1, "1969-12-31T23:59:59.999999999Z"),
    (pa.duration("s"), 2**62, "PT4611686018427387904S"),
    (pa.duration("ms"), -1500, "-PT1.500S"),
    (pa.duration("us"), 0, "PT0.000000S"),
    (pa.duration("ns"), 1, "PT0.000000001S"),
    (pa.list_(pa.binary()), [b"a", None], ["YQ==", None]),
    (pa.map_(pa.date32(), pa.float64()), [(dt.date(1970, 1, 1), math.nan)], [["1970-01-01", "NaN"]]),
    (pa.struct({"d": pa.duration("s"), "n": pa.int8()}), {"d": None, "n": 1}, {"d": None, "n": 1}),
]
