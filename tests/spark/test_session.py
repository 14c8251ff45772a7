"""What `configure` sets, so that workers start fast and a busy machine has time."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import SparkSession

import kvstore
from kvstore.errors import UnsupportedOperation
from kvstore.spark.connector import jar
from kvstore.spark.frames import mapped
from kvstore.spark.session import WORKER_PYTHON, configure
from kvstore.spark.types import spark_schema
from tests.support.spark_tables import SCHEMA

ZIP = Path(pyspark.__file__).parent / "python/lib/pyspark.zip"


class Settings:
    """A builder of sessions that keeps its settings."""

    def __init__(self) -> None:
        self.configured: dict[str, str] = {}
        self._options = self.configured  # its name in a builder

    def config(self, name: str, value: str) -> Settings:
        self.configured[name] = value
        return self


def test_a_python_that_the_environment_names_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/opt/python")
    settings = Settings()
    configure(settings)  # type: ignore[arg-type]
    assert os.environ["PYSPARK_PYTHON"] == "/opt/python"
    assert "spark.executorEnv.KVSTORE_SPARK_PYTHON" not in settings.configured


def test_workers_have_minutes_to_say_their_first_word() -> None:
    settings = Settings()
    configure(settings)  # type: ignore[arg-type]
    assert settings.configured["spark.python.authenticate.socketTimeout"] == "10min"


def test_the_connector_comes_after_the_jars_that_a_session_has(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(jar, "jar_path", lambda: tmp_path / "connector.jar")
    settings = Settings()
    settings.config("spark.jars", "/a.jar,/b.jar")
    configure(settings)  # type: ignore[arg-type]
    assert settings.configured["spark.jars"] == "/a.jar,/b.jar"  # there is none
    assert "spark.sql.extensions" not in settings.configured
    (tmp_path / "connector.jar").touch()
    settings.config("spark.sql.extensions", "a.Extensions")
    for _ in range(2):
        configure(settings)  # type: ignore[arg-type]
        assert settings.configured["spark.jars"] == f"/a.jar,/b.jar,{tmp_path / 'connector.jar'}"
        assert settings.configured["spark.sql.extensions"] == "a.Extensions,kvstore.spark.Extensions"


def test_a_connector_for_another_pyspark_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pyspark, "__version__", "4.3.99")
    settings = Settings()
    configure(settings)  # type: ignore[arg-type]
    assert "spark.jars" not in settings.configured


def test_catalogs_need_the_connector(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings()
    configure(settings, catalogs={"kv": "store", "far": "s3://bucket/path"})  # type: ignore[arg-type]
    assert settings.configured["spark.sql.catalog.kv"] == "kvstore.spark.StoreCatalog"
    assert settings.configured["spark.sql.catalog.kv.path"] == str(tmp_path / "store")
    assert settings.configured["spark.sql.catalog.far.path"] == "s3://bucket/path"
    monkeypatch.setattr(pyspark, "__version__", "4.3.99")
    with pytest.raises(UnsupportedOperation, match=r"(?s)not built for this PySpark.*pyspark=4\.3\.99"):
        configure(settings, catalogs={"kv": "store"})  # type: ignore[arg-type]


def test_what_else_is_on_the_path_of_a_worker_stays(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ZIP), str(tmp_path / "a b"), "*", str(ZIP.with_name("py4j-0-src.zip"))])
    done = subprocess.run(
        [WORKER_PYTHON, "-c", "import os, sys; print(os.environ['PYTHONPATH'], sys.argv[1])", "c  d"],
        env={**os.environ, "PYTHONPATH": path, "KVSTORE_SPARK_PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{tmp_path / 'a b'}:* c  d\n"


@pytest.mark.spark
def test_workers_of_tasks_take_pyspark_from_where_it_is_compiled(spark: SparkSession) -> None:
    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.record_batch([[sys.modules["pyspark.worker"].__file__]], ["file"])

    columns = spark_schema(pa.schema([("file", pa.string())]))
    (row,) = mapped(spark.range(0, 1, 1, 1), run, columns).collect()
    assert row["file"] == str(Path(pyspark.__file__).with_name("worker.py"))


@pytest.mark.spark_more
@pytest.mark.spark
def test_the_worker_of_a_stream_does_too(spark: SparkSession, store: kvstore.Store, tmp_path: Path) -> None:
    store.create_table("t", SCHEMA, "k")
    stream = spark.readStream.format("kvstore_python").options(path=str(store.path), table="t$changelog").load()
    query = stream.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    try:
        driver = spark.sparkContext._gateway.proc.pid
        while not (found := paths_of(driver, "pyspark.sql.streaming.python_streaming_source_runner")):
            assert query.isActive, query.exception()
            time.sleep(0.05)
    finally:
        query.stop()
    assert all(".zip" not in path for path in found)


def paths_of(parent: int, module: str) -> list[str]:
    """`PYTHONPATH` of the children of a process that run a module."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
            environment = (process / "environ").read_bytes().split(b"\0")
            of = int((process / "stat").read_text().rpartition(") ")[2].split()[1])
        except OSError:
            continue  # it has ended, or is another user's
        if of == parent and module.encode() in words and words[0] == sys.executable.encode():
            found += [entry.decode() for entry in environment if entry.startswith(b"PYTHONPATH=")]
    return found


@pytest.mark.spark_more
def test_without_pyspark_the_import_says_what_to_install() -> None:
    program = "import sys; sys.modules['pyspark'] = None; import kvstore.spark"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ModuleNotFoundError: kvstore.spark needs PySpark: install the extra `spark`." in done.stderr
