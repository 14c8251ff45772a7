"""Entry of the command ``kvstore``. Exit codes: 0 success, 1 something is wrong, 2 invalid call, 130 interrupted.

* A command is registered by its examples (``_EXAMPLES``); there is none without.
* An error of the store is one line on stderr, never a traceback; the exit code is 2 if the call is invalid, else 1.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import kvstore
from kvstore.cli import replica, shared
from kvstore.cli.arguments import examples
from kvstore.cli.backup import backup
from kvstore.cli.check import check
from kvstore.cli.compact import compact
from kvstore.cli.demo.command import demo
from kvstore.cli.doctor import doctor
from kvstore.cli.export.command import export
from kvstore.cli.job import command as job, run as job_run
from kvstore.cli.load import command as load
from kvstore.cli.log import command as log
from kvstore.cli.meta import journal as meta_journal, recovery as meta_recovery, status as meta
from kvstore.cli.printing import discard_output, plain, print_line
from kvstore.cli.serve import serve
from kvstore.cli.table import consumers, rows, tables, writing
from kvstore.cli.table.alteration import alter
from kvstore.cli.table.history import history
from kvstore.cli.table.sql import sql
from kvstore.cli.table.undo import apply, undo
from kvstore.cli.table.writers import writers
from kvstore.cli.ui import ui
from kvstore.errors import InvalidRequest, StoreError


class _Commands(TyperGroup):
    """Commands that end without an error message when the reader of their output has ended."""

    def invoke(self, ctx: Any) -> Any:
        try:
            try:
                return super().invoke(ctx)
            finally:
                sys.stdout.flush()
        except BrokenPipeError:
            discard_output()
            raise typer.Exit(0) from None


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    help="An embedded table that writes its own changelog.",
    epilog="Exit codes: 0 success, 1 something is wrong or missing, 2 invalid call. See docs/cli.md for more.",
)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print_line(f"kvstore {kvstore.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself, before the name of a subcommand."""


log_commands = typer.Typer(no_args_is_help=True, help="Show the log of a table.")
meta_commands = typer.Typer(
    no_args_is_help=True, help="Show and maintain the catalog: tables, writers, jobs and so on."
)
replica_commands = typer.Typer(no_args_is_help=True, help="Manage replicas: copies of a store in other places.")
shared_commands = typer.Typer(
    no_args_is_help=True, help="Look after shared tables: tables in an object store that Spark writes."
)
image_commands = typer.Typer(no_args_is_help=True, help="Verify an image of a catalog.")
job_commands = typer.Typer(no_args_is_help=True, help="Load every file of a source into a table, once.")

_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    tables.init: ("init /data/store",),
    tables.create: (
        "create /data/store files --column path:string --column size:int64 --key path",
        "create /data/store events --like events.parquet --append-only",
    ),
    alter: (
        "alter /data/store files --add owner:string --add 'changed:timestamp[us, tz=UTC]'",
        "alter /data/store files --rename-column size:bytes --drop owner",
        "alter /data/store files --retention-days 30 --compression zstd --rename paths",
        "alter /data/store files --index by_size:size,owner --unique-index by_digest:digest",
    ),
    tables.tables: ("tables /data/store",),
    tables.describe: ("describe /data/store files",),
    consumers.consumers: ("consumers /data/store", "consumers /data/store --json"),
    rows.get: ("get /data/store files README.md", "get /data/store numbers -- -5"),
    rows.scan: (
        "scan /data/store files --limit 10",
        "scan /data/store files --columns path,size --json",
        "scan /data/store files --prefix src/ --reverse",
        "scan /data/store files --where \"size > 1000 and path like 'src/%'\"",
    ),
    rows.explain: ("explain /data/store files --where 'size > 1000'",),
    writing.upsert: (
        "upsert /data/store files files.csv",
        "upsert /data/store files < rows.jsonl",
    ),
    writing.delete: (
        "delete /data/store files README.md",
        "delete /data/store files --where 'size > 1000'",
        "delete /data/store numbers -- -5",
    ),
    writing.drop: ("drop /data/store files", "drop /data/store files --yes"),
    load.load: (
        "load /data/store files files.csv --key path",
        "load /data/store events events-2026-01.parquet",
        "load /data/store files - --format csv --delimiter ';' < files.csv",
    ),
    export: (
        "export /data/store files --format csv > files.csv",
        "export /data/store files --to files.parquet",
        "export /data/store files --changelog --start 1000 --to changes.jsonl.gz",
    ),
    rows.changelog: (
        "changelog /data/store files --start 1000 --columns _change_type,path",
        "changelog /data/store files --start 2026-01-31T12:00:00Z --json",
        "changelog /data/store files --start latest --follow",
    ),
    history: (
        "history /data/store files README.md",
        "history /data/store files README.md --start 2026-01-31T12:00:00Z --json",
    ),
    writers: ("writers /data/store files", "writers /data/store files --json"),
    undo: (
        "undo /data/store files --start 2026-01-31T12:00:00Z",
        "undo /data/store files --start earliest --writer nightly --epoch 7 --to undo.patch",
        "undo /data/store files --start earliest --job landing --task 3 --to undo.patch",
    ),
    apply: ("apply /data/store undo.patch --check", "apply /data/store undo.patch"),
    sql: (
        'sql /data/store "SELECT owner, sum(size) FROM files GROUP BY owner"',
        """sql /data/store "SELECT * FROM changes('files', 1000)" --json""",
    ),
    check: (
        "check /data/store",
        "check /data/store --repair",
        "check /data/store --repair --from s3://bucket/store",
    ),
    compact: ("compact /data/store", "compact /data/store files"),
    backup: ("backup /data/store /backups/store-2026-01-31",),
    replica.replicate: ("replicate /data/store", "replicate /data/store backup --once"),
    serve: ("serve /data/store",),
    ui: ("ui /data/store", "ui /data/store --port 9000 --no-browser"),
    doctor: ("doctor", "doctor /data/store", "doctor --json"),
    demo: ("demo --repo .",),
}
_LOG_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    log.ls: ("log ls /data/store files",),
    log.show: (
        "log show /data/store files --from 1000 --limit 10",
        "log show /data/store files 1000 --records",
    ),
}
_META_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    meta.status: ("meta status /data/store",),
    meta_journal.ls: ("meta ls /data/store", "meta ls /data/store 50001"),
    meta_journal.show: ("meta show /data/store 50017",),
    meta.checkpoint: ("meta checkpoint /data/store",),
    meta.dump: (
        "meta dump /data/store --json",
        "meta dump /data/store/meta/image/image.00000000000000050000",
        "meta dump /data/store --to catalog.image",
    ),
    meta_recovery.recover: (
        "meta recover /data/store",
        "meta recover /data/store --metadata-failure-recovery",
    ),
}
_REPLICA_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    replica.add: ("replica add /data/store s3://bucket/store --name backup", "replica add /data/store /mnt/copy"),
    replica.ls: ("replica ls /data/store", "replica ls /data/store --followers backup"),
    replica.check: ("replica check /data/store backup",),
    replica.repair: ("replica repair /data/store backup",),
    replica.remove: ("replica remove /data/store backup",),
    replica.follow: ("replica follow s3://bucket/store /data/copy", "replica follow /mnt/copy /data/copy --once"),
    replica.promote: ("replica promote /data/copy",),
    replica.restore: (
        "replica restore s3://bucket/store /data/restored",
        "replica restore /mnt/copy /data/then --to 2026-01-31T12:00:00Z",
    ),
}
_SHARED_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    shared.snapshot: ("shared snapshot s3://bucket/tables files",),
    shared.vacuum: (
        "shared vacuum s3://bucket/tables files --dry-run",
        "shared vacuum s3://bucket/tables files --older-than-days 30 --retain-last 1000",
    ),
    shared.check: ("shared check s3://bucket/tables files",),
}
_IMAGE_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    meta.verify: ("meta image verify /data/store/meta/image/image.00000000000000050000",),
}
_JOB_EXAMPLES: dict[Callable[..., None], tuple[str, ...]] = {
    job.create: (
        "job create /data/store landing --source /data/in --format csv --table files",
        "job create /data/store events --source 's3://bucket/in/*.parquet' --format parquet --table events",
    ),
    job.ls: ("job ls /data/store",),
    job.show: ("job show /data/store landing",),
    job_run.run: ("job run /data/store landing", "job run /data/store landing --follow"),
    job.pause: ('job pause /data/store landing --reason "bad files of 31 January"',),
    job.resume: ("job resume /data/store landing",),
    job.alter: ("job alter /data/store landing --offset 2026-01-30.csv --max-filter-ratio 0.01",),
    job.drop: ("job drop /data/store landing",),
}
for _group, _examples in (
    (app, _EXAMPLES),
    (log_commands, _LOG_EXAMPLES),
    (meta_commands, _META_EXAMPLES),
    (image_commands, _IMAGE_EXAMPLES),
    (job_commands, _JOB_EXAMPLES),
    (replica_commands, _REPLICA_EXAMPLES),
    (shared_commands, _SHARED_EXAMPLES),
):
    for _command, _lines in _examples.items():
        _group.command(epilog=examples(*_lines))(_command)
app.add_typer(log_commands, name="log")
meta_commands.add_typer(image_commands, name="image")
app.add_typer(meta_commands, name="meta")
app.add_typer(job_commands, name="job")
app.add_typer(replica_commands, name="replica")
app.add_typer(shared_commands, name="shared")
_command_line = typer.main.get_command(app)


def main() -> None:
    """Run the command; errors of the store, and of the disk, become one line and an exit code."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # it was closed; the next file that is opened would take its place
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
    try:
        _command_line()
    except StoreError as error:
        print(f"kvstore: {plain(str(error))}", file=sys.stderr)
        sys.exit(2 if isinstance(error, InvalidRequest) else 1)
    except OSError as error:  # of a file that can't be read, or of standard output
        where = "" if error.filename is None else f" path={error.filename}"
        print(f"kvstore: {plain(f'{error.strerror or error}.{where}')}", file=sys.stderr)
        sys.exit(1)
