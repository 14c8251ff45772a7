"""What a terminal shows beside the output: progress bars and colours; and that nothing of it is elsewhere."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest
from rich.console import Console

import kvstore
from kvstore.cli import printing
from kvstore.cli.progress import Bar
from tests.cli.commands import fine, run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with a replica next to it."""
    path = tmp_path_factory.mktemp("look") / "store"
    with kvstore.open(path) as store:
        table = store.create_table("files", pa.schema({"k": pa.string(), "n": pa.int64()}), primary_key="k", buckets=2)
        table.upsert([{"k": f"key {n}", "n": n} for n in range(100)])
        store.flush()
        store.add_replica(str(path.with_name("replica")), "r").ship()
    return path


@contextmanager
def terminal() -> Iterator[io.StringIO]:
    """Standard error is a terminal, whose text is given."""
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    with (
        mock.patch("kvstore.cli.progress.Console", return_value=console),
        mock.patch("kvstore.cli.progress.is_terminal", return_value=True),
    ):
        yield shown


def arguments_of(command: str, store: Path, tmp_path: Path) -> list[object]:
    match command:
        case "check":
            return ["check", store]
        case "repair":
            return ["check", store, "--repair"]
        case "upsert":
            (tmp_path / "f.csv").write_text("k,n\nkey 1,1\n")
            return ["upsert", store, "files", tmp_path / "f.csv"]
        case "restore":
            return ["replica", "restore", store.with_name("replica"), tmp_path / "restored"]
        case _:
            return ["export", store, "files", "--to", tmp_path / "f.csv"]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("check", ("store", "100%")),
        ("repair", ("store", "files/1", "67%")),
        ("upsert", ("files", "1 rows")),
        ("restore", ("restored",)),
        ("export", ("files", "100%")),
    ],
)
def test_a_bar_is_on_a_terminal_only(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: tuple[str, ...]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    elsewhere = fine(*arguments_of(command, store, tmp_path))
    assert "\x1b" not in elsewhere.out + elsewhere.err
    assert "100%" not in elsewhere.err
    (tmp_path / "again").mkdir()
    with terminal() as shown:
        done = fine(*arguments_of(command, store, tmp_path / "again"))
    for word in words:
        assert word in shown.getvalue()
    assert done.out == elsewhere.out


def test_a_bar_has_a_rate() -> None:
    with terminal() as shown, Bar("[red]", "rows", 2_000_000) as bar:
        bar.to(0)
        bar.add(1_000_000)
        bar.to(2_000_000)
        bar.say("\x1b[31m")
    assert "[red]" in shown.getvalue()
    assert re.search(r"[\d,]+ rows/s", shown.getvalue())
    assert "\x1b[31m" not in shown.getvalue().replace("\\x1b", "")


def test_the_progress_of_a_check_adds_up(store: Path) -> None:
    seen: list[tuple[int, int]] = []
    with kvstore.open(store, read_only=True) as opened:
        assert opened.check(lambda done, total: seen.append((done, total)))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len({total for _, total in seen}) == 1
    assert seen[-1][0] == seen[-1][1] > 0
    assert len(seen) > 4


def test_the_progress_of_a_check_stays_within_the_whole_while_others_write(tmp_path: Path) -> None:
    with kvstore.open(tmp_path / "store") as store:
        table = store.create_table("t", pa.schema({"k": pa.int64()}), primary_key="k", buckets=2)
        table.upsert([{"k": k} for k in range(10)])
        seen: list[tuple[int, int]] = []

        def writing(done: int, total: int) -> None:
            if not seen:
                table.upsert([{"k": k} for k in range(10_000)])
            seen.append((done, total))

        assert store.check(writing)
    assert all(done <= total for done, total in seen)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


@pytest.mark.parametrize(
    ("environment", "is_styled"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_styles_are_for_terminals_that_want_them(
    store: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], is_styled: bool
) -> None:
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    plain = fine("tables", store).out
    assert "\x1b" not in plain
    out = io.BytesIO()
    with mock.patch.object(printing, "sys") as patched:
        patched.stdout.buffer = out
        patched.stdout.isatty.return_value = True
        run("tables", store)
    shown = out.getvalue().decode()
    assert ("\x1b[1m" in shown) == is_styled
    assert shown.replace("\x1b[1m", "").replace("\x1b[0m", "") == plain


def test_tables_of_all_commands_look_the_same(store: Path) -> None:
    for command in (("tables",), ("check",), ("replica", "ls"), ("log", "ls")):
        table = ("files",) if command == ("log", "ls") else ()
        names, lines, *rows = fine(*command, store, *table).out.splitlines()
        assert set(lines) == {"-", " "}, command
        assert len(names.split()) == len(lines.split()), command
        assert rows
