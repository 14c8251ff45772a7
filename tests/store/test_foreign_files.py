"""Foreign files in the places of a store's files: refused by name or ignored, never followed or waited for.

Each store is opened in its own process, which has ten seconds. The owner of a directory can do anything with it; but a
store in another user's directory, or one that was unpacked from an archive, must neither write elsewhere nor hang.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import kvstore
from kvstore.errors import NotAStore
from tests.support.processes import ran

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), pa.field("v", pa.int64())])
SECONDS_MAX = 120
OPEN = """
import signal, sys, traceback
import kvstore
from kvstore.errors import StoreError
from tests.support.image_workers import images_of_this_process
images = images_of_this_process()
images.__enter__()
for path, mode in zip(sys.argv[1::2], sys.argv[2::2]):
    signal.alarm(int({seconds}))
    try:
        with kvstore.open(path, read_only=mode == "read") as store:
            table = store.table("t")
            if mode == "write":
                table.upsert([{{"k": 7, "v": 7}}])
                table.snapshot()
                if "image" in path:
                    store.checkpoint()
            rows = {{row["k"]: row["v"] for row in table.scan().read_all().to_pylist()}}
            changes = sum(map(len, table.changelog("earliest")))
            is_right = rows == {{k: 99 if k == 1 else 7 if (k, mode) == (7, "write") else 11 for k in range(20)}}
            if not store.check().ok:
                print("refused")
            else:
                print("whole" if is_right and changes >= 461 else f"wrong {{rows}} {{changes}}")
    except StoreError:
        print("refused")
    except BaseException as error:
        traceback.print_exc()
        print("unnamed", repr(error))
    sys.stdout.flush()
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with every kind of file."""
    path = tmp_path_factory.mktemp("foreign") / "store"
    with kvstore.open(path, segment_bytes_max=4000) as store:
        table = store.create_table("t", SCHEMA, "k")
        for step in range(12):
            table.upsert([{"k": k, "v": step} for k in range(20)])
        table.snapshot()
        store.checkpoint()
        table.upsert([{"k": 1, "v": 99}])
    return path


KINDS = (
    "STORE",
    "data.mdb",
    "lock.mdb",
    "LOCK",
    "image",
    ".log",
    ".index",
    ".writers",
    "manifest",
    "rows",
    "writers.json",
)


def files_of(store: Path) -> list[Path]:
    """The newest of each kind, in catalog and bucket, relative to the store."""
    found: dict[str, Path] = {}
    for path in sorted(store.rglob("*")):
        kind = next((kind for kind in KINDS if kind in path.name), None)
        if path.is_file() and kind is not None:
            found[f"{path.relative_to(store).parts[0]} {kind} {path.parent.name == 'image'}"] = path.relative_to(store)
    return list(found.values())


def link(path: Path, victim: Path) -> None:
    path.rename(victim)
    path.symlink_to(victim)


def second_name(path: Path, victim: Path) -> None:
    os.link(path, victim)


def fifo(path: Path, victim: Path) -> None:
    path.rename(victim)
    os.mkfifo(path, 0o600)


def directory(path: Path, victim: Path) -> None:
    path.rename(victim)
    path.mkdir()


def link_to_nowhere(path: Path, victim: Path) -> None:
    shutil.copy(path, victim)
    path.unlink()
    path.symlink_to(victim.parent / "nowhere")


def device(path: Path, victim: Path) -> None:
    path.rename(victim)
    path.symlink_to("/dev/zero")


QUICK, OTHERS = (link, fifo), (second_name, directory, link_to_nowhere, device)


@pytest.mark.parametrize("put", [*QUICK, *(pytest.param(put, marks=pytest.mark.long) for put in OTHERS)])
def test_what_is_no_file_of_ours(put: Callable[[Path, Path], None], filled: Path, tmp_path: Path) -> None:
    """An error or the check names the file, or it has no effect; and nothing is written to its target."""
    names = files_of(filled)
    assert len(names) >= len(KINDS)
    before: dict[Path, bytes] = {}

    def foreign(path: Path, store: Path) -> None:
        victim = store.with_suffix(".victim")
        put(path, victim)
        before[victim] = victim.read_bytes()

    assert_refused_or_whole(filled, names, foreign, tmp_path)
    # A lock file only names its holder, which may be seen under another name.
    changed = [
        path.name for path, data in before.items() if path.read_bytes() != data and not data.startswith(b'{"pid"')
    ]
    assert not changed


def file(path: Path) -> None:
    path.write_bytes(b"")


def loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("put", [file, loop])
def test_what_is_no_directory_of_ours(put: Callable[[Path], None], filled: Path, tmp_path: Path) -> None:
    names = sorted(path.relative_to(filled) for path in filled.rglob("*") if path.is_dir())
    assert {"journal", "image", "1", "0", "log", "index", "snapshots"} <= {name.name for name in names}

    def foreign(path: Path, _store: Path) -> None:
        shutil.rmtree(path)
        put(path)

    assert_refused_or_whole(filled, names, foreign, tmp_path)


def assert_refused_or_whole(
    filled: Path, names: list[Path], foreign: Callable[[Path, Path], None], directory: Path
) -> None:
    """Of each name, made foreign in a copy of the store, readers and writers refuse it, or do not need it."""
    arguments: list[str] = []
    for number, name in enumerate(names):
        for mode in ("read", "write"):
            store = directory / f"{number}-{name.parent.name}-{mode}"
            shutil.copytree(filled, store)
            foreign(store / name, store)
            arguments += [str(store), mode]
    done = ran(OPEN.format(seconds=SECONDS_MAX), *arguments)
    outcomes = dict(
        zip([f"{name} {mode}" for name in names for mode in ("read", "write")], done.stdout.splitlines(), strict=False)
    )
    assert not done.returncode, f"it hangs or ends with {done.returncode} after {outcomes}\n{done.stderr[-2_000:]}"
    assert not {what: line for what, line in outcomes.items() if line.startswith("unnamed")}, done.stderr[-2_000:]
    assert not {what: line for what, line in outcomes.items() if line not in ("whole", "refused")}


@pytest.mark.parametrize("name", ["STORE", "data.mdb", ".log"])
def test_the_error_about_a_file_with_a_second_name_names_it(name: str, filled: Path, tmp_path: Path) -> None:
    store = Path(shutil.copytree(filled, tmp_path / "store"))
    file = next(path for path in sorted(store.rglob("*"), reverse=True) if path.name.endswith(name))
    put = directory if name == "STORE" else second_name  # this one is only read
    put(file, tmp_path / "victim")
    with pytest.raises(NotAStore, match="plain file with one name") as raised, kvstore.open(store) as opened:
        opened["t"].upsert([{"k": 7, "v": 7}])
    assert str(raised.value.where["path"]) == str(file)
    if name == ".log":
        with pytest.raises(NotAStore, match="plain file with one name"):
            kvstore.repair(store)


def test_whose_files_and_directories_they_are(tmp_path: Path) -> None:
    """Only their owner may read or enter them, whatever the umask allows."""
    make = (
        "import os, sys, kvstore, pyarrow as pa; os.umask(0)\n"
        "with kvstore.open(sys.argv[1], segment_bytes_max=4000) as store:\n"
        "    table = store.create_table('t', pa.schema([pa.field('k', pa.int64(), False)]), 'k', buckets=2)\n"
        "    for step in range(9): table.upsert([{'k': k} for k in range(50 * step, 50 * step + 50)])\n"
        "    table.apply_epoch(kvstore.Changes.of([('upsert', {'k': 1})], table.schema), 'w', 0)\n"
        "    table.snapshot(); store.checkpoint(); store.flush()\n"
        "    store.add_replica(sys.argv[1] + '-replica', 'r').ship()\n"
        "kvstore.follow(sys.argv[1] + '-replica', sys.argv[1] + '-copy').close()\n"
    )
    path = tmp_path / "store"
    done = ran(make, path)
    assert done.returncode == 0, done.stderr
    for store in (path, tmp_path / "store-copy"):
        made = [store, *store.rglob("*")]
        assert len(made) > 20
        modes = {str(each): oct(each.stat().st_mode & 0o777) for each in made}
        expected = {str(each): "0o700" if each.is_dir() else "0o600" for each in made}
        assert modes == expected
