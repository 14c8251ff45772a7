"""Printing of findings."""

from __future__ import annotations

from collections.abc import Iterable

from kvstore.cli.printing import print_line


def print_findings(findings: Iterable[str]) -> None:
    """Print each finding on a line that begins with ``wrong:``."""
    for finding in findings:
        print_line(finding, label="wrong:")
