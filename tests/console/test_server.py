"""``kvstore ui`` serves this machine, says where, and ends when it is interrupted."""

from __future__ import annotations

import json
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from unittest import mock
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, OpenerDirector, Request, build_opener

import pytest

import kvstore
from tests.cli.commands import process, run
from tests.support.processes import Forked


@contextmanager
def ending(served: Forked) -> Iterator[Forked]:
    """A server that ends with the block, also if the block fails."""
    with served:
        try:
            yield served
        finally:
            served.kill()


OPENER = "import webbrowser\nwebbrowser.open = lambda url: print('opened', url, flush=True)"


def test_the_printed_url_opens_the_console_and_changes_are_followed_until_ctrl_c(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k")
        table.upsert([{"k": 1, "v": "before"}])
        store.flush()
        with ending(process("ui", tmp_path / "s", "--port", "0", script=OPENER)) as served:
            assert served.stdout is not None
            assert served.stderr is not None
            url = served.stdout.readline().strip()
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
            assert served.stdout.readline() == f"opened {url}\n"
            browser, root = build_opener(HTTPCookieProcessor()), url.partition("?")[0]
            with browser.open(url) as answer:
                assert b"All is well." in answer.read()
                assert "token" not in answer.url
                assert "server" not in answer.headers
            with browser.open(f"{root}api/tables") as answer:
                assert answer.status == 200
            with pytest.raises(HTTPError, match="401"):
                build_opener().open(Request(root, headers={"Authorization": "Bearer x"}))
            _follow(browser, root, store)
            stream = browser.open(f"{root}tables/1/changes/live")
            served.send_signal(signal.SIGINT)
            stream.read()
            assert (served.wait(), served.stdout.read(), served.stderr.read()) == (0, "", "")


def _follow(browser: OpenerDirector, root: str, store: kvstore.Store) -> None:
    table, place = store.table("t"), "tables/1/changes/live?start=1"
    with browser.open(root + place) as as_html, browser.open(f"{root}api/{place}") as as_json:
        assert as_html.headers["content-type"].startswith("text/event-stream")
        table.upsert([{"k": 1, "v": "line 1\nline 2 <b>"}])
        store.flush()
        first = _event(as_json)
        assert (first["id"], first["event"]) == ("3", "changes")
        ((change,),) = (batch["changes"] for batch in json.loads(first["data"])["batches"])
        values = [change[side]["values"]["v"] for side in ("before", "after")]
        assert values == ["before", "line 1\nline 2 <b>"]
        assert "line 1" in _event(as_html)["data"]
    again = Request(f"{root}api/{place}", headers={"Last-Event-ID": "3"})
    with browser.open(again) as continued:
        table.delete(1)
        store.flush()
        (batch,) = json.loads(_event(continued)["data"])["batches"]
        assert [each["change"] for each in batch["changes"]] == ["delete"]


def _event(stream: IO[bytes]) -> dict[str, str]:
    """The next event that has data."""
    found: dict[str, str] = {}
    while line := stream.readline().decode().rstrip("\n"):
        name, _, value = line.partition(": ")
        found[name] = value
    return found if "data" in found else _event(stream)


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.0.1", "::", "example.org"])
def test_the_console_never_listens_to_other_machines(shown: Path, host: str) -> None:
    done = run("ui", shown, "--host", host)
    assert (done.code, done.out) == (2, "")
    assert "127.0.0.1" in done.err


def test_a_port_in_use_is_an_error_that_says_what_to_do(shown: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        done = run("ui", shown, "--port", other.getsockname()[1])
    assert (done.code, done.out) == (1, "")
    assert "--port" in done.err


def test_without_its_packages_the_command_says_what_to_install(shown: Path) -> None:
    with mock.patch("kvstore.cli.ui.version_of", lambda name: None if name == "uvicorn" else "9.9"):
        done = run("ui", shown)
    assert done.code == 2
    assert "pip install starlette uvicorn" in done.err


def test_a_directory_without_a_store_is_refused(tmp_path: Path) -> None:
    done = run("ui", tmp_path / "nothing")
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert "no store" in done.err
