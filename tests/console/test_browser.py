"""Pages in headless Chromium: no error, no request elsewhere, keys, slider, undo, a changelog that is followed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest

import kvstore
from tests.cli.commands import process
from tests.console.browser import EVIL, asking, fill
from tests.console.chromium import Browser, browsing, chromium
from tests.console.demo_store import build
from tests.support.calls_made import calls_made

pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(chromium() is None, reason="pages in a browser need Chromium: apt-get install chromium"),
]

PAGES = [
    "/",
    "/?q=files",
    "/consumers",
    "/replicas",
    "/replicas/replica?name=backup",
    "/replicas/replica?name=backup&stream=tables/1/0",
    "/jobs",
    "/jobs/job?name=invoices%20import",
    "/catalog",
    "/catalog/edit?txid=1",
    "/tables/1",
    "/tables/1/rows",
    "/tables/1/rows?as_of=1000",
    "/tables/1/rows?where=size > 100",
    "/tables/1/changes",
    "/tables/1/changes?kind=delete&writer=git replay",
    "/tables/1/batch?offset=5",
    "/tables/1/history?key=core/part 1.py",
    "/tables/1/writers",
    "/tables/1/undo?start=earliest&writer=formatter",
    "/tables/1/log",
    "/tables/5/changes",
    "/nothing",
]
CALLS_MAX = 1_000_000
"""Calls of functions for one page: a quarter of a second or so."""


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("demo"), 1_795_000_000_000)


@contextmanager
def opened(store: Path, profile: Path) -> Iterator[tuple[Browser, str]]:
    """A browser in which the console of a store is open, and the console's address without a slash."""
    with process("ui", store, "--port", "0", "--no-browser") as served:
        assert served.stdout is not None
        url = served.stdout.readline().strip()
        try:
            with browsing(profile) as browser:
                browser.open(url)
                yield browser, url.partition("/?")[0]
        finally:
            served.terminate()


@pytest.fixture(scope="module")
def shown(demo: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    with opened(demo, tmp_path_factory.mktemp("profile")) as found:
        yield found


LABELS = """[...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
    .filter((field) => !field.labels.length && !field.getAttribute("aria-label")).map((field) => field.outerHTML)"""
UNNAMED = """[...document.querySelectorAll("a, button, svg, [role=region]")].filter((each) =>
    !each.textContent.trim() && !each.getAttribute("aria-label")).map((each) => each.outerHTML)"""
CONTRASTS = """(() => {
  const part = (value) => { const c = value / 255; return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4; };
  const light = ([r, g, b]) => 0.2126 * part(r) + 0.7152 * part(g) + 0.0722 * part(b);
  const numbers = (color) => color.match(/[\\d.]+/g).map(Number);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const color = numbers(getComputedStyle(at).backgroundColor);
      if (color.length === 3 || color[3] > 0) { return color; }
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (!own || element.closest("[aria-disabled], svg, [hidden], caption, .skip")) { continue; }
    const [one, other] = [numbers(getComputedStyle(element).color), ground(element)].map(light);
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) { found.push(`${element.outerHTML.slice(0, 100)} ${ratio}`); }
  }
  return found;
})()"""


def test_every_page_opens_without_an_error_and_asks_only_its_own_server(shown: tuple[Browser, str]) -> None:
    browser, root = shown
    for path in PAGES:
        browser.open(root + quote(path, safe="/?=&%"))
        assert browser.run("document.querySelector('h1').textContent"), path
        expected = ["404"] if path == "/nothing" else []
        assert len([each for each in browser.errors if not any(word in each for word in expected)]) == 0, browser.errors
        assert {each.startswith(f"{root}/") for each in browser.requests} == {True}, browser.requests
        assert browser.run("getComputedStyle(document.querySelector('nav')).display") == "flex"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_field_has_a_label_every_picture_words_and_every_text_contrast(
    shown: tuple[Browser, str], scheme: str
) -> None:
    browser, root = shown
    browser.prefer(prefers_color_scheme=scheme)
    grounds = set()
    for path in PAGES:
        browser.open(root + quote(path, safe="/?=&%"))
        assert (browser.run(LABELS), browser.run(UNNAMED), browser.run(CONTRASTS)) == ([], [], []), path
        grounds.add(browser.run("getComputedStyle(document.body).backgroundColor"))
    assert grounds == {"rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 25, 30)"}
    browser.prefer(prefers_color_scheme="light")


def test_no_page_is_wider_than_the_window(shown: tuple[Browser, str]) -> None:
    browser, root = shown
    for width in (400, 1280):
        browser.size(width, 800)
        for path in PAGES:
            browser.open(root + quote(path, safe="/?=&%"))
            assert browser.run("document.documentElement.scrollWidth") <= width, path
    browser.size(1280, 900)


def test_pages_say_the_same_without_javascript(shown: tuple[Browser, str]) -> None:
    browser, root = shown
    text = "document.querySelector('main').innerText.replace(/Follow/, '').trim()"
    for path in PAGES:
        texts = []
        for on in (True, False):
            browser.scripts(on=on)
            browser.open(root + quote(path, safe="/?=&%"))
            browser.scripts(on=True)
            texts.append(browser.run(text))
        assert texts[0] == texts[1], path


def test_keys_lead_to_the_search_field_the_rows_and_the_help(shown: tuple[Browser, str]) -> None:
    browser, root = shown
    browser.open(f"{root}/")
    browser.press("/")
    assert browser.run("document.activeElement.name") == "q"
    browser.press("j")
    assert browser.run("document.activeElement.value") == "j"
    browser.run("document.activeElement.blur()")
    for key in "jjk":
        browser.press(key)
    assert browser.run("document.activeElement.querySelector('a').textContent") == "clicks"
    browser.press("?")
    assert browser.run("document.getElementById('keys').open")
    browser.press("Enter", opens=True)
    assert browser.run("location.pathname") == "/tables/5"
    browser.press("g", opens=True)
    assert browser.run("location.pathname") == "/"


def test_the_sliders_show_the_rows_of_an_earlier_offset_and_time(shown: tuple[Browser, str]) -> None:
    browser, root = shown
    browser.open(f"{root}/tables/1/rows")
    now = browser.run("document.querySelector('.note').textContent")
    browser.run("slider = document.querySelector('input[type=range]'); slider.value = 3; 1")
    browser.run("slider.dispatchEvent(new Event('input')); 1")
    assert browser.run("document.querySelector('.slider output').textContent") == "3"
    browser.follow("slider.dispatchEvent(new Event('change')); 1")
    assert "As of offset 3" in browser.run("document.querySelector('.note').textContent")
    assert browser.run("document.querySelectorAll('main tbody tr').length") == 3
    assert "As of now" in now
    browser.run("slider = document.querySelector('#as-of-time'); slider.value = slider.min; 1")
    browser.run("slider.dispatchEvent(new Event('input')); 1")
    text = browser.run("slider.form.querySelector('output').textContent")
    assert text == browser.run("new Date(Number(slider.min)).toISOString()")
    browser.follow("slider.dispatchEvent(new Event('change')); 1")
    assert browser.run("document.querySelectorAll('main tbody tr').length") == 0
    assert text in browser.run("Array.from(document.querySelectorAll('input')).map((each) => each.value)")


def test_an_update_is_a_diff_and_an_undo_shows_its_preview(shown: tuple[Browser, str]) -> None:
    browser, root = shown
    browser.open(f"{root}/tables/1/changes?writer=formatter")
    assert browser.run("document.querySelectorAll('.change.update .diff .before').length") > 3
    browser.follow("document.querySelector('.about a').click()")
    assert browser.run("location.pathname") == "/tables/1/undo"
    assert "emptied by mistake" in browser.run("document.querySelector('.change .before').closest('table').innerText")
    code = browser.run("[...document.querySelectorAll('.commands code')].map((each) => each.textContent)")
    assert [each.split()[1] for each in code] == ["undo", "apply"]


def test_a_changelog_is_followed_and_paused_while_a_writer_writes(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        table = store.create_table("t", {"k": "int64", "v": "string"}, primary_key="k")
        table.upsert([{"k": 0, "v": "old"}])
        store.flush()
        with opened(tmp_path / "s", tmp_path / "profile") as (browser, root):
            browser.open(f"{root}/tables/1/changes")
            browser.press("f")
            assert browser.until("document.querySelector('.live output').textContent.includes('Waiting')")
            for number in range(1, 4):
                table.upsert([{"k": number, "v": EVIL}])
                store.flush()
                count = "document.querySelectorAll('.arrivals article.change').length"
                assert browser.until(f"{count} === {number}")
            shown = browser.run("document.querySelector('.arrivals').innerText")
            assert "<b onclick" in shown
            assert browser.run("document.querySelectorAll('.arrivals b').length") == 0
            browser.press("f")
            assert browser.run("document.querySelector('.live button').getAttribute('aria-pressed')") == "false"
            table.upsert([{"k": 9, "v": "paused"}])
            store.flush()
            browser.press("f")
            assert browser.until(f"{count} === 4")
            assert len(set(browser.run("[...document.querySelectorAll('.arrivals h2')].map((e) => e.innerText)"))) == 4
            assert browser.errors == []


def test_hostile_names_and_values_run_nothing(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        fill(store)
        script = '"><script>document.title = "taken"</script><img src=x onerror="document.title=\'taken\'">'
        table = store.create_table(script[:200], {script: "string", "v": "string"}, primary_key=script)
        table.upsert([{script: script, "v": script}])
        table.upsert([{script: script, "v": EVIL}])
    with opened(tmp_path / "s", tmp_path / "profile") as (browser, root):
        pages = ["/", "/tables/5", "/tables/5/rows", "/tables/5/changes", "/tables/1/rows", "/tables/5/undo?start=0"]
        for path in (*pages, f"/tables/5/history?key={quote(script)}", f"/?q={quote(script)}"):
            browser.open(root + path)
            assert browser.run("document.title") != "taken"
            assert browser.run("document.querySelectorAll('main img, main script').length") == 0
            assert browser.errors == []


def calls_for_a_page(store: Path, path: str) -> int:
    """Calls of functions that a page takes which is not the first: what it needs is open."""

    def get(times: int) -> None:
        with asking(store) as client:
            for _ in range(times):
                client.get(path)

    return calls_made(lambda: get(2)) - calls_made(lambda: get(1))


def test_many_tables_and_columns_and_a_long_value_stay_usable(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "s") as store:
        fill(store)
        for number in range(1_000):
            store.create_table(f"table {number:04}", {"k": "int64"}, primary_key="k").upsert({"k": number})
        store.add_replica(str(tmp_path / "r"), "r").ship()
    paths = ["/", "/?page=12", "/api/tables/1", "/tables/3", "/tables/3/rows", "/tables/3/changes", "/tables/1/changes",
             "/consumers", "/tables/1/undo?start=6", "/metrics", "/replicas", "/replicas/replica?name=r"]  # fmt: skip
    with asking(tmp_path / "s") as client:
        for path in paths:
            answer = client.get(path)
            assert answer.status_code == 200
            assert len(answer.content) < 1 << 20
    for path in paths:
        assert calls_for_a_page(tmp_path / "s", path) < CALLS_MAX, path
    with opened(tmp_path / "s", tmp_path / "profile") as (browser, root):
        for path in ("/", "/tables/3/rows?" + "&".join(f"column=c{number:03}" for number in range(100))):
            browser.open(root + path)
            assert browser.errors == []
            assert browser.run("document.documentElement.scrollWidth") <= 1280


@pytest.mark.parametrize("path", PAGES)
def test_a_page_takes_little_of_the_server(demo: Path, path: str) -> None:
    assert calls_for_a_page(demo, path) < CALLS_MAX // 3


def test_the_browser_reports_what_goes_wrong(shown: tuple[Browser, str]) -> None:
    """Otherwise no test here would see an error."""
    browser, root = shown
    browser.open(f"{root}/")
    browser.run("console.error('planted')")
    assert browser.run("fetch('http://127.0.0.2:1/').catch(() => 1)") == 1
    assert any("planted" in each for each in browser.errors)
    assert any("Content Security Policy" in each for each in browser.errors)
