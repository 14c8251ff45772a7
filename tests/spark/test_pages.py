"""How-to pages and tutorials for Spark do what they show."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.support import pages

FOR_SPARK = [page for page in pages.PAGES if pages.needs_spark(page)]


@pytest.mark.spark
@pytest.mark.long  # each takes some ten seconds of CPU time
@pytest.mark.parametrize("page", FOR_SPARK, ids=map(pages.name_of, FOR_SPARK))
def test_a_page_does_what_it_shows(
    page: Path, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KVSTORE_CACHE_DIR", str(tmp_path / "cache"))
    pages.run_page(page)
