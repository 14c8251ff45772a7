"""``kvstore ui`` serves this machine, says where, and ends when it is interrupted."""

from __future__ import annotations

import re
import signal
import socket
from pathlib import Path
from unittest import mock
from urllib.error import HTTPError
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from tests.cli.commands import process, run

OPENER = "import webbrowser\nwebbrowser.open = lambda url: print('opened', url, flush=True)"


def test_the_printed_url_opens_the_console_until_ctrl_c(shown: Path) -> None:
    with process("ui", shown, "--port", "0", script=OPENER) as served:
        assert served.stdout is not None
        url = served.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{32}", url)
        assert served.stdout.readline() == f"opened {url}\n"
        browser = build_opener(HTTPCookieProcessor())
        with browser.open(url) as answer:
            assert b"All is well." in answer.read()
            assert "token" not in answer.url
            assert "server" not in answer.headers
        with browser.open(url.partition("?")[0] + "api/tables") as answer:
            assert answer.status == 200
        with pytest.raises(HTTPError, match="401"):
            build_opener().open(Request(url.partition("?")[0], headers={"Authorization": "Bearer x"}))
        served.send_signal(signal.SIGINT)
        assert (served.wait(), served.stdout.read()) == (0, "")


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
