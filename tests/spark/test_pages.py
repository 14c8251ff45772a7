"""How-to pages and tutorials for Spark do what they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support import pages


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in pages.PAGES if pages.needs_spark(page)], ids=pages.name_of)
def test_a_page_does_what_it_shows(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pages.run_page(page)
