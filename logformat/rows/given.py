"""Recognition of given data: frames, datasets and objects become Arrow data, or rows that are mappings.

No library is imported for this: data of a library that the program has not imported can't be given.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa

from logformat.errors import SchemaMismatch

_AS_DECLARED = {"by_alias": False, "exclude_computed_fields": True}
_UNNAMED_INDEX = re.compile(r"__index_level_\d+__")


def arrow_of(data: Any, names: Sequence[str]) -> Any:
    """A pandas or lazy Polars frame, or a dataset, as Arrow data; anything else as it is.

    Args:
        names: Columns of the table, which an index of a frame may be.

    Raises:
        SchemaMismatch: The frame has a named index that is no column, or is one already.
        pa.ArrowException: A column of a frame has values of several types.
    """
    if _is(data, "pandas", "DataFrame"):
        return pa.Table.from_pandas(_without_index(data, names), preserve_index=False)
    if _is(data, "polars", "LazyFrame"):
        return data.collect()
    if _is(data, "pyarrow.dataset", "Dataset"):
        return data.scanner().to_reader()
    return data


def keys_of(keys: Any, names: Sequence[str]) -> Any:
    """Keys of a pandas frame whose index is the key: the index, as a frame; anything else as it is."""
    if _is(keys, "pandas", "DataFrame") and set(keys.index.names) == set(names):
        return keys.index.to_frame(index=False)
    return keys


def unnamed_index(schema: pa.Schema) -> set[str]:
    """Columns of Arrow data of pandas that are an index without a name."""
    if not schema.metadata or b"pandas" not in schema.metadata:
        return set()
    return {name for name in schema.names if _UNNAMED_INDEX.fullmatch(name)}


def row_of(row: Any) -> Any:
    """A dataclass or a pydantic model as a dict of its fields; anything else as it is.

    Models within a dataclass stay what they are; the column that takes them converts them.
    """
    if isinstance(row, (Mapping, type)):
        return row
    if dataclasses.is_dataclass(row):
        return dataclasses.asdict(row)  # type: ignore[arg-type]  # classes are excluded above
    kind: Any = type(row)
    if callable(getattr(kind, "model_dump", None)):
        return row.model_dump(**_dumped(kind))
    return row


@lru_cache(maxsize=64)
def _dumped(model: Any) -> dict[str, bool]:
    """How a model becomes a dict of its fields, by their names; versions of pydantic take different arguments."""
    taken = inspect.signature(model.model_dump).parameters
    return {name: given for name, given in _AS_DECLARED.items() if name in taken}


def is_row(data: Any) -> bool:
    """Whether this is one row."""
    return isinstance(row_of(data), Mapping)


def _is(data: Any, module: str, name: str) -> bool:
    kind = getattr(sys.modules.get(module), name, None)
    return kind is not None and isinstance(data, kind)


def _without_index(frame: Any, names: Sequence[str]) -> Any:
    """A pandas frame with its named index as columns, and without the levels that have no name."""
    levels = frame.index.names
    named = [level for level in levels if level is not None]
    if unknown := [level for level in named if level not in names]:
        raise SchemaMismatch(
            "The index of this DataFrame has a name that is no column of the table; make it a column with"
            " reset_index(), or drop it with reset_index(drop=True).",
            index=unknown,
            columns=list(names),
        )
    if twice := [level for level in named if level in frame.columns]:
        raise SchemaMismatch(
            "The index of this DataFrame has the name of one of its columns; drop it with reset_index(drop=True).",
            index=twice,
        )
    if not named:
        return frame
    if unnamed := [number for number, level in enumerate(levels) if level is None]:
        frame = frame.reset_index(level=unnamed, drop=True)
    return frame.reset_index()
