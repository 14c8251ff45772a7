"""``doctor``, ``alter``, and completion by a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

import kvstore
from kvstore.cli import doctor
from kvstore.kernel import library
from kvstore.memtable import budget
from tests.cli.commands import ROOT, fine, run


def test_doctor_shows_what_is_installed() -> None:
    found = fine("doctor", "--json").lines[0]
    assert (found["ok"], found["kvstore"]) == (True, kvstore.__version__)
    assert {each["name"]: each["version"] for each in found["needed"]}["pyarrow"] == pa.__version__
    assert all(each["ok"] for each in found["needed"])
    shown = fine("doctor").out
    assert re.search(rf"^pyarrow +{re.escape(pa.__version__)} ", shown, re.MULTILINE)
    assert re.search(r"^duckdb .*kvstore sql", shown, re.MULTILINE)


def test_a_store_whose_indexes_are_large_gets_advice_about_memory(tmp_path: Path) -> None:
    """Of 200,000 rows on some 2,000 pages, 500 at a time are merged, if memtables are that small."""
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), primary_key="k")
        table.upsert(pa.table({"k": pa.array(range(200_000), pa.int64())}))
    assert fine("doctor", str(tmp_path / "store"), "--json").lines[0]["advice"] == []
    with mock.patch.multiple(budget, BUCKET_BYTES_MAX=40_000, STORE_BYTES_MAX=40_000):
        (advice,) = fine("doctor", str(tmp_path / "store"), "--json").lines[0]["advice"]
        assert re.search(r"table t writes about 0\.\d\d pages .* memtable_bytes=67108864:", advice)
        assert f"advice: {advice}" in fine("doctor", str(tmp_path / "store")).out


def without(*names: str) -> Callable[[str], str | None]:
    return lambda name: None if name in names else "99.1"


def test_a_missing_optional_part_is_no_failure() -> None:
    with mock.patch.object(doctor, "version_of", without(*doctor.OPTIONAL)):
        found = fine("doctor", "--json").lines[0]
        assert re.search(r"^polars +missing .*to_polars", fine("doctor").out, re.MULTILINE)
    missing = [each for each in found["optional"] if each["name"] in doctor.OPTIONAL]
    assert [(each["version"], each["ok"]) for each in missing] == [(None, False)] * len(doctor.OPTIONAL)
    assert found["ok"]


def test_a_part_that_is_needed_and_too_old_is_a_failure() -> None:
    with mock.patch.object(doctor, "version_of", lambda name: "25.9.1" if name == "pyarrow" else "99.1"):
        done = run("doctor")
        assert done.code == 1
        assert re.search(r"^pyarrow +25.9.1 \(too old\) ", done.out, re.MULTILINE)
        assert "wrong: pyarrow is missing or too old; install it with: pip install 'pyarrow>=26.0'\n" in done.out
        assert not run("doctor", "--json").lines[0]["ok"]


def test_doctor_says_whether_the_native_kernel_is_used() -> None:
    (used,) = [each for each in fine("doctor", "--json").lines[0]["optional"] if each["name"] == "native kernel"]
    assert used["version"] == (str(library.library_path()) if library.kernel() else None)
    with library.switched_off():
        assert re.search(
            r"^native kernel +missing .*`python -m kvstore.kernel.build`", fine("doctor").out, re.MULTILINE
        )


def test_doctor_works_without_spark() -> None:
    with mock.patch.object(doctor, "find_spec", return_value=None):
        assert "java" not in fine("doctor").out


def test_doctor_needs_what_the_package_needs() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def oldest(requirements: list[str]) -> dict[str, str]:
        found = [re.match(r"([\w-]+)>=([\d.]+)", each) for each in requirements]
        return {each[1]: each[2] for each in found if each}

    assert oldest(project["dependencies"]) == doctor.REQUIRED
    assert project["requires-python"] == f">={doctor.PYTHON_MIN}"
    extras = oldest(
        [each for name in ("pandas", "polars", "sql", "spark", "ui", "roaring") for each in _extra(project, name)]
    )
    assert extras == {name: version for name, (version, _) in doctor.OPTIONAL.items()}


def _extra(project: dict[str, dict[str, list[str]]], name: str) -> list[str]:
    return project["optional-dependencies"][name]


# alter


@pytest.fixture
def store(tmp_path: Path) -> Path:
    with kvstore.open(tmp_path / "store") as store:
        for name in ("files", "fields"):
            store.create_table(name, pa.schema({"k": pa.string()}), primary_key="k").upsert({"k": "a"})
    return tmp_path / "store"


def test_columns_are_added(store: Path) -> None:
    fine("alter", store, "files", "--add", "n:int64", "--add", "a b:timestamp[us, tz=UTC]")
    assert fine("scan", store, "files", "--json").lines == [{"k": "a", "n": None, "a b": None}]


def test_columns_are_dropped_renamed_and_added_in_this_order(store: Path) -> None:
    fine("alter", store, "files", "--add", "n:int64", "--add", "s:string")
    fine("upsert", store, "files", "-", given='{"k": "a", "n": 5, "s": "x"}')
    fine(
        "alter",
        store,
        "files",
        "--rename-column",
        "n:s",
        "--rename-column",
        "k:key",
        "--drop",
        "s",
        "--add",
        "n:date32",
    )
    assert fine("scan", store, "files", "--json").lines == [{"key": "a", "s": 5, "n": None}]
    assert [each["name"] for each in fine("describe", store, "files", "--json").lines[0]["columns"]] == [
        "key",
        "s",
        "n",
    ]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("--drop", "old", "--index", "by_z:zz"), "no such column"),
        (("--drop", "old", "--index", "by_old:old"), "drop_index()"),
        (("--drop", "old", "--drop-index", "none"), "no such index"),
        (("--drop", "old", "--drop", "old"), "only once"),
        (("--drop", "old", "--rename", "fields"), "There is a table of that name"),
        (("--drop", "old", "--retention-days", "1e-12"), "millisecond"),
        (("--drop-index", "by_size", "--index", "by_size:old,nope"), "no such column"),
        (("--rename-column", "size:bytes", "--compression", "foo"), "lz4"),
        (("--rename-column", "size:bytes", "--index", "other:size"), "no such column"),
        (("--add", "x:int64", "--rename", ""), "name"),
        (("--add", "x:int64", "--add", "x:string"), "x"),
        (("--add", "x:int64", "--index", "by_x:x", "--index", "by_x:x"), "index of that name"),
        (("--index", "by_x:k", "--delete-behavior", "never"), "allow"),
    ],
)
def test_nothing_is_changed_if_one_change_is_not_possible(
    tmp_path: Path, arguments: tuple[str, ...], word: str
) -> None:
    with kvstore.open(tmp_path / "wide") as opened:
        columns = pa.schema({"k": pa.string(), "size": pa.int64(), "old": pa.string()})
        opened.create_table("files", columns, primary_key="k", indexes={"by_size": "size"})
        opened.create_table("fields", columns, primary_key="k")
    before = fine("describe", tmp_path / "wide", "files", "--json").lines
    done = run("alter", tmp_path / "wide", "files", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert word in done.err
    assert "done" not in done.err
    assert fine("describe", tmp_path / "wide", "files", "--json").lines == before


def test_values_that_are_not_unique_cost_no_column_and_the_error_says_what_is_done(store: Path) -> None:
    fine("alter", store, "files", "--add", "n:int64", "--add", "s:string")
    fine("upsert", store, "files", "-", given='{"k": "a", "n": 5, "s": "x"}\n{"k": "b", "n": 5, "s": "y"}')
    arguments = ("--drop", "s", "--add", "more:int64", "--unique-index", "one:n", "--rename", "paths")
    done = run("alter", store, "files", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "done=['--add']" in done.err
    assert "s" in fine("scan", store, "files", "--json").lines[0]
    fine("alter", store, "files", "--drop", "s", "--index", "one:n", "--rename", "paths")
    assert fine("scan", store, "paths", "--json").lines == [
        {"k": "a", "n": 5, "more": None},
        {"k": "b", "n": 5, "more": None},
    ]


def test_options_and_the_name_are_changed(store: Path) -> None:
    fine("alter", store, "files", "--retention-days", 1.5, "--compression", "none", "--rename", "paths")
    fine("alter", store, "paths", "--delete-behavior", "ignore")
    with kvstore.open(store) as opened:
        assert opened.list_tables() == ["fields", "paths"]
        options = opened["paths"].options
        assert (options.retention_ms, options.compression) == (129_600_000, None)
        assert options.delete_behavior == "ignore"
    fine("alter", store, "paths", "--retention-days", 0)
    with kvstore.open(store) as opened:
        assert opened["paths"].options.retention_ms is None


def test_indexes_are_added_shown_and_dropped(store: Path) -> None:
    fine("alter", store, "files", "--add", "n:int64", "--index", "by n:n,k", "--unique-index", "one:n")
    assert fine("describe", store, "files", "--json").lines[0]["indexes"] == {"by n": ["n", "k"], "one": ["n"]}
    assert "index by n" in fine("describe", store, "files").out
    assert run("upsert", store, "files", "-", given='{"k": "b", "n": 5}\n{"k": "c", "n": 5}').code == 2
    fine("alter", store, "files", "--drop-index", "one", "--drop-index", "by n", "--drop", "n")
    assert "indexes" not in fine("describe", store, "files", "--json").lines[0]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("files",), "--add"),
        (("files", "--index", "k"), "NAME:COLUMNS"),
        (("files", "--drop-index", "k"), "no such index"),
        (("files", "--rename", "fields"), "There is a table of that name"),
        (("files", "--compression", "gzip"), "lz4"),
        (("files", "--delete-behavior", "never"), "ignore"),
        (("files", "--add", "n:int"), "Did you mean `int64`?"),
        (("files", "--add", "n"), "NAME:TYPE"),
        (("files", "--add", "n:int64", "--add", "k:int64"), "k"),
        (("files", "--add", "n:int64 not null"), "null"),
        (("nope", "--add", "n:int64"), "no such table"),
        (("files", "--drop", "k"), "the key"),
        (("files", "--drop", "n"), "no such column"),
        (("files", "--rename-column", "k"), "OLD:NEW"),
        (("files", "--rename-column", "k:a:b"), "OLD:NEW"),
        (("files", "--rename-column", "k:a", "--rename-column", "k:b"), "one new name"),
        (("files", "--rename-column", "n:m"), "no such column"),
    ],
)
def test_wrong_columns_are_not_added(store: Path, arguments: tuple[str, ...], word: str) -> None:
    done = run("alter", store, *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert word in done.err
    assert fine("scan", store, "files", "--json").lines == [{"k": "a"}]


# Completion


def completed(*words: object) -> list[str]:
    """What bash offers for the last word."""
    environment = {
        "_KVSTORE_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(map(str, ("kvstore", *words))),
        "COMP_CWORD": str(len(words)),
    }
    command = Path(sys.executable).with_name("kvstore")
    done = subprocess.run(
        [command],
        env={**os.environ, **environment, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def test_commands_and_tables_are_completed(store: Path) -> None:
    assert completed("scan", store, "fi") == ["fields", "files"]
    assert completed("scan", store / "nothing", "fi") == []


def test_the_script_of_a_shell_is_printed() -> None:
    command = Path(sys.executable).with_name("kvstore")
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [command, "--show-completion", "zsh"], env=environment, capture_output=True, text=True, check=True
    )
    assert "#compdef kvstore" in done.stdout
