"""How-to pages and tutorials do what they show; those that need Spark are in tests/spark/test_pages.py."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import pages, s3

RECIPES_MIN = 20


@pytest.mark.parametrize("page", [page for page in pages.PAGES if not pages.needs_spark(page)], ids=pages.name_of)
def test_a_page_does_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(tmp_path)
    if "s3://backups/store" in "".join(content for _, _, content in pages.blocks(page)):
        endpoint = request.getfixturevalue("s3_endpoint")
        for name, value in s3.environment(endpoint).items():
            monkeypatch.setenv(name, value)
        s3.create_bucket(endpoint, "backups")
    pages.run_page(page)


def test_blocks_of_pages_are_run() -> None:
    for page in pages.PAGES:
        languages = {language for language, _, _ in pages.blocks(page)}
        assert languages & {"python", "console"}, page
        assert languages <= {*pages.LANGUAGES}, page


def test_there_are_enough_recipes() -> None:
    assert len(list((pages.DOCS / "how-to").glob("*.md"))) >= RECIPES_MIN


def test_lines_are_not_too_long() -> None:
    for page in [*pages.PAGES, *(pages.DOCS / name for name in ("index.md", "errors.md", "api.md"))]:
        long = [line for line in page.read_text().splitlines() if len(line) > 120 and not line.startswith("|")]
        assert long == [], page
