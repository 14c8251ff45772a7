"""``kvstore check`` verifies a store; with ``--repair`` it also repairs damage."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

import kvstore
from kvstore.cli.arguments import AsJson, Directory, opened
from kvstore.cli.printing import print_findings, print_json, print_line, print_table
from kvstore.cli.progress import Bar
from kvstore.errors import InvalidRequest, StoreError
from logformat import paths

_COUNTS = ("batches", "empty_batches", "changes", "rows")  # a check of a replica in place counts none


def check(
    path: Directory,
    repairs: Annotated[
        bool, typer.Option("--repair", help="Repair damage; replaced files are kept in lost/ of the store.")
    ] = False,
    replica: Annotated[
        str | None,
        typer.Option("--from", metavar="URL", help="A replica that has what the log lost.", show_default=False),
    ] = None,
    accept_loss: Annotated[
        bool,
        typer.Option("--accept-loss", help="Continue without lost changes; by default they are only reported."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Verify a store: every checksum, and that logs and indexes agree.

    Exit code 1 if something is wrong; with --repair, if something is still wrong.
    """
    if not repairs and (replica is not None or accept_loss):
        raise InvalidRequest("--from and --accept-loss say how to repair a store; give --repair, too.")
    if repairs:
        _repair(path, replica, accept_loss=accept_loss, as_json=as_json)
        return
    try:
        with opened(path) as store, Bar(path.name, "bytes") as bar:
            report = store.check(bar.to)
            no_counts = _COUNTS if isinstance(store, kvstore.StoreInReplica) else ()
    except StoreError as error:
        if as_json:
            print(json.dumps({"ok": False, "error": {"class": type(error).__name__, "message": str(error)}}))
        raise
    if as_json:
        print(json.dumps({"ok": report.ok, "buckets": [_shown(each, no_counts) for each in report.buckets]}))
    elif no_counts:
        lines = [[each.table, each.bucket, len(each.findings)] for each in report.buckets]
        print_table(["table", "bucket", "findings"], lines)
        print_findings(report.findings)
    else:
        _print_buckets(report.buckets)
        print_findings(report.findings)
    if not report.ok:
        raise typer.Exit(1)


def _repair(path: Path, replica: str | None, *, accept_loss: bool, as_json: bool) -> None:
    buckets = sum(1 for _ in (path / paths.TABLES).glob("*/[0-9]*"))
    with Bar(path.name, "parts", 1 + buckets) as bar:  # the catalog is a part, too
        begun = 0

        def begin(name: str) -> None:
            nonlocal begun
            bar.to(begun)
            bar.say(name)
            begun += 1

        report = kvstore.repair(path, replica, accept_loss=accept_loss, progress=begin)
    if as_json:
        quarantine = None if report.quarantine is None else str(report.quarantine)
        print_json({"ok": bool(report), **asdict(report), "quarantine": quarantine})
    else:
        _print_buckets(report.buckets)
        for word, lines in (("repaired", report.repaired), ("gone", report.gone)):
            for line in lines:
                print_line(f"{word}: {line}")
        if report.quarantine is not None:
            print_line(f"Replaced files are in {report.quarantine}.")
        print_findings(report.left)
    if not report:
        raise typer.Exit(1)


def _shown(bucket: kvstore.BucketReport, left_out: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in asdict(bucket).items() if name not in left_out}


def _print_buckets(buckets: Sequence[kvstore.BucketReport]) -> None:
    names = ["table", "bucket", "batches", "empty", "changes", "rows", "findings"]
    print_table(
        names,
        [
            [each.table, each.bucket, each.batches, each.empty_batches, each.changes, each.rows, len(each.findings)]
            for each in buckets
        ],
    )
