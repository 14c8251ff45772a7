"""Make a store, and read its changelog into Parquet with Spark Declarative Pipelines; twice, for what comes later.

It needs ``pip install 'pyspark[pipelines]'``: ``python examples/pipeline/run.py``. A run takes half a minute.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyspark

import kvstore
from kvstore.spark.java import find_java

HERE = Path(__file__).parent
SCHEMA = pa.schema([("path", pa.string()), ("size", pa.int64())])


def run(directory: Path) -> None:
    specification = directory / "pipeline"
    if not specification.exists():
        shutil.copytree(HERE, specification)
        text = (HERE / "spark-pipeline.yml").read_text()
        text = text.replace("/tmp/kvstore-pipeline", str(directory / "storage"))
        text = text.replace("/tmp/kvstore-example", str(directory / "store"))
        (specification / "spark-pipeline.yml").write_text(text)
    environment = {**os.environ, "JAVA_HOME": str(find_java()), "PYSPARK_PYTHON": sys.executable}
    command = Path(pyspark.__file__).parent / "bin" / "spark-pipelines"
    # The second run has to find the table that the first one made: a catalog in memory would have forgotten it.
    catalog = "spark.sql.catalogImplementation=hive"
    done = subprocess.run(
        [command, "run", "--conf", catalog, "--spec", specification / "spark-pipeline.yml"],
        cwd=directory,
        env=environment,
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
        files = store.create_table("files", SCHEMA, primary_key="path")
        for size in (1, 2):
            files.upsert([{"path": f"src/{n}", "size": size} for n in range(10)])
            files.flush()
            run(directory)
            (found,) = (directory / "spark-warehouse").rglob("changes")
            changes = pq.read_table(found)
            print(f"{changes.num_rows} changes in {found}")
            # The first run begins with the rows; the second has what was changed since.
            assert changes.num_rows == {1: 10, 2: 30}[size]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary))
