"""Load a git history, a file for each commit, with a job that is killed on the way, and compare with git.

Run it anywhere: ``python examples/git_files.py [REPOSITORY]``; without one it takes the one it lies in. It makes its
files and its store in a temporary directory.
"""

import json
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa

import kvstore
from kvstore.cli.demo.git_history import Repository

SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("mode", pa.string()),
        pa.field("blob", pa.string()),
        pa.field("size", pa.int64()),
    ]
)
KILLS = 5
TASKS_BEFORE_A_KILL = 2


def export(repository: Repository, directory: Path) -> int:
    """Write a file of JSON lines for each commit with changes; returns how many files."""
    files = 0
    for number, commit in enumerate(repository.changes()):
        gone = [
            {"_change_type": "delete", "path": path, "mode": None, "blob": None, "size": None}
            for path in commit.deleted
        ]
        written = [
            {"_change_type": "insert", "path": file.path, "mode": file.mode, "blob": file.blob, "size": file.size}
            for file in commit.written
        ]
        if gone or written:
            # Until the file is complete, it has a name that jobs ignore.
            unfinished = directory / f"_{number:06}.jsonl"
            unfinished.write_text("".join(json.dumps(change) + "\n" for change in (*gone, *written)))
            unfinished.rename(directory / f"{number:06}.jsonl")
            files += 1
    return files


def run(store: Path, *, kill_after: int | None) -> bool:
    """Run the job in its own process; returns whether it ended by itself."""
    command = [sys.executable, "-m", "kvstore", "job", "run", store, "commits"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for number, _ in enumerate(process.stdout, 1):
            if number == kill_after:
                process.kill()
    if process.returncode == -signal.SIGKILL:
        return False
    assert process.returncode == 0
    return True


def main(directory: Path, path: Path) -> dict[str, tuple[str, str]]:
    repository = Repository(path)
    (directory / "in").mkdir()
    files = export(repository, directory / "in")
    with kvstore.open(directory / "store") as store:
        store.create_table("files", SCHEMA, primary_key="path", buckets=2)
        per_task = max(1, files // (2 * KILLS * TASKS_BEFORE_A_KILL))
        store.create_job("commits", source=directory / "in", format="json", table="files", max_files=per_task)
    kills = 0
    while not run(directory / "store", kill_after=TASKS_BEFORE_A_KILL if kills < KILLS else None):
        kills += 1
    with kvstore.open(directory / "store") as store:
        statistics = store.job("commits").show().statistics
        print(f"{statistics.file_number} files in {statistics.succeeded_tasks} tasks, killed {kills} times")
        assert statistics.file_number == files
        rows = store.table("files").scan(["path", "mode", "blob"]).read_all().to_pylist()
    found = {row["path"]: (row["mode"], row["blob"]) for row in rows}
    assert found == repository.tree("HEAD")
    print(f"{len(found)} paths, as git ls-tree has them")
    return found


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(temporary), Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
