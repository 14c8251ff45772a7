"""The choice of columns: the first few of a wide table, or those that were asked for."""

from __future__ import annotations

from kvstore.console.html import Html, tag
from kvstore.console.parts import hidden
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.errors import SchemaMismatch

COLUMNS_SHOWN = 12


def chosen(definition: Definition, query: Query) -> tuple[list[str], bool]:
    """Names of the columns of a page, those of the key first, and whether they are not all.

    Raises:
        SchemaMismatch: The table has no such column.
    """
    names = definition.schema.names
    asked = query.all("column")
    if unknown := [name for name in asked if name not in set(names)]:
        raise SchemaMismatch("The table has no such column.", unknown=unknown[:3])
    key = list(definition.primary_key or ())
    others = [name for name in (asked or names) if name not in key]
    shown = [*key, *(others if asked else others[: max(COLUMNS_SHOWN - len(key), 1)])]
    return list(dict.fromkeys(shown)), len(shown) < len(names)


def columns_form(definition: Definition, shown: list[str], path: str, **kept: str | None) -> Html | None:
    """Boxes to choose columns by; None if there is nothing to choose."""
    key, names = definition.primary_key or (), definition.schema.names
    others = [name for name in names if name not in key]
    if len(others) < 2:
        return None
    there = set(shown)
    boxes = [
        tag(
            "label",
            tag("input", type="checkbox", name="column", value=name, checked=name in there),
            tag("span", name),
            class_="box",
        )
        for name in others
    ]
    return tag(
        "details",
        tag("summary", f"Columns ({len(shown)} of {len(names)})"),
        tag("form", hidden(**kept), tag("div", boxes, class_="boxes"), tag("button", "Show these"), action=path),
    )
