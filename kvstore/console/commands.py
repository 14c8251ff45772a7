"""The command that prints what a page shows."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvstore.console.values import json_text

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def command(name: str, store: Path, *arguments: str | int, **options: str | int | None) -> str:
    """A line for a shell: ``kvstore NAME DIR …``; options that are None are left out.

    An argument that begins with ``-`` comes after ``--``.
    """
    given = [str(each) for each in arguments]
    chosen: list[str] = []
    for option, value in options.items():
        if value is not None:
            chosen += [f"--{option.replace('_', '-')}", str(value)]
    last = [*chosen, "--", *given] if any(each.startswith("-") for each in given) else [*given, *chosen]
    return shlex.join(["kvstore", *name.split(), str(store), *last])


def names_given(names: list[str] | None) -> str | None:
    """Names of columns for ``--columns``."""
    return None if names is None else ",".join(each if _PLAIN_NAME.fullmatch(each) else _quoted(each) for each in names)


def bound_given(bound: str | None, bucket: int, starts: dict[int, tuple[int, int]]) -> str | None:
    """A place for ``--start`` or ``--as-of``: an offset of one bucket of several needs one for each of the others.

    Args:
        starts: For each bucket the range of its log; of the others it is the start that is given.
    """
    if bound is None or len(starts) == 1 or not bound.isdigit():
        return bound
    return json_text({str(each): int(bound) if each == bucket else start for each, (start, _) in starts.items()})


def of_key(fields: list[pa.Field], key: list[Any]) -> str:
    """The condition for ``--where`` of the row of a key."""
    return " and ".join(f"{_column(each.name)} = {_value(value)}" for each, value in zip(fields, key, strict=True))


def after_key(fields: list[pa.Field], key: list[Any]) -> str:
    """The condition for ``--where`` of the rows after a key."""
    conditions = []
    for number, field in enumerate(fields):
        same = [of_key(fields[:number], key[:number])] if number else []
        conditions.append(" and ".join([*same, f"{_column(field.name)} > {_value(key[number])}"]))
    return conditions[0] if len(conditions) == 1 else " or ".join(f"({each})" for each in conditions)


def condition_of(field: pa.Field, value: str) -> str:
    """A condition on one column, as an example."""
    return f"{_column(field.name)} = {value}"


def _column(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else _quoted(name)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _value(value: Any) -> str:
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else json_text(value)
