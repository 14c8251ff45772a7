"""Read CHANGES of a table and merge them into a second one with Spark Declarative Pipelines; three times, as they come.

It needs ``pip install 'pyspark[pipelines]'`` and the connector: ``python examples/pipeline_merge/run.py``. A run takes
half a minute.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyspark

import kvstore
from kvstore.spark.connector.jar import jar_path
from kvstore.spark.java import find_java

HERE = Path(__file__).parent
SCHEMA = pa.schema([pa.field("path", pa.string(), False), pa.field("size", pa.int64())])


def run(directory: Path) -> None:
    specification = directory / "pipeline"
    if not specification.exists():
        shutil.copytree(HERE, specification)
        text = (HERE / "spark-pipeline.yml").read_text()
        text = text.replace("/tmp/kvstore-pipeline", str(directory / "storage"))
        text = text.replace("/tmp/kvstore-example", str(directory / "store"))
        (specification / "spark-pipeline.yml").write_text(text)
    settings = {
        # Pipelines load catalogs before `spark.jars`.
        "spark.driver.extraClassPath": jar_path(),
        "spark.sql.catalog.kv": "kvstore.spark.StoreCatalog",
        "spark.sql.catalog.kv.path": directory / "store",
        # Pipelines connect to Spark by gRPC on this machine only.
        "spark.driver.host": "127.0.0.1",
    }
    command: list[object] = [Path(pyspark.__file__).parent / "bin" / "spark-pipelines", "run"]
    for name, value in settings.items():
        command += ["--conf", f"{name}={value}"]
    done = subprocess.run(
        [*map(str, command), "--spec", str(specification / "spark-pipeline.yml")],
        cwd=directory,
        env={**os.environ, "JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": sys.executable},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    # Spark 4.3 stumbles over what Python workers report once the run is over, and ends with 1 all the same.
    if "Run is COMPLETED" not in done.stdout:
        sys.exit(done.stdout)


def main(directory: Path) -> None:
    with kvstore.open(directory / "store") as store:
        files = store.create_table("files", SCHEMA, primary_key="path", buckets=2)
        large = store.create_table("large_files", SCHEMA, primary_key="path")
        for sizes in ({"a": 1, "b": 20, "c": 30}, {"a": 40, "b": 2, "d": 5}):
            files.upsert([{"path": path, "size": size} for path, size in sizes.items()])
            files.flush()
            run(directory)
            found = {row["path"]: row["size"] for row in large}
            print(f"large files: {found}")
            assert found == {row["path"]: row["size"] for row in files if row["size"] > 10}
        files.delete(["c"])
        files.flush()
        run(directory)
        assert [row["path"] for row in large] == ["a"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
