"""Spark finds the format by itself; the package that tells it imports nothing heavy, and never raises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kvstore
from kvstore.spark import KvStoreSource
from tests.support.spark_tables import SCHEMA

ROOT = Path(__file__).parents[2]


def run(script: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_imports_nothing_heavy() -> None:
    found = run(
        "import pyspark.sql.datasource, sys; before = set(sys.modules)\n"
        "import pyspark_kvstore; print(pyspark_kvstore.DefaultSource.name(), sorted(set(sys.modules) - before))"
    )
    assert found.split(" ", 1) == ["kvstore", "['pyspark_kvstore']\n"]


def test_it_never_raises() -> None:
    without_spark = "import sys; sys.modules['pyspark'] = None\n"
    assert run(without_spark + "import pyspark_kvstore, pyspark_kvstore_python; print('fine')") == "fine\n"


def test_spark_finds_it_and_makes_the_source(store: kvstore.Store) -> None:
    lookup = """
import io, pickle
from pyspark.sql.worker import lookup_data_sources
from pyspark.serializers import read_int, CPickleSerializer
out = io.BytesIO()
lookup_data_sources._main(io.BytesIO(), out)
out.seek(0)
count = read_int(out)
found = {}
for _ in range(count):
    name = out.read(read_int(out)).decode()
    found[name] = CPickleSerializer()._read_with_length(out)
for name in ("kvstore", "kvstore_python"):
    source = found[name]({"path": PATH, "table": "t"})
    print(type(source).__name__, source.schema().simpleString())
"""
    store.create_table("t", SCHEMA, "k")
    found = run(lookup.replace("PATH", repr(str(store.path))))
    assert found == 2 * "KvStoreSource struct<k:bigint,s:string,v:double>\n"
    assert KvStoreSource.name() == "kvstore"
