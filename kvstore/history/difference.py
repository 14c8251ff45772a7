"""The difference of two rows as a line for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec


def difference(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, key: Sequence[str]) -> str:
    """What differs between two rows in their JSON form; of a row that comes or goes, all its values.

    Args:
        key: Columns that are left out.
    """
    row = after if before is None else before
    if row is None:
        return ""
    names = [name for name in row if name not in key]
    if before is None or after is None:
        return ", ".join(f"{name}={value_text(row[name])}" for name in names)
    return ", ".join(
        f"{name}: {value_text(before[name])} -> {value_text(after[name])}"
        for name in names
        if value_text(before[name]) != value_text(after[name])
    )


def value_text(value: Any) -> str:
    """A value in its JSON form, as JSON, in one line of printable characters."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in msgspec.json.encode(value).decode()
    )
