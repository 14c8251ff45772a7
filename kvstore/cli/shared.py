"""``kvstore shared``: upkeep of shared tables, which are in an object store."""

from __future__ import annotations

import datetime as dt
from dataclasses import asdict
from typing import Annotated

import typer

import kvstore.shared
from kvstore.cli.arguments import AsJson, Url
from kvstore.cli.printing import print_all_facts, print_facts, print_findings, print_json
from kvstore.shared.upkeep import OLDER_THAN, RETAIN_LAST

Name = Annotated[str, typer.Argument(metavar="TABLE", help="Name of the shared table.", show_default=False)]


def snapshot(
    url: Url,
    table: Name,
    again: Annotated[
        bool, typer.Option("--again", help="Of every bucket, and name no older ones; for when one is damaged.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Take snapshots of buckets with new changes, so that reads and new machines begin with them."""
    print_all_facts(asdict(kvstore.shared.snapshot(url, table, again=again)), as_json=as_json)


def vacuum(
    url: Url,
    table: Name,
    older_than_days: Annotated[
        float, typer.Option(metavar="DAYS", help="Manifests that are younger stay.", max=36_500)
    ] = OLDER_THAN / dt.timedelta(days=1),
    retain_last: Annotated[int, typer.Option(metavar="N", help="So many manifests stay, however old.")] = RETAIN_LAST,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove old manifests, expired changes, and what was uploaded a week ago and never committed; rows stay."""
    older_than = dt.timedelta(days=older_than_days)
    done = kvstore.shared.vacuum(url, table, older_than=older_than, retain_last=retain_last, dry_run=dry_run)
    print_all_facts(asdict(done), as_json=as_json)


def check(url: Url, table: Name, as_json: AsJson = False) -> None:
    """Read every manifest, and everything that they name. Exit code 1 if something is missing or bad."""
    report = kvstore.shared.check(url, table)
    facts = asdict(report)
    if as_json:
        print_json({"ok": bool(report), **facts})
    else:
        print_facts({**facts, "findings": len(report.findings)})
        print_findings(f"{each.kind} {each.object} {each.reason}" for each in report.findings)
    if not report:
        raise typer.Exit(1)
