"""The command in this process, for most tests, and as a process of its own."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import kvstore
from kvstore.cli.load.portions import portions
from kvstore.cli.main import main
from tests.support.processes import WITHOUT_PANDAS, Forked

ROOT = Path(__file__).parents[2]


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[Any]:
        """Its JSON lines."""
        return [json.loads(line) for line in self.out.splitlines()]


def run(*arguments: object, given: str | bytes = "", terminal: bool = False) -> Done:
    """Run ``kvstore`` with these arguments and this standard input, which may be a terminal."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2))
    typed = io.TextIOWrapper(io.BytesIO(given.encode() if isinstance(given, str) else given), "utf-8")
    code: Any = 0
    with (
        mock.patch.object(sys, "argv", ["kvstore", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", typed),
        mock.patch.object(typed, "isatty", return_value=terminal),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            code = end.code
    return Done(code or 0, *(stream.buffer.getvalue().decode() for stream in (out, err)))


def fine(*arguments: object, given: str | bytes = "") -> Done:
    """Run ``kvstore``; it must end well."""
    done = run(*arguments, given=given)
    assert done.code == 0, done.err + done.out
    return done


SMALL_BATCHES = """
import functools, kvstore.cli.load.command as load
load.portions = functools.partial(load.portions, rows_max={rows})
"""
"""The same, as a script for a process."""


def process(*arguments: object, script: str = "", **options: Any) -> Forked:
    """The command as a process of its own, after a script has run in it."""
    return Forked(_program(script), *arguments, **options)


def spawned(*arguments: object, script: str = "") -> subprocess.Popen[str]:
    """The same with a Python of its own: how it starts and ends, and its memory, are those of the command."""
    return subprocess.Popen(
        [sys.executable, "-c", f"{WITHOUT_PANDAS}\n{_program(script)}", *map(str, arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _program(script: str) -> str:
    # A shell has what it runs in the background ignore SIGINT, and that is inherited.
    interrupts = "import signal\nsignal.signal(signal.SIGINT, signal.default_int_handler)"
    return f"{interrupts}\n{script}\nfrom kvstore.cli.main import main\nmain()"


def small_batches(rows: int) -> Any:
    """While it lasts, files are loaded in batches of so many rows."""
    return mock.patch("kvstore.cli.load.command.portions", partial(portions, rows_max=rows))


def changelog_of(store: Path, table: str) -> list[dict[str, Any]]:
    """A table's changelog, but for the times."""
    with kvstore.open(store, read_only=True) as opened:
        found = [row for batch in opened.table(table).changelog() for row in batch.to_pylist()]
    for row in found:
        del row["_commit_timestamp"]
    return found
