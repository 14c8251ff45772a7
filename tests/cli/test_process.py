"""What only shows in a process of its own: pipes, signals, exit codes, nothing imported without need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from tests.cli.commands import ROOT, fine, spawned


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


def shell(line: str, *arguments: object, **variables: str) -> subprocess.CompletedProcess[str]:
    """A line of a shell, where ``kv`` is the command."""
    kv = f'kv() {{ "{sys.executable}" -m kvstore "$@"; }}\n'
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    given = ["sh", "-c", kv + line, "sh", *map(str, arguments)]
    return subprocess.run(given, capture_output=True, env=environment, text=True, check=False)


@pytest.mark.parametrize(
    "command", ["tables", "tables --json", "scan {t}", "get {t} 7", "describe {t}", "export {t} --format csv"]
)
def test_a_full_standard_output_is_one_line(store: Path, command: str) -> None:
    name, _, rest = command.partition(" ")
    done = shell(f'kv {name} "$1" {rest.format(t="t")} > /dev/full', store)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("kvstore: No space on the disk")
    assert "standard output" in done.stderr


def test_what_the_system_refuses_besides_is_one_line(tmp_path: Path) -> None:
    fine("init", tmp_path / "s")
    fine("create", tmp_path / "s", "t", "--column", "k:int64", "--key", "k")
    fine("upsert", tmp_path / "s", "t", given='{"k": 1}')
    for segment in (tmp_path / "s").glob("tables/*/*/log/*.log"):
        segment.with_suffix(".index").unlink(missing_ok=True)
        segment.with_suffix(".index").mkdir()
    for line, said in (
        ("kv --help > /dev/full", "kvstore: No space left on device.\n"),
        ('kv export "$1" t --changelog --format csv > /dev/null', "kvstore: "),
    ):
        done = shell(line, tmp_path / "s")
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert done.stderr.startswith(said)


def test_streams_that_are_closed_are_empty(store: Path, tmp_path: Path) -> None:
    kvstore.open(tmp_path / "s").create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), "k")
    for line, code in (
        ('kv tables "$1" >&-', 0),
        ('kv get "$1" t 7 >&- 2>&-', 0),
        ('kv tables "$1"/nowhere >&- 2>&-', 2),
        ('kv upsert "$2" t <&-', 0),
        ('kv upsert "$2" t <&- >&- 2>&-', 0),
    ):
        done = shell(line, store, tmp_path / "s")
        assert (done.returncode, done.stderr) == (code, ""), line


def test_what_is_explained_is_utf_8_in_every_locale(tmp_path: Path) -> None:
    fine("init", tmp_path / "s")
    fine("create", tmp_path / "s", "t", "--column", "k:int64", "--column", "é:string", "--key", "k")
    fine("alter", tmp_path / "s", "t", "--index", "é:é")
    done = shell("""kv explain "$1" t --where "é = 'x'" """, tmp_path / "s", PYTHONIOENCODING="ascii", PYTHONUTF8="1")
    assert done.returncode == 0, done.stderr
    assert "é" in done.stdout
