"""Printing of findings. Names and paths come from users, so markup and emoji in them are printed as plain text."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from kvstore.cli.printing import plain


def print_findings(console: Console, findings: Iterable[str]) -> None:
    """Print each finding on a line that begins with ``wrong:``."""
    for finding in findings:
        console.print(Text.assemble(("wrong:", "red"), f" {plain(finding)}"), soft_wrap=True)
