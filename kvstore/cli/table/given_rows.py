"""The rows that a command is given: a file, or standard input, which is copied to a temporary file first.

The copy makes every format readable from a pipe, and a load that is refused halfway can tell which row it was.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import file_digest
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer

from kvstore.cli.printing import plain
from kvstore.disk.files import refusals
from kvstore.errors import InvalidRequest
from kvstore.ingest.formats import FORMATS, Format, Source, format_named, source_of

STANDARD_INPUT = "-"

FORMAT_OPTION = {"parser": format_named, "metavar": "|".join(FORMATS)}
FormatGiven = Annotated[
    Format | None,
    typer.Option("--format", **FORMAT_OPTION, help="Format of the rows; by default that of the file's suffix."),
]
Delimiter = Annotated[
    str | None,
    typer.Option(metavar="CHARACTER", help=r"What separates the cells of CSV: ; or \t for a tab. By default a comma."),
]


@contextmanager
def rows_given(file: str, format: Format | None, delimiter: str | None = None) -> Iterator[tuple[Source, bytes | None]]:
    """The rows of a file or, for ``-``, of standard input; says on standard error what was guessed.

    Yields:
        The source, and for standard input the SHA-256 of all of it.

    Raises:
        InvalidRequest: There are no such rows, or their format is not known.
        StoreFull, LogFailed: There is no room for the copy of standard input.
    """
    if file != STANDARD_INPUT:
        source = source_of(Path(file), format, delimiter)
        if source.guess is not None:
            print(
                f"kvstore: {plain(file)} is read as {source.guess}; --format chooses another",
                file=sys.stderr,
            )
        yield source, None
        return
    if format is None:
        raise InvalidRequest(f"Standard input has no suffix; give --format, one of {', '.join(FORMATS)}.")
    if sys.stdin.isatty():
        print(f"kvstore: type rows as {format}; Ctrl-D ends them", file=sys.stderr)
    with refusals(Path("copy of standard input in TMPDIR")), ExitStack() as stack:
        copy = stack.enter_context(NamedTemporaryFile(prefix="kvstore-"))
        shutil.copyfileobj(sys.stdin.buffer, copy, 1 << 20)
        copy.seek(0)
        copied = stack.pop_all()
    with copied:
        digest = file_digest(copy, "sha256").digest()
        yield source_of(Path(copy.name), format, delimiter, name="standard input"), digest
