"""Pages of the documentation that commands write a part of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"
_END = "<!-- to here -->"


def rewrite(page: Path, command: str, text: str) -> None:
    """Put a text between the marks of a command."""
    begin = f"<!-- `{command}` writes from here -->"
    before, rest = page.read_text().split(begin)
    page.write_text(f"{before}{begin}\n\n{text}\n\n{_END}{rest.split(_END, 1)[1]}")


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """A table, its head first."""
    head, *others = rows
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *others])
