"""What is wrong, for the eye. Names and paths are the user's: no markup and no emoji is looked for in them."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from kvstore.cli.printing import plain


def print_findings(console: Console, findings: Iterable[str]) -> None:
    """Print each on a line, with a word of warning before it."""
    for finding in findings:
        console.print(Text.assemble(("wrong:", "red"), f" {plain(finding)}"), soft_wrap=True)
