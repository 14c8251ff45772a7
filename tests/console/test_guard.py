"""Only the token opens the console, only at its own address, and only for reading."""

from __future__ import annotations

from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.console.browser import HOST, TOKEN, asking, page

PATHS = ["/", "/api/overview", "/tables/1", "/tables/1/rows", "/metrics", "/assets/console.css", "/nothing"]


@pytest.fixture(scope="module")
def stranger(shown: Path) -> TestClient:
    with asking(shown) as client:
        del client.headers["Authorization"]
        yield client


@pytest.mark.parametrize("path", PATHS)
def test_nothing_is_shown_without_the_token(stranger: TestClient, path: str) -> None:
    for given in (
        {},
        {"Authorization": "Bearer no"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": "kvstore-8765="},
        {"Cookie": f"kvstore-1={TOKEN}"},
        {"Cookie": b"kvstore-8765=\xe9"},
    ):
        answer = stranger.get(path, headers=given)
        assert (answer.status_code, "set-cookie" in answer.headers) == (401, False)
        assert "kvstore ui" in answer.text
    assert stranger.get(f"{path}?token={TOKEN}x").status_code == 401


@pytest.mark.parametrize("path", PATHS)
def test_another_name_for_this_machine_is_refused(client: TestClient, path: str) -> None:
    for host in ("evil.example", "127.0.0.1", "127.0.0.1:80", f"{HOST}.evil.example", ""):
        assert client.get(path, headers={"Host": host}).status_code == 403


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_the_console_takes_no_request_that_writes(client: TestClient, method: str) -> None:
    for path in PATHS:
        answer = client.request(method, path, headers={"Origin": "https://evil.example"})
        assert (answer.status_code, answer.headers["allow"]) == (405, "GET, HEAD")


def test_the_url_that_is_printed_becomes_a_cookie_that_scripts_and_other_sites_do_not_get(stranger: TestClient) -> None:
    answer = stranger.get(f"/tables/1/rows?token={TOKEN}&key=a%26b")
    assert (answer.status_code, answer.headers["location"]) == (303, "/tables/1/rows?key=a%26b")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"kvstore-8765={TOKEN};")
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    stranger.cookies.clear()
    page_of_cookie = stranger.get("/", headers={"Cookie": f"other=1; kvstore-8765={TOKEN}"})
    assert page_of_cookie.status_code == 200


def test_the_token_leads_to_no_other_host(stranger: TestClient) -> None:
    answer = stranger.get(f"http://{HOST}//evil.example/x?token={TOKEN}")
    stranger.cookies.clear()
    assert answer.headers["location"] == "/evil.example/x"


@pytest.mark.parametrize("path", [*PATHS, "/api/nothing"])
def test_every_answer_keeps_browsers_from_loading_or_running_anything_else(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self';")
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/", "/tables/1", "/tables/1/rows", "/tables/1/changes", "/tables/1/history?key=a"])
def test_pages_load_only_their_own_files_and_have_no_inline_script_or_style(client: TestClient, path: str) -> None:
    html = page(client, path)
    loaded = html.all("script", "src") + html.all("link", "href")
    assert loaded
    assert all(client.get(each).status_code == 200 and each.startswith("/assets/") for each in loaded)
    assert all(each.startswith("/") for each in html.all("a", "href") if not each.startswith("#"))
    names = {name for _, attributes in html.elements for name in attributes}
    assert not [name for name in names if name == "style" or name.startswith("on")]
    assert len(html.all("script", "src")) == sum(tag == "script" for tag, _ in html.elements)
    assert not [tag for tag, _ in html.elements if tag == "style"]
