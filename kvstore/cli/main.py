"""Entry of the command ``kvstore``. Exit codes: 0 fine, 1 something is wrong, 2 a bad call."""

from __future__ import annotations

import sys

import typer

from kvstore.cli.check import check
from kvstore.cli.demo import demo
from kvstore.errors import InvalidRequest, StoreError

app = typer.Typer(no_args_is_help=True, add_completion=False, help="An embedded table that writes its own changelog.")
app.command()(check)
app.command()(demo)


def main() -> None:
    """Run the command; errors of the store become one line and an exit code."""
    try:
        app()
    except StoreError as error:
        print(f"kvstore: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
