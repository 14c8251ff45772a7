"""Jobs whose files Spark reads: rows, counts and what is left out are those of the embedded engine."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import TaskFailed
from kvstore.spark.engine import SparkEngine
from tests.ingest.worlds import BAD, create, outcome, run, write

pytestmark = pytest.mark.spark


def test_both_engines_come_to_the_same(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n in range(5):
        write(tmp_path / "in", f"{n}.csv", n * 6, more=BAD if n % 3 == 1 else "")
    write(tmp_path / "in", "deletes.csv", 100, 0)
    (tmp_path / "in" / "deletes.csv").write_text("k,_change_type,v\n3,delete,\n40,insert,new\n")
    for name in ("embedded", "spark"):
        create(tmp_path / name, tmp_path / "in", max_files=6)
    run(tmp_path / "embedded")
    with kvstore.open(tmp_path / "spark") as store:
        store.job("j").run(engine=SparkEngine(spark))
    found = outcome(tmp_path / "spark")
    assert found == outcome(tmp_path / "embedded")
    assert found["statistics"]["filtered_rows"] == 6
    assert {"k": 40, "v": "new"} in found["rows"]
    assert 3 not in {row["k"] for row in found["rows"]}


def test_what_is_wrong_with_a_file_is_reported_unchanged(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path / "in", "a.csv", 0)
    (tmp_path / "in" / "b.csv").write_text("k,w\n1,2\n")
    create(tmp_path / "s", tmp_path / "in")
    with kvstore.open(tmp_path / "s") as store:
        with pytest.raises(TaskFailed, match="no such column") as failed:
            store.job("j").run(engine=SparkEngine(spark))
        assert failed.value.where["unknown"] == ["w"]
        assert store.job("j").show().state == "paused"
