"""A page: its facts, which ``/api`` returns, and their HTML, in the frame that all pages have."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvstore.console.html import Html, document, tag
from kvstore.console.table.definition import Definition

_KEYS = (
    ("/", "go to the search field"),
    ("j, k", "next and previous row"),
    ("Enter", "open the link of the row"),
    ("n, p", "next and previous page"),
    ("g", "overview"),
    ("f", "follow the changelog, or pause"),
    ("?", "show these keys"),
)


@dataclass(frozen=True)
class Page:
    """What a request shows.

    Attributes:
        facts: As JSON has them.
        body: Makes the HTML of the facts.
        command: The command that prints the same.
        api: Path of the same as JSON.
        table: The table that the page is about; None for the store.
        tab: Which of its pages.
        status: Code of the response.
    """

    title: str
    facts: Any
    body: Callable[[], Html]
    command: str | None
    api: str | None
    table: Definition | None = None
    tab: str = ""
    status: int = 200


def html_of(page: Page, store: str) -> str:
    """The page as a document."""
    return document(
        tag(
            "head",
            tag("meta", charset="utf-8"),
            tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
            tag("meta", name="color-scheme", content="light dark"),
            tag("title", f"{page.title} · kvstore"),
            tag("link", rel="icon", href="/assets/icon.svg", type="image/svg+xml"),
            tag("link", rel="stylesheet", href="/assets/console.css"),
            tag("script", src="/assets/console.js", defer=True),
        ),
        tag(
            "body",
            tag("a", "Skip to the content", class_="skip", href="#content"),
            tag(
                "header",
                tag("a", tag("strong", "kvstore"), href="/", class_="home", aria_label="kvstore: overview"),
                tag("span", store, class_="path", title="Directory of the store"),
            ),
            _tabs(page.table, page.tab) if page.table is not None else _store_tabs(page.tab),
            tag("main", tag("h1", page.title), page.body(), id="content", tabindex=-1),
            _footer(page),
        ),
    )


def _store_tabs(current: str) -> Html:
    tabs = [("overview", "Tables", "/")]
    tabs += [(each, each.capitalize(), f"/{each}") for each in ("consumers", "replicas", "jobs", "catalog")]
    return _links(tabs, current, "Pages of the store")


def _tabs(table: Definition, current: str) -> Html:
    tabs = [
        ("table", "Table", ""),
        ("rows", "Rows", "/rows"),
        ("changes", "Changes", "/changes"),
        ("writers", "Writers", "/writers"),
        ("undo", "Undo", "/undo"),
        ("log", "Log", "/log"),
    ]
    if table.primary_key is None:
        tabs = [each for each in tabs if each[0] not in ("rows", "undo")]
    links = [(id, name, f"/tables/{table.id}{path}") for id, name, path in tabs]
    return _links(links, current, f"Pages of the table {table.name}")


def _links(links: list[tuple[str, str, str]], current: str, label: str) -> Html:
    return tag(
        "nav",
        [tag("a", name, href=path, aria_current="page" if id == current else None) for id, name, path in links],
        aria_label=label,
    )


def _footer(page: Page) -> Html:
    keys = [[tag("dt", tag("kbd", key)), tag("dd", meaning)] for key, meaning in _KEYS]
    return tag(
        "footer",
        None
        if page.command is None
        else tag("p", tag("span", "The same in a shell", class_="label"), tag("code", page.command)),
        None
        if page.api is None
        else tag("p", tag("span", "The same as JSON", class_="label"), tag("a", page.api, href=page.api)),
        tag("details", tag("summary", "Keys"), tag("dl", *keys, class_="keys"), id="keys"),
    )
