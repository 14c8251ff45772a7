"""Parts that several pages have: lists of facts, tables, cells, errors, links to the next page."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from kvstore.console.html import Content, Html, printed, tag
from kvstore.console.values import Cell, json_text
from kvstore.errors import CorruptData, LogFailed, StoreError

T = TypeVar("T")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z")


def attempt(call: Callable[[], T]) -> T | dict[str, Any]:
    """What a call returns; if the store reports an error, that, so that the rest of a page can still be shown."""
    try:
        return call()
    except StoreError as error:
        return error_facts(error)


def error_facts(error: StoreError) -> dict[str, Any]:
    """An error of the store in JSON."""
    facts: dict[str, Any] = {"class": type(error).__name__, "message": printed(str(error))}
    if isinstance(error, (CorruptData, LogFailed)):
        facts["do"] = "kvstore check DIR finds all damage; kvstore check DIR --repair repairs what it can."
    return {"error": facts}


def is_error(facts: Any) -> bool:
    """Whether :func:`attempt` returned an error."""
    return isinstance(facts, dict) and set(facts) == {"error"}


def error_box(facts: Mapping[str, Any]) -> Html:
    """An error in its place on a page."""
    error = facts["error"]
    return tag(
        "div",
        tag("p", tag("strong", error["class"]), " ", error["message"]),
        tag("p", error["do"]) if "do" in error else None,
        class_="error",
        role="alert",
    )


def fact_list(facts: Mapping[str, Content]) -> Html:
    """Names and values."""
    return tag("dl", [tag("div", tag("dt", name), tag("dd", value)) for name, value in facts.items()], class_="facts")


def grid(caption: str, names: Sequence[Content], rows: Sequence[Sequence[Content]], right: Sequence[bool] = ()) -> Html:
    """A table; a cell of ``right`` columns is aligned to the right, as numbers are.

    Args:
        caption: What is in it, for readers that do not see it.
    """
    aligned = [*right, *[False] * (len(names) - len(right))]
    return tag(
        "div",
        tag(
            "table",
            tag("caption", caption),
            tag(
                "thead",
                tag(
                    "tr",
                    [
                        tag("th", name, scope="col", class_=_side(side))
                        for name, side in zip(names, aligned, strict=True)
                    ],
                ),
            ),
            tag("tbody", [_row(row, aligned) for row in rows]),
        ),
        class_="grid",
        tabindex=0,
        role="region",
        aria_label=caption,
    )


def _row(row: Sequence[Content], aligned: Sequence[bool]) -> Html:
    return tag(
        "tr",
        [tag("td", _shown(cell), class_=_side(side)) for cell, side in zip(row, aligned, strict=True)],
        tabindex=-1,
    )


def _shown(cell: Content) -> Content:
    return tag("time", cell, datetime=cell) if isinstance(cell, str) and _TIME.fullmatch(cell) else cell


def _side(is_right: bool) -> str | None:
    return "right" if is_right else None


def value_html(cell: Cell, download: str | None = None) -> Html:
    """A value of a row; a long one is cut, with a link to the whole."""
    if cell.value is None:
        return tag("span", "null", class_="null")
    if cell.value == "":
        return tag("span", "empty", class_="null", title="a value of no characters")
    shown = tag("span", json_text(cell.value), class_="value")
    if cell.bytes is None:
        return shown
    whole: Content = f"{cell.bytes:,} bytes"
    if download is not None:
        whole = tag("a", "all ", whole, href=download, download=True)
    return tag("span", shown, "… ", tag("span", whole, class_="cut"))


def option_text(value: Any) -> Content:
    """An option of a table."""
    if value is None:
        return tag("span", "none", class_="null")
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def pager(**links: str | None) -> Html:
    """Links to other parts of a list, by their words; None is a part that is not there."""
    relations = {"Next": "next", "Later": "next", "Previous": "prev", "Earlier": "prev"}
    return tag(
        "p",
        [
            tag("a", word, href=href, rel=relations.get(word))
            if href is not None
            else tag("span", word, aria_disabled="true")
            for word, href in links.items()
        ],
        class_="pager",
    )


def field(label: str, name: str, value: str | int | None = None, **attributes: Any) -> Html:
    """A labelled field of a form."""
    return tag("label", tag("span", label), tag("input", name=name, value=value, **attributes))


def hidden(**values: str | int | Sequence[str] | None) -> list[Html]:
    """What a form sends along; a name may have several values."""
    return [
        tag("input", type="hidden", name=name, value=each)
        for name, value in values.items()
        if value is not None
        for each in ([value] if isinstance(value, (str, int)) else value)
    ]


def duration_text(milliseconds: float) -> str:
    """A duration for people."""
    for unit, size in (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("s", 1_000)):
        if milliseconds >= 2 * size or (unit == "s" and milliseconds >= size):
            return f"{milliseconds / size:,.1f} {unit}"
    return f"{milliseconds:,.0f} ms"


def size_text(size: int) -> str:
    """A number of bytes for people."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {'KMGT'[power - 1]}iB"


def bucket_form(buckets: int, path: str, bucket: int) -> Html | None:
    """Which bucket a page shows; nothing to choose of a table with one."""
    if buckets == 1:
        return None
    chosen = field("Bucket", "bucket", bucket, type="number", min=0, max=buckets - 1)
    return tag("form", chosen, tag("button", "Show"), action=path, role="search")
