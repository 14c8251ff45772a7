"""What asks the console, and reads its HTML as a browser does."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
from starlette.testclient import TestClient

import kvstore
from kvstore.console.app import application

TOKEN, HOST = "the-token", "127.0.0.1:8765"
VOID = {"meta", "link", "input", "br", "hr"}


@contextmanager
def asking(store: Path, *, raises: bool = True, **headers: str) -> Iterator[TestClient]:
    """A client of a store's console that has the token.

    Args:
        raises: Whether an error that the console did not expect is raised here, or only answered.
    """
    app = application(store, TOKEN, frozenset({HOST}), "kvstore-8765")
    given = {"Authorization": f"Bearer {TOKEN}", **headers}
    options = {"headers": given, "follow_redirects": False, "raise_server_exceptions": raises}
    with TestClient(app, f"http://{HOST}", **options) as client:
        yield client


class Html(HTMLParser):
    """A parsed page: its elements with their attributes, and its text; elements that are not closed are an error."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(source)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        assert len(dict(attrs)) == len(attrs)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data

    def all(self, tag: str, attribute: str) -> list[str]:
        """Values of an attribute of every element of a name that has it."""
        return [str(given[attribute]) for name, given in self.elements if name == tag and attribute in given]


def page(client: TestClient, path: str, status: int = 200) -> Html:
    response = client.get(path)
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("text/html")
    return Html(response.text)


def api(client: TestClient, path: str, status: int = 200) -> Any:
    response = client.get(f"/api{path}")
    assert response.status_code == status, response.text
    return response.json()


EVIL = '</script><b onclick="x">\'&\u202egnp.exe\0\x1b[31m'
LONG = "long " * 2_000_000

FILES = pa.schema([pa.field("path", pa.string(), False), pa.field("size", pa.int64()), pa.field("note", pa.string())])


def fill(store: kvstore.Store) -> None:
    """Tables of several kinds; the first one has every kind of change, by several writers, and an empty batch."""
    files = store.create_table("files", FILES, primary_key="path")
    files.upsert([{"path": "a", "size": 1, "note": EVIL}, {"path": "b", "size": 2, "note": LONG}])
    files.upsert([{"path": "a", "size": 3, "note": EVIL}])
    files.delete("b")
    files.bucket(0).apply(kvstore.Changes.upserts(pa.RecordBatch.from_pylist([], FILES)), writer_id=7, sequence=0)
    with files.writer("nightly") as writer:
        writer.upsert({"path": "c", "size": 4, "note": None})
    store.create_table('<i>"log"</i>', {"n": "int64"}).upsert([{"n": 1}, {"n": 2}])
    key = pa.schema([pa.field("k", pa.int64(), False), pa.field("kind", pa.string(), False)])
    wide = pa.schema([*key, *(pa.field(f"c{number:03}", pa.int64()) for number in range(100))])
    rows = [{"k": number, "kind": "x'y", **dict.fromkeys(wide.names[2:], number)} for number in range(300)]
    store.create_table("wide", wide, primary_key=["k", "kind"], buckets=2).upsert(rows)
    store.create_table("wal", FILES, primary_key="path", changelog_image="wal").upsert(
        [{"path": "a", "size": 1, "note": None}]
    )
    store.flush()
