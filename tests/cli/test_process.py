"""What only shows in a process of its own: pipes, signals, exit codes, nothing imported without need."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from tests.cli.commands import ROOT, spawned


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing here writes it."""
    path = tmp_path_factory.mktemp("process") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False), ("é", pa.string())]), "k")
        table.upsert(pa.table({"k": range(30_000), "é": ["é"] * 30_000}))
    return path


@pytest.mark.parametrize("arguments", [("scan",), pytest.param(("changelog", "--json"), marks=pytest.mark.long)])
def test_a_reader_that_closes_the_pipe_ends_it_in_silence(store: Path, arguments: tuple[str, ...]) -> None:
    command, *options = arguments
    with spawned(command, store, "t", *options) as running:
        assert running.stdout is not None
        assert running.stderr is not None
        assert running.stdout.readline()
        running.stdout.close()
        assert running.stderr.read() == ""
    assert running.returncode == 0


def test_the_installed_command_is_the_same(store: Path) -> None:
    command = Path(sys.executable).with_name("kvstore")
    environment = {"LC_ALL": "C", "PYTHONPATH": str(ROOT), "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([command, *map(str, arguments)], capture_output=True, env=environment, check=False)

    assert run("get", store, "t", 7).stdout == "k  7\né  é\n".encode()
    assert run("get", store, "nope", 7).returncode == 2


def test_an_interrupt_during_the_imports_is_one_line() -> None:
    code = """
import os, signal, sys, kvstore_command
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has what it runs in the background ignore it
class Interrupted:
    def find_spec(self, name, path=None, target=None):
        if name == "kvstore":
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupted())
kvstore_command.main()"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "kvstore: interrupted\n")


def test_commands_import_nothing_that_takes_long() -> None:
    code = (
        "import sys, kvstore, kvstore.cli.main; from pyarrow import compute, parquet;"
        " sys.exit({'pyspark', 'pandas', 'polars', 'duckdb'} & sys.modules.keys() != set())"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
