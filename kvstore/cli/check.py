"""``kvstore check``: is everything in a store as it was written?"""

from __future__ import annotations

import json
from dataclasses import asdict

import typer
from rich.console import Console
from rich.table import Table as Printed
from rich.text import Text

import kvstore
from kvstore.cli.arguments import AsJson, Directory
from kvstore.cli.findings import print_findings
from kvstore.errors import StoreError


def check(
    path: Directory,
    as_json: AsJson = False,
) -> None:
    """Verify a store: every checksum, and that logs and indexes agree.

    Exit code 1 if something is wrong.
    """
    try:
        with kvstore.open(path, read_only=True) as store:
            report = store.check()
    except StoreError as error:
        if as_json:
            print(json.dumps({"ok": False, "error": {"class": type(error).__name__, "message": str(error)}}))
        raise
    if as_json:
        print(json.dumps({"ok": report.ok, "buckets": [asdict(bucket) for bucket in report.buckets]}))
    else:
        console = Console()
        table = Printed("table", "bucket", "batches", "empty", "changes", "rows", "found wrong")
        for found in report.buckets:
            counts = (found.bucket, found.batches, found.empty_batches, found.changes, found.rows, len(found.findings))
            table.add_row(Text(found.table), *map(str, counts))
        console.print(table)
        print_findings(console, report.findings)
    if not report.ok:
        raise typer.Exit(1)
