"""``kvstore demo``: replay a git history into a table, read its changelog with Spark, and compare with git.

Every commit is one batch with the writer's next sequence; every third is sent twice. Spark then folds the changelog up
to four offsets, and each time the files must be those of ``git ls-tree -r``.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as Printed

import kvstore
from kvstore.cli.demo.git_history import Commit, Repository
from kvstore.cli.findings import print_findings
from kvstore.errors import InvalidRequest, UnsupportedOperation

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TABLE = "files"
SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), False),
        pa.field("mode", pa.string()),
        pa.field("blob", pa.string()),
        pa.field("size", pa.int64()),
        pa.field("commit", pa.string()),
        pa.field("commit_time", pa.timestamp("s", "UTC")),
        pa.field("author", pa.string()),
    ]
)
RESENT = 3
"""Every third batch is sent twice."""
LOGGING = """\
rootLogger = error, console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %p %c{1}: %m%n
"""
"""Spark's logging configuration: errors only."""


@dataclass
class Replay:
    """Result of the replay, and the log's end offset after each commit."""

    ends: list[int] = field(default_factory=list)
    empty: int = 0
    duplicates: int = 0
    mistakes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def demo(
    repo: Annotated[Path, typer.Option(help="Git repository whose history is replayed.")] = Path("."),
    store: Annotated[Path | None, typer.Option(help="New directory for the store; by default a temporary one.")] = None,
) -> None:
    """Replay a git history into a table, read its changelog with Spark, and compare with git."""
    console = Console()
    repository = Repository(repo)
    if store is not None:
        _check_new(store)
    with tempfile.TemporaryDirectory(prefix="kvstore-demo-") as temporary:
        spark = _spark_session(Path(temporary))
        path = store or Path(temporary) / "store"
        replay, commits = _replay(repository, path, console)
        compared, counts, spark_seconds = _compare(repository, path, commits, replay, spark, console)
    console.print(_summary(commits, replay, compared, counts, spark_seconds))
    print_findings(console, replay.mistakes)
    if replay.mistakes:
        raise typer.Exit(1)


def batch_of(commit: Commit) -> kvstore.Changes:
    """Changes of a commit as one batch: a delete for each removed path, an upsert for each written file."""
    gone, written = len(commit.deleted), len(commit.written)
    rows = {
        "path": [*commit.deleted, *(file.path for file in commit.written)],
        "mode": [None] * gone + [file.mode for file in commit.written],
        "blob": [None] * gone + [file.blob for file in commit.written],
        "size": [None] * gone + [file.size for file in commit.written],
        "commit": [commit.id] * (gone + written),
        "commit_time": [commit.time] * (gone + written),
        "author": [commit.author] * (gone + written),
    }
    columns = [pa.array(rows[column.name], column.type) for column in SCHEMA]
    is_delete = pa.array([True] * gone + [False] * written, pa.bool_())
    return kvstore.Changes(pa.RecordBatch.from_arrays(columns, schema=SCHEMA), is_delete)


def _check_new(path: Path) -> None:
    """Refuse a directory that can't become the store, before the slow steps."""
    if not path.absolute().parent.is_dir() or (path.exists() and (not path.is_dir() or any(path.iterdir()))):
        raise InvalidRequest(
            "The demo creates a new store; give --store a new or empty directory below an existing one.",
            path=path,
        )


def _replay(repository: Repository, path: Path, console: Console) -> tuple[Replay, list[Commit]]:
    commits = repository.commits()
    replay = Replay()
    bar = Progress(
        SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn(), console=console
    )
    with kvstore.open(path) as store, bar:
        table = store.create_table(TABLE, SCHEMA, primary_key="path")
        tracked = bar.track(repository.changes(), len(commits), description="replaying commits")
        _apply_commits(replay, table, store.new_writer_id(), tracked)
        report = store.check()
        replay.mistakes += report.findings
        replay.empty = sum(bucket.empty_batches for bucket in report.buckets)
        rows = table.scan(["path", "mode", "blob"]).read_all()
        _expect(replay, "the table itself", _files(rows), repository.tree(commits[-1].id))
    return replay, commits


def _apply_commits(replay: Replay, table: kvstore.Table, writer_id: int, commits: Iterable[Commit]) -> None:
    bucket = table.bucket(0)
    started = time.perf_counter()
    for sequence, commit in enumerate(commits):
        changes = batch_of(commit)
        first = bucket.apply(changes, writer_id, sequence)
        replay.ends.append(first.log_end_offset)
        if sequence % RESENT == 0:
            again = bucket.apply(changes, writer_id, sequence)
            replay.duplicates += again.duplicated
            if not again.duplicated or again.first_offset != first.first_offset:
                replay.mistakes.append(f"batch {sequence} was applied again when it was sent again")
    replay.seconds = time.perf_counter() - started


def _compare(
    repository: Repository, path: Path, commits: list[Commit], replay: Replay, spark: SparkSession, console: Console
) -> tuple[list[int], dict[str, int], float]:
    """Fold the changelog with Spark up to the last commit and three before it, and compare each with git."""
    started = time.perf_counter()
    last = len(commits) - 1
    places = sorted({last * quarter // 4 for quarter in (1, 2, 3, 4)})
    reader = spark.read.format("kvstore").option("path", str(path))
    changes = reader.option("table", f"{TABLE}$changelog").load()
    counted = changes.groupBy("_change_type").count().collect()
    with console.status("folding the changelog with Spark"):
        for place in places:
            folded = _fold(changes, replay.ends[place])
            _expect(replay, f"the changelog up to commit {place + 1}", folded, repository.tree(commits[place].id))
        rows = reader.option("table", TABLE).load().select("path", "mode", "blob").toArrow()
        _expect(replay, "the table read by Spark", _files(rows), repository.tree(commits[last].id))
    return places, {row["_change_type"]: row["count"] for row in counted}, time.perf_counter() - started


def _fold(changes: DataFrame, end: int) -> dict[str, tuple[str, str]]:
    """The files before an offset: the last change of each path, unless it is a delete."""
    from pyspark.sql import functions as sql

    latest = (
        changes.where((sql.col("_log_offset") < end) & (sql.col("_change_type") != "update_preimage"))
        .groupBy("path")
        .agg(sql.max_by(sql.struct("_change_type", "mode", "blob"), "_log_offset").alias("last"))
        .where("last._change_type != 'delete'")
    )
    return _files(latest.select("path", "last.mode", "last.blob").toArrow())


def _files(rows: pa.Table) -> dict[str, tuple[str, str]]:
    columns = (rows.column(name).to_pylist() for name in ("path", "mode", "blob"))
    return {path: (mode, blob) for path, mode, blob in zip(*columns, strict=True)}


def _expect(replay: Replay, what: str, found: dict[str, tuple[str, str]], expected: dict[str, tuple[str, str]]) -> None:
    wrong = [path for path in found.keys() | expected.keys() if found.get(path) != expected.get(path)]
    if wrong:
        replay.mistakes.append(f"{what} differs from git in {len(wrong)} files, such as {min(wrong)!r}")


def _spark_session(configuration: Path) -> SparkSession:
    try:
        from pyspark.sql import SparkSession

        from kvstore.spark import KvStoreSource, configure
    except ModuleNotFoundError as error:
        raise UnsupportedOperation("The demo needs Spark; `pip install -e '.[spark]'` from a checkout.") from error
    (configuration / "log4j2.properties").write_text(LOGGING)
    os.environ["SPARK_CONF_DIR"] = str(configuration)  # Spark logs before a session can configure it
    builder = configure(SparkSession.builder.master("local[2]").appName("kvstore demo"))
    quiet = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1",
    }
    for name, value in quiet.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(KvStoreSource)
    return spark


def _summary(
    commits: list[Commit], replay: Replay, compared: list[int], counts: dict[str, int], spark_seconds: float
) -> Printed:
    table = Printed(show_header=False)
    rows = [
        ("commits", str(len(commits))),
        *((f"changes: {word}", str(count)) for word, count in sorted(counts.items())),
        ("empty batches", str(replay.empty)),
        ("duplicates answered", str(replay.duplicates)),
        ("offsets", f"0 to {replay.ends[-1] - 1}"),
        ("changes a second, one synced batch a commit", f"{sum(counts.values()) / replay.seconds:,.0f}"),
        ("compared with git after commit", ", ".join(str(place + 1) for place in compared)),
        ("Spark seconds", f"{spark_seconds:.1f}"),
        ("differences", str(len(replay.mistakes))),
    ]
    for row in rows:
        table.add_row(*row)
    return table
