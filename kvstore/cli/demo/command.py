"""``kvstore demo``: replay a git history into a table, read its changelog with Spark, and compare with git.

Every commit is one batch with the writer's next sequence; every third is sent twice. Spark then folds the changelog up
to four offsets, and each time the files must be those of ``git ls-tree -r``. Without Spark, Python folds it; where
there is no git repository, a small history of the demo's own takes its place.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import pyarrow as pa
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import kvstore
from kvstore.cli.demo.git_history import Commit, History, Repository
from kvstore.cli.demo.own_history import OwnHistory
from kvstore.cli.demo.readers import TABLE, PythonReader, Reader, files_of
from kvstore.cli.printing import print_facts, print_findings, print_line
from kvstore.errors import InvalidRequest, UnsupportedOperation

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


@dataclass
class Replay:
    """Result of the replay, and the log's end offset after each commit."""

    ends: list[int] = field(default_factory=list)
    empty: int = 0
    duplicates: int = 0
    mistakes: list[str] = field(default_factory=list)
    seconds: float = 0.0


def demo(
    repo: Annotated[
        Path | None,
        typer.Option(help="Git repository whose history is replayed; if there is none here, a history of its own."),
    ] = None,
    store: Annotated[Path | None, typer.Option(help="New directory for the store; by default a temporary one.")] = None,
) -> None:
    """Replay a git history into a table, read its changelog with Spark, and compare with git."""
    console = Console(stderr=True)
    repository = _history(repo)
    if store is not None:
        _check_new(store)
    with tempfile.TemporaryDirectory(prefix="kvstore-demo-") as temporary:
        reader = _reader(Path(temporary))
        path = store or Path(temporary) / "store"
        replay, commits = _replay(repository, path, console)
        compared, counts, seconds = _compare(repository, path, commits, replay, reader, console)
    print_facts(_summary(commits, replay, compared, counts, reader.name, seconds))
    print_findings(replay.mistakes)
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


def _replay(repository: History, path: Path, console: Console) -> tuple[Replay, list[Commit]]:
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
        _expect(replay, "the table itself", files_of(rows), repository.tree(commits[-1].id))
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
    repository: History, path: Path, commits: list[Commit], replay: Replay, reader: Reader, console: Console
) -> tuple[list[int], dict[str, int], float]:
    """Fold the changelog up to the last commit and three before it, and compare each with the history."""
    started = time.perf_counter()
    last = len(commits) - 1
    numbers = sorted({last * quarter // 4 for quarter in (1, 2, 3, 4)})
    with console.status(f"folding the changelog with {reader.name}"):
        counts, folded, rows = reader.read(path, [replay.ends[number] for number in numbers])
    for number, files in zip(numbers, folded, strict=True):
        _expect(replay, f"the changelog up to commit {number + 1}", files, repository.tree(commits[number].id))
    _expect(replay, f"the table read by {reader.name}", rows, repository.tree(commits[last].id))
    return numbers, counts, time.perf_counter() - started


def _expect(
    replay: Replay, what: str, actual: dict[str, tuple[str, str]], expected: dict[str, tuple[str, str]]
) -> None:
    wrong = [path for path in actual.keys() | expected.keys() if actual.get(path) != expected.get(path)]
    if wrong:
        replay.mistakes.append(f"{what} differs from the history in {len(wrong)} files, such as {min(wrong)!r}")


def _history(repo: Path | None) -> History:
    """The history of a repository; that of the demo itself where nothing was asked for, and here is none."""
    if repo is not None:
        return Repository(repo)
    try:
        return Repository(Path("."))
    except (InvalidRequest, UnsupportedOperation):
        print_line("No git repository here: the demo replays a small history of its own. --repo takes another.")
        return OwnHistory()


def _reader(configuration: Path) -> Reader:
    """Spark if it is installed, else Python."""
    try:
        from kvstore.cli.demo.spark_reader import SparkReader
    except ModuleNotFoundError:
        print_line("Spark is not installed: Python folds the changelog. The extra `spark` of the package adds it.")
        return PythonReader()
    return SparkReader(configuration)


def _summary(
    commits: list[Commit], replay: Replay, compared: list[int], counts: dict[str, int], reader: str, seconds: float
) -> dict[str, str]:
    return dict(
        [
            ("commits", str(len(commits))),
            *((f"changes: {word}", str(count)) for word, count in sorted(counts.items())),
            ("empty batches", str(replay.empty)),
            ("duplicates answered", str(replay.duplicates)),
            ("offsets", f"0 to {replay.ends[-1] - 1}"),
            ("changes a second, one synced batch a commit", f"{sum(counts.values()) / replay.seconds:,.0f}"),
            ("compared after commit", ", ".join(str(number + 1) for number in compared)),
            (f"{reader} seconds", f"{seconds:.1f}"),
            ("differences", str(len(replay.mistakes))),
        ]
    )
