"""The catalog: its images, its journal, and its edits one by one, also of a store that can't be opened."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from kvstore import CatalogBrowser, StoredImage, browse_catalog
from kvstore.clock import time_text
from kvstore.console.commands import command
from kvstore.console.html import Content, Html, printed, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, error_box, error_facts, fact_list, field, grid, is_error, pager
from kvstore.console.query import Query
from kvstore.console.values import LETTERS_MAX
from kvstore.errors import CorruptData, InvalidRequest, StoreError
from logformat.catalog import edits
from logformat.ids import Txid
from logformat.urls import without_credentials

EDITS_SHOWN = 50


def catalog_page(store: Path, query: Query) -> Page:
    """Images, segments of the journal, and the newest edits, or those before the edit ``before``."""
    with browse_catalog(store) as browser:
        images = attempt(lambda: [_image(each) for each in browser.images()])
        segments = [asdict(each) for each in browser.segments()]
        txids = [each[end] for each in segments for end in ("first", "last") if each[end] is not None]
        oldest, newest = (min(txids), max(txids)) if txids else (1, 0)
        top = min(newest, (query.number("before") or newest + 1) - 1)
        shown = range(top, max(oldest - 1, top - EDITS_SHOWN), -1)
        listed = [_listed(browser, each) for each in shown]
    facts = {
        "images": images,
        "journal": segments,
        "edits": listed,
    }
    links = {
        "Newer": url("/catalog", before=shown.start + EDITS_SHOWN + 1) if shown.start < newest else None,
        "Older": url("/catalog", before=shown.stop + 1) if shown.stop >= oldest else None,
    }

    def body() -> Html:
        return tag(
            "div",
            tag("section", tag("h2", "Images"), _images_html(images)),
            tag("section", tag("h2", "Journal"), _segments_html(segments)),
            tag("section", tag("h2", "Edits, the newest first"), _search(), _edits_html(listed), pager(**links)),
        )

    journal = next((each["first"] for each in segments if (each["first"] or 0) <= top <= (each["last"] or 0)), None)
    line = command("meta status", store) if journal is None else command("meta ls", store, journal)
    return Page("Catalog", facts, body, line, url("/api/catalog", before=query.text("before")), tab="catalog")


def edit_page(store: Path, query: Query) -> Page:
    """The edit ``txid``."""
    txid = query.number("txid")
    if txid is None:
        raise InvalidRequest("Name an edit by `txid`.")
    with browse_catalog(store) as browser:
        facts = _edit(browser, txid)

    def body() -> Html:
        if is_error(facts["content"]):
            return error_box(facts["content"])
        content = facts["content"]
        about = {name: content[name] for name in ("edit", "time", "epoch")}
        fields = [[name, tag("span", _text(value), class_="value")] for name, value in content["payload"].items()]
        back = tag("a", "All edits", href=url("/catalog", before=txid + 1))
        return tag("div", fact_list(about), grid("Fields of the edit", ["field", "value"], fields), tag("p", back))

    line = command("meta show", store, txid)
    return Page(f"Edit {txid:,} of the catalog", facts, body, line, url("/api/catalog/edit", txid=txid), tab="catalog")


def _listed(browser: CatalogBrowser, txid: int) -> dict[str, Any]:
    try:
        return _edit(browser, txid)
    except StoreError as error:  # the others can still be shown
        return {"txid": txid, "content": error_facts(error)}


def _edit(browser: CatalogBrowser, txid: int) -> dict[str, Any]:
    data = browser.edit(txid)
    try:
        edit = edits.decode(data)
    except CorruptData as error:
        return {"txid": txid, "content": error_facts(error)}
    content = {
        "edit": type(edit.payload).__name__,
        "time": time_text(edit.time_ms),
        "epoch": edit.epoch,
        "payload": without_credentials(msgspec.to_builtins(edit.payload)),
    }
    return {"txid": Txid(txid), "content": content}


def _image(stored_image: StoredImage) -> dict[str, Any]:
    if stored_image.head is None:
        nothing = dict.fromkeys(("bytes", "created", "epoch", "leader"))
        return {"txid": stored_image.txid, **nothing, "checksums": printed(str(stored_image.damage))}
    head = stored_image.head
    made = {"created": time_text(head.created_ms), "epoch": head.epoch, "leader": head.leader.name or None}
    return {"txid": stored_image.txid, "bytes": stored_image.bytes, **made, "checksums": "valid"}


def _images_html(images: Any) -> Html:
    if is_error(images):
        return error_box(images)
    if not images:
        return tag("p", "There is no image yet: the journal has every edit.", class_="none")
    rows = [
        [
            *(f"{each['txid']:,}", f"{each['bytes']:,}", each["created"], f"{each['epoch']:,}"),
            each["leader"] or tag("span", "no other leader yet", class_="null"),
            each["checksums"],
        ]
        if each["bytes"] is not None
        else [f"{each['txid']:,}", "", "", "", "", [tag("strong", "damaged: "), each["checksums"]]]
        for each in images
    ]
    return grid(
        "Images",
        ["last edit", "bytes", "created", "epoch of the checkpoint", "leader", "checksums"],
        rows,
        right=[True, True, False, True],
    )


def _segments_html(segments: list[dict[str, Any]]) -> Html:
    rows = [[each["name"], f"{each['edits']:,}", *(_txid_link(each[end]) for end in ("first", "last"))]
            for each in segments]  # fmt: skip
    return grid("Segments of the journal", ["segment", "edits", "first", "last"], rows, right=[False, True, True, True])


def _txid_link(txid: int | None) -> Content:
    return None if txid is None else tag("a", f"{txid:,}", href=url("/catalog", before=txid + 1))


def _edits_html(listed: list[dict[str, Any]]) -> Html:
    rows = []
    for each in listed:
        link = tag("a", f"{each['txid']:,}", href=url("/catalog/edit", txid=each["txid"]))
        content = each["content"]
        if is_error(content):
            rows.append([link, "", tag("strong", content["error"]["class"]), content["error"]["message"]])
        else:
            rows.append([link, content["time"], content["edit"], _about(content["payload"])])
    return grid("Edits", ["edit", "time", "kind", "about"], rows, right=[True])


def _about(payload: dict[str, Any]) -> str:
    words = " ".join(f"{name}={value}" for name, value in payload.items() if isinstance(value, int | str))
    return words if len(words) <= LETTERS_MAX else words[:LETTERS_MAX] + "…"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _search() -> Html:
    asked = field("Show an edit", "txid", type="number", min=1, required=True)
    return tag("form", asked, tag("button", "Show"), action="/catalog/edit", role="search")
