"""Names and values are data: none of them becomes a part of a page, and none disappears from it."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from hypothesis import given, strategies as st

import kvstore
from kvstore.console.html import printed, tag, text, url
from tests.console.browser import EVIL, Html, api, asking, page

ANY = st.text() | st.sampled_from([EVIL, "<!--", "]]>", "&amp;", "\u2066\u202e", "\ud800", "\0"])


@given(ANY, ANY)
def test_any_text_comes_back_from_a_page_as_text(content: str, value: str) -> None:
    html = Html(tag("p", content, title=value, class_="x").source)
    assert html.text == printed(content)
    assert html.elements[0] == ("p", {"title": printed(value), "class": "x"})
    assert {name for name, _ in html.elements} <= {"p", "span"}


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_the_value_of_a_field_is_sent_back_as_it_was(value: str) -> None:
    ((_, given),) = Html(tag("input", name="key", value=value).source).elements
    assert given["value"] == value


@given(ANY)
def test_a_character_that_does_not_print_is_shown_and_marked(content: str) -> None:
    html = Html(text(content).source)
    assert html.text.isprintable()
    marks = [attributes["title"] for _, attributes in html.elements]
    assert marks == [f"U+{ord(letter):04X}" for letter in content if not letter.isprintable()]


@given(st.text(), st.lists(st.text(), min_size=1))
def test_a_url_is_plain_characters_without_quotes(one: str, several: list[str]) -> None:
    found = url("/x", key=several, other=one, none=None)
    assert found.isascii()
    assert found.isprintable()
    assert not set(found) & set("\"'<> ")


COLUMN = '"><script src=//evil.example></script>'


def test_a_store_of_hostile_names_and_values_is_shown_as_it_is(tmp_path: Path) -> None:
    keys = [EVIL, "..", "a/b?c=d#e", "%2e%2e", " ", "-", "\u202eabc"]
    with kvstore.open(tmp_path / "s") as store:
        schema = pa.schema([pa.field(COLUMN, pa.string(), False), pa.field("=cmd|' /C'!A0", pa.string())])
        table = store.create_table("<img src=x onerror=alert(1)>", schema, primary_key=COLUMN)
        table.upsert([{COLUMN: key, "=cmd|' /C'!A0": EVIL} for key in keys])
        table.upsert([{COLUMN: key, "=cmd|' /C'!A0": None} for key in keys])
    with asking(tmp_path / "s") as client:
        assert sorted(each["values"][COLUMN] for each in api(client, "/tables/1/rows")["rows"]) == sorted(keys)
        for path in ("/", "/tables/1", "/tables/1/rows", "/tables/1/changes", f"/?q={EVIL!r}"):
            html = page(client, path)
            assert {tag for tag, _ in html.elements} & {"img", "b", "i"} == set()
            assert html.all("script", "src") == ["/assets/console.js"]
        histories = [each for each in page(client, "/tables/1/rows").all("a", "href") if "history" in each]
        assert len(histories) == len(keys)
        found = [api(client, each) for each in histories]
        assert sorted(each["key"][0] for each in found) == sorted(keys)
        assert all(each["versions_all"] == 2 for each in found)
        assert all(
            printed(each["key"][0]) in page(client, link).text for each, link in zip(found, histories, strict=True)
        )
