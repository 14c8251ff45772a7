"""Runs the pages of docs/how-to and docs/tutorials: what they show is what happens.

Blocks of a page run in order, in one namespace and in the current directory. A ``text`` block after a ``python`` block
is what that prints. A ``python`` block that begins with a comment such as ``# jobs.py`` is the file of that name. In a
``console`` block, lines that begin with ``$`` run, and the lines after one, if there are any, are what it prints.
``/data`` stands for the current directory.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kvstore
from tests.cli.commands import run as run_command

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted([*DOCS.glob("how-to/*.md"), *DOCS.glob("tutorials/*.md")])
LANGUAGES = ("python", "console", "text")
_FILE = re.compile(r"# (\w+\.py)\n")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS))


def needs_spark(page: Path) -> bool:
    return "pyspark" in page.read_text()


def blocks(page: Path) -> Iterator[tuple[str, int, str]]:
    """Language, line and content of each block."""
    text = page.read_text()
    for found in re.finditer(r"^( *)```(\w*)\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE):
        assert found[1] == "", (name_of(page), "blocks begin at the margin")
        yield found[2], text.count("\n", 0, found.start()) + 1, found[3]


def files_of(page: Path) -> dict[str, str]:
    """The files that a page shows, by name."""
    contents = [content for language, _, content in blocks(page) if language == "python"]
    return {file[1]: content for content in contents if (file := _FILE.match(content))}


def run_page(page: Path) -> None:
    """Run all blocks; the stores that they opened are closed, and have to pass their check."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = ""
    loggers = {logging.getLogger(name): logging.getLogger(name).level for name in (None, "kvstore", "writer")}
    handlers = list(logging.root.handlers)
    try:
        for language, line, content in blocks(page):
            if language == "text":
                assert printed == content, f"{name_of(page)}:{line}: it prints\n{printed}"
                printed = ""
                continue
            assert printed == "", f"{name_of(page)}:{line}: before this it prints\n{printed}"
            if language == "python" and (file := _FILE.match(content)):
                Path(file[1]).write_text(content)
            elif language == "python":
                # The lines are those of the page, also in a traceback.
                code = compile("\n" * line + content.replace('"/data/', f'"{Path.cwd()}/'), str(page), "exec")
                with contextlib.redirect_stdout(io.StringIO()) as output:
                    exec(code, names)
                printed = output.getvalue()
            elif language == "console":
                _run_lines(content, f"{name_of(page)}:{line}")
        assert printed == "", f"{name_of(page)}: at its end it prints\n{printed}"
    finally:
        for each in names.values():
            if isinstance(each, kvstore.Store):
                each.close()
        for logger, level in loggers.items():
            logger.setLevel(level)
        logging.root.handlers[:] = handlers
    for marker in Path().rglob("STORE"):
        if (marker.parent / "meta").is_dir():
            with kvstore.open(marker.parent) as store:
                report = store.check()
            assert report.ok, (name_of(page), marker.parent, report.findings)


def _run_lines(content: str, place: str) -> None:
    for part in re.split(r"^\$ ", content.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
        line, _, expected = part.partition("\n")
        words = shlex.split(line, comments=True)
        if words[0] == "kvstore":
            done = run_command(*words[1:])
            assert done.code == 0, (place, line, done.err)
            found = done.out
        else:
            if words[0] == "python":
                line = shlex.join([sys.executable, *words[1:]])
            found = subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stdout
        assert expected in ("", found), f"{place}: {line}\n{found}"
