"""``kvstore replica`` and ``kvstore replicate``: copies of a store in other places.

* Every command writes a replica or a copy only through the calls that a program has, and keeps nothing itself.
* A URL is printed without credentials.
"""

from __future__ import annotations

import datetime as dt
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import msgspec
import typer

import kvstore
from kvstore.arguments import shown, time_of
from kvstore.cli.arguments import AsJson, Directory, Url, opened_store
from kvstore.cli.printing import plain, print_ends, print_facts, print_json, print_line, print_records, print_table
from kvstore.cli.progress import Bar
from kvstore.clock import time_text
from kvstore.errors import InvalidRequest, ReplicaBehind, StoreError, Unavailable, WriterFenced
from kvstore.replica.follow.follower import ROLLBACK_LIMIT
from logformat.catalog.replicas import CATALOG, Finding
from logformat.replica.follower_status import FollowerStatus

ReplicaName = Annotated[str, typer.Argument(metavar="NAME", help="Name of the replica.", show_default=False)]


def add(
    path: Directory,
    url: Url,
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Its name; by default its URL.", show_default=False)
    ] = None,
    retention_days: Annotated[
        float | None,
        typer.Option(
            metavar="DAYS",
            help="How far back it restores any time, also if the tables keep less; by default what the tables keep.",
            min=0,
            max=36_500,
            show_default=False,
        ),
    ] = None,
) -> None:
    """Register a replica of the store; `kvstore replicate` ships to it."""
    with opened_store(path, write=True) as store:
        retention = None if retention_days is None else dt.timedelta(days=retention_days)
        store.add_replica(url, name, retention=retention)


def ls(
    path: Directory,
    of: Annotated[
        str | None, typer.Option("--followers", metavar="NAME", help="List the copies that follow this replica.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List replicas, the lag of each, and the findings of its last check.

    Exit code 1 if there are findings.
    """
    with opened_store(path) as store:
        if of is not None:
            _print_followers(store.replica(of).followers(), store.health().txid, as_json=as_json)
            return
        reports = store.replicas
    listed = [{"name": name, **report.to_json()} for name, report in reports.items()]
    if as_json:
        print_json(listed)
    else:
        names = ["name", "url", "behind", "edits_behind", "as_of", "checked", "findings"]
        print_table(names, [[*(each[name] for name in names[:-1]), len(each["findings"])] for each in listed])
        for name, report in reports.items():
            _print_findings(name, report.findings)
    if not all(reports.values()):
        raise typer.Exit(1)


def check(path: Directory, name: ReplicaName, as_json: AsJson = False) -> None:
    """Read every object of a replica and compare it with what was shipped. Exit code 1 if something is wrong."""
    with opened_store(path, write=True) as store:
        _print_report(name, store.replica(name).check(), as_json=as_json)


def repair(path: Directory, name: ReplicaName, as_json: AsJson = False) -> None:
    """Check a replica, and ship damaged or missing objects again."""
    with opened_store(path, write=True) as store:
        _print_report(name, store.replica(name).repair(), as_json=as_json)


def remove(path: Directory, name: ReplicaName) -> None:
    """Stop shipping to a replica; its objects stay."""
    with opened_store(path, write=True) as store:
        store.drop_replica(name)


def restore(
    url: Url,
    path: Annotated[
        Path, typer.Argument(metavar="DIR", help="A new or empty directory for the store.", show_default=False)
    ],
    to: Annotated[
        str | None,
        typer.Option(
            metavar="BOUND",
            help='A time such as 2026-01-31T12:00:00Z, or offsets: {"table": {"0": 17}}. By default the latest state.',
            show_default=False,
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Restore a store from a replica."""
    with Bar(path.name, "bytes") as bar:
        done = kvstore.restore(url, path, None if to is None else _bound(to), progress=bar.add)
    if as_json:
        print_json({"txid": done.txid, "ends": done.ends})
    else:
        print_ends(done.ends)


def follow(
    url: Url,
    path: Annotated[Path, typer.Argument(metavar="DIR", help="A new or empty directory, or the copy.")],
    once: Annotated[bool, typer.Option("--once", help="Fetch what the replica has now, and end.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look for more.", min=0.01)] = 1.0,
    rollback_limit: Annotated[
        int,
        typer.Option(
            metavar="N", help="Maximum number of edits and changes to discard that a new leader lacks.", min=0
        ),
    ] = ROLLBACK_LIMIT,
    journal_sync: Annotated[
        str, typer.Option(metavar="POLICY", help="SYNC, or WRITE_NO_SYNC: see `kvstore.options.StoreOptions`.")
    ] = "SYNC",
    as_json: AsJson = False,
) -> None:
    """Keep a copy of a store up to date until interrupted; the copy can be read meanwhile.

    It stops when it needs a decision. Exit code 1 if there are warnings at the end.
    """
    waiting, warned = threading.Event(), list[str]()
    with _follower(url, path, rollback_limit, journal_sync, every, once=once) as follower:
        while True:
            try:
                pulled = follower.pull()
            except Unavailable as error:
                if once:
                    raise
                print_line(str(error))
            else:
                report = follower.report()
                if pulled or once:
                    _print_pulled(pulled, report, as_json=as_json)
                if report.warnings != warned:
                    warned = report.warnings
                    for warning in warned:
                        print_line(f"warning: {warning}")
            if once:
                break
            waiting.wait(every)
    if warned:
        raise typer.Exit(1)


def _follower(
    url: str, path: Path, rollback_limit: int, journal_sync: str, every: float, *, once: bool
) -> kvstore.Follower:
    while True:
        try:
            return kvstore.follow(url, path, rollback_limit=rollback_limit, journal_sync=journal_sync)
        except ReplicaBehind as error:  # the replica is not complete yet
            if once:
                raise
            print_line(str(error))
            threading.Event().wait(every)


def _print_pulled(pulled: kvstore.Pulled, report: kvstore.FollowReport, *, as_json: bool) -> None:
    facts = {**asdict(pulled), "txid": report.txid, "as_of": time_text(report.as_of_ms)}
    if as_json:
        print_json(facts)
    else:
        rebuilt = " (the copy was rebuilt)" if pulled.rebuilt else ""
        print_line(f"{pulled.changes} changes, {pulled.edits} edits{rebuilt}; as of {facts['as_of']}")


def promote(path: Directory, as_json: AsJson = False) -> None:
    """Make a copy the new leader; the old one stops writing as soon as it reaches the replica."""
    done = kvstore.promote(path)
    if as_json:
        print_json(asdict(done))
    else:
        print_facts({"txid": done.txid, "leader_epoch": done.leader_epoch})
        print_ends(done.ends)
        for name, reason in done.unreached.items():
            print_line(
                f"warning: replica {name} could not be reached; a leader that only reaches it continues: {reason}"
            )


def replicate(
    path: Directory,
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="Only to this replica.", show_default=False)
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Ship what the store has now, and end.")] = False,
    every: Annotated[float, typer.Option(metavar="SECONDS", help="How often to look for more.", min=0.01)] = 1.0,
) -> None:
    """Ship the store to its replicas until interrupted; another process may write it meanwhile.

    A replica that fails does not hold up the others.
    """
    with opened_store(path, write=True) as store:
        names = list(store.replicas) if name is None else [name]
        if not names:
            raise InvalidRequest("The store has no replica; see `kvstore replica add`.", path=path)
        waiting, replicas = threading.Event(), {each: store.replica(each) for each in names}
        while True:
            failed = False
            for each, replica in list(replicas.items()):
                try:
                    done = replica.ship()
                except StoreError as error:
                    failed = True
                    if not once and isinstance(error, (WriterFenced, InvalidRequest)):
                        if len(replicas) == 1:
                            raise
                        del replicas[each]  # it is no longer a replica of this store
                    print(plain(f"{each}: {error}"), file=sys.stderr)
                    continue
                if done.objects:
                    print_line(f"{each}: {done.objects} objects, {done.bytes} bytes; was {done.behind} offsets behind")
            if once:
                raise typer.Exit(int(failed))
            waiting.wait(every)


def _bound(given: str) -> dt.datetime | dict[str, dict[int, int]]:
    try:
        if given.startswith("{"):
            offsets = msgspec.json.decode(given, type=dict[str, dict[str, int]])
            return {table: {int(bucket): end for bucket, end in ends.items()} for table, ends in offsets.items()}
    except ValueError as error:
        raise InvalidRequest(
            'BOUND by offsets is JSON from table to bucket to offset: {"table": {"0": 17}}.', given=shown(given)
        ) from error
    return time_of("BOUND", given, 'offsets such as {"table": {"0": 17}}')


def _print_report(name: str, report: kvstore.ReplicaReport, *, as_json: bool) -> None:
    facts = {"name": name, **report.to_json()}
    if as_json:
        print_json(facts)
    else:
        print_facts({**{name: facts[name] for name in ("url", "behind", "as_of")}, "findings": len(report.findings)})
        _print_findings(name, report.findings)
    if not report:
        raise typer.Exit(1)


def _print_followers(followers: list[FollowerStatus], txid: int, *, as_json: bool) -> None:
    rows = [
        {
            "name": each.name,
            "edits_behind": txid - each.txid,
            "leader_epoch": each.leader_epoch,
            "said": time_text(each.as_of_ms),
        }
        for each in followers
    ]
    print_records(["name", "edits_behind", "leader_epoch", "said"], rows, as_json=as_json)


def _print_findings(name: str, findings: list[Finding]) -> None:
    for each in findings:
        stream = "catalog" if each.stream == CATALOG else f"table {each.stream.table_id} bucket {each.stream.bucket}"
        what = each.object if each.object is not None else f"offsets {each.start} to {each.end}"
        print_line(f"{name}: {each.kind} {stream} {what}")
