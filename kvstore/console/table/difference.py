"""One change: the row before and after, and which of its values differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kvstore.console.html import Content, Html, tag, url
from kvstore.console.parts import value_html
from kvstore.console.table.definition import Definition
from kvstore.console.table.rows import row_facts
from kvstore.console.values import NULL, Cell, cells_of, json_text
from logformat.log.change import ChangeType
from logformat.rows.json_form import to_json

BEFORE, AFTER = "before", "after"
"""Columns of :meth:`kvstore.Table.binlog`: the row before a change, and the row after it."""
WORDS = {
    ChangeType.APPEND.word: ("append", "+A"),
    ChangeType.INSERT.word: ("insert", "+I"),
    ChangeType.UPDATE_POSTIMAGE.word: ("update", "+U"),
    ChangeType.DELETE.word: ("delete", "-D"),
}


@dataclass(frozen=True)
class Version:
    """A change of a row.

    Attributes:
        before, after: None where there is no such row, or, for an update of a WAL image, none in the log.
        changed: For each column, whether it differs.
        key: Texts of the key's columns; none in a log table.
    """

    offset: int
    kind: str
    names: list[str]
    before: tuple[Cell, ...] | None
    after: tuple[Cell, ...] | None
    changed: tuple[bool, ...]
    key: list[str]


def versions_of(binlog: pa.Table, definition: Definition) -> list[Version]:
    """The changes of a binlog."""
    batch = binlog.combine_chunks()
    before, after = (batch.column(name).chunk(0) for name in (BEFORE, AFTER)) if batch.num_rows else (None, None)
    if before is None or after is None:
        return []
    names = [field.name for field in before.type]
    parts = list(zip(before.flatten(), after.flatten(), strict=True))
    differ = list(zip(*(_differ(old, new) for old, new in parts), strict=True))
    rows = [list(zip(*(cells_of(pair[side]) for pair in parts), strict=True)) for side in (0, 1)]
    there = [each.is_valid().to_pylist() for each in (before, after)]
    keys = _keys(before, after, there[1], definition.primary_key or ())
    offsets, kinds = (batch.column(name).to_pylist() for name in ("_log_offset", "_change_type"))
    return [
        Version(
            offset=offsets[at],
            kind=kinds[at],
            names=names,
            before=rows[0][at] if there[0][at] else None,
            after=rows[1][at] if there[1][at] else None,
            changed=differ[at],
            key=keys[at],
        )
        for at in range(batch.num_rows)
    ]


def _keys(before: pa.Array, after: pa.Array, is_after: list[bool], names: tuple[str, ...]) -> list[list[str]]:
    values = [[to_json(side.field(name)) for name in names] for side in (before, after)]
    return [[json_text(column[at]) for column in values[there]] for at, there in enumerate(is_after)]


def _differ(old: pa.Array, new: pa.Array) -> list[bool]:
    kind = old.type
    if pa.types.is_string(kind) or pa.types.is_binary(kind):  # these may be long
        same = pc.fill_null(pc.equal(old, new), False)
        both_null = pc.and_(pc.is_null(old), pc.is_null(new))
        return [not each for each in pc.or_(same, both_null).to_pylist()]
    pairs = zip(map(msgspec.json.encode, to_json(old)), map(msgspec.json.encode, to_json(new)), strict=True)
    return [one != other for one, other in pairs]


def version_facts(version: Version) -> dict[str, Any]:
    """A change in JSON."""
    sides = {"before": version.before, "after": version.after}
    return {
        "offset": version.offset,
        "change": WORDS[version.kind][0],
        **{side: None if row is None else row_facts(version.names, row) for side, row in sides.items()},
        "changed": changed_names(version),
    }


def changed_names(version: Version) -> list[str]:
    """The columns that an update changed."""
    if version.before is None or version.after is None:
        return []
    return [name for name, differs in zip(version.names, version.changed, strict=True) if differs]


def version_html(version: Version, definition: Definition, bucket: int | None, about: Content = None) -> Html:
    """A change as a small table: for an update, what was and what is.

    Args:
        bucket: None for a change that is in no log: it has no offset, and its long values can't be saved.
    """
    word, sign = WORDS[version.kind]
    key = [name for name in version.names if name in (definition.primary_key or ())]
    row = version.after or version.before
    if version.before is not None and version.after is not None:
        names = changed_names(version)
        same = len(version.names) - len(names) - len(key)
        lines = [_line(version, name, definition, bucket, both=True) for name in names]
        note = "No shown column changed." if not names else _same_words(same)
        table = _table(["column", "before", "after"], lines, word) if lines else None
        content: Content = [table, tag("p", note, class_="none") if note else None]
    else:
        names = [name for name in version.names if name not in key]
        lines = [_line(version, name, definition, bucket, both=False) for name in names]
        missing = word == "update" and definition.options.changelog_image == "wal"
        note = "The row before is not in the log (WAL image)." if missing else ""
        content = [
            _table(["column", "value"], lines, word) if lines else None,
            tag("p", note, class_="none") if note else None,
        ]
    shown_key: list[Content] = []
    for name, cell in zip(version.names, row or (), strict=False):
        if name in key:
            shown_key += [" ", tag("span", name, class_="label"), value_html(cell)]
    history = url(f"/tables/{definition.id}/history", key=version.key)
    title = tag("a", *shown_key, href=history, title="History of this key") if shown_key else None
    offset = None if bucket is None else tag("small", f"offset {version.offset:,}")
    return tag(
        "article",
        tag("h3", tag("span", sign, class_="sign", aria_hidden="true"), f" {word}", " ", title, offset),
        about,
        content,
        class_=f"change {word}",
        tabindex=-1,
    )


def _same_words(count: int) -> str:
    if not count:
        return ""
    return "1 other shown column is the same." if count == 1 else f"{count:,} other shown columns are the same."


def _line(version: Version, name: str, definition: Definition, bucket: int | None, *, both: bool) -> list[Html]:
    at = version.names.index(name)
    sides = [side for side, row in (("before", version.before), ("after", version.after)) if both or row is not None]
    shown = []
    for side in sides:
        row = version.before if side == "before" else version.after
        cell = NULL if row is None else row[at]
        whole = url(f"/tables/{definition.id}/cell", column=name, bucket=bucket, offset=version.offset, side=side)
        shown.append(value_html(cell, whole if cell.bytes is not None and bucket is not None else None))
    return [tag("span", name), *shown]


def _sides(line: list[Html]) -> list[str | None]:
    return ["before", "after"] if len(line) == 3 else [None]


def _table(names: list[str], lines: list[list[Html]], word: str) -> Html:
    return tag(
        "table",
        tag("caption", f"Values of this {word}"),
        tag("thead", tag("tr", [tag("th", name, scope="col") for name in names])),
        tag(
            "tbody",
            [
                tag(
                    "tr",
                    tag("th", line[0], scope="row"),
                    [tag("td", cell, class_=side) for cell, side in zip(line[1:], _sides(line), strict=True)],
                )
                for line in lines
            ],
        ),
        class_="diff",
    )
