"""What differs between systems, simulated here: Windows is refused, macOS syncs by another call and has large pages."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import lmdb
import pyarrow as pa
import pytest

import kvstore
from kvstore.disk import pages
from kvstore.errors import CorruptData
from logformat import paths

SCHEMA = pa.schema([pa.field("k", pa.int64(), False), ("v", pa.string()), ("b", pa.binary())])
FULL_SYNC = 51  # F_FULLFSYNC of macOS, which Linux lacks
LARGE_PAGE = 1 << 14  # of macOS on ARM
META_BYTES = 16 + 136
PAGE_BYTES_OF_META = 16 + 24


def rows(random: Random, keys: int) -> list[dict[str, object]]:
    return [
        {
            "k": random.randrange(keys),
            "v": "é" * random.randrange(60),
            "b": random.randbytes(random.choice((0, 20, 9000))),
        }
        for _ in range(keys)
    ]


def used(path: Path) -> dict[int, dict[str, object]]:
    """Work on a store in every way that touches files; returns the rows that it should have."""
    random, model = Random(7), dict[int, dict[str, object]]()
    with kvstore.open(path, segment_bytes_max=1 << 16) as store:
        table = store.create_table("t", SCHEMA, primary_key="k", buckets=2)
        for _ in range(4):
            written = rows(random, 400)
            table.upsert(written)
            model |= {row["k"]: row for row in written}  # type: ignore[misc] # ints, as above
            gone = random.sample(sorted(model), 50)
            table.delete(gone)
            for key in gone:
                del model[key]
        store.flush()
        store.checkpoint()
        assert store.check().findings == []
    return model


def expect(path: Path, model: dict[int, dict[str, object]]) -> None:
    with kvstore.open(path) as store:
        table = store.table("t")
        assert {row["k"]: row for row in table.scan().read_all().to_pylist()} == model
        assert table.lookup(sorted(model)).drop_columns("_found").to_pylist() == [model[key] for key in sorted(model)]
        assert store.check().findings == []


def test_windows_is_refused_by_name() -> None:
    code = "import sys; sys.platform = 'win32'; sys.modules['fcntl'] = None; import kvstore"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: kvstore does not run on Windows")


def test_python_without_the_gil_is_refused_by_name() -> None:
    code = "import sys; sys._is_gil_enabled = lambda: False; import kvstore"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ImportError: kvstore was never run without the GIL of Python; set")


@pytest.mark.parametrize("name", ["writer.py", "logformat.py", "merge_engines/__init__.py"])
@pytest.mark.parametrize("is_imported_first", [True, False])
def test_a_file_of_the_user_with_the_name_of_a_package_is_named(
    tmp_path: Path, name: str, is_imported_first: bool
) -> None:
    own = tmp_path / name
    own.parent.mkdir(exist_ok=True)
    own.write_text("")
    package = name.partition("/")[0].removesuffix(".py")
    (tmp_path / "program.py").write_text(f"import {package}\n" * is_imported_first + "import kvstore")
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: kvstore has a package `{package}`, but Python finds {own} under that name; rename that file, or"
        " use an environment without it."
    )


def test_a_program_called_as_a_package_and_one_beside_a_directory_of_that_name(tmp_path: Path) -> None:
    own = tmp_path / "writer.py"
    own.write_text("import kvstore; print(kvstore.__name__)")
    done = subprocess.run([sys.executable, own], capture_output=True, text=True, check=False)
    assert f"Python finds {own}" in done.stderr
    (tmp_path / "other/writer").mkdir(parents=True)
    (tmp_path / "other/program.py").write_text("import kvstore; print(kvstore.__name__)")
    done = subprocess.run([sys.executable, tmp_path / "other/program.py"], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("kvstore\n", "")


def test_where_a_full_sync_exists_every_sync_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsync, control, full = os.fsync, fcntl.fcntl, 0

    def with_full_sync(descriptor: int, command: int, *arguments: Any) -> Any:
        nonlocal full
        if command != FULL_SYNC:
            return control(descriptor, command, *arguments)
        full += 1
        return fsync(descriptor)

    def cache_only(_descriptor: int) -> None:
        raise AssertionError("an fsync that ends in the cache of the disk")

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", with_full_sync)
    monkeypatch.setattr(os, "fsync", cache_only)
    for name in ("posix_fallocate", "fdatasync", "SEEK_DATA"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr("kvstore.index.writeback.BYTES_MIN", 1)
    monkeypatch.setattr("kvstore.disk.files.write_back", lambda _descriptor: None)
    monkeypatch.setattr("kvstore.index.writeback.write_back", lambda _descriptor: None)
    model = used(tmp_path / "store")
    assert full > 10
    expect(tmp_path / "store", model)


def test_where_a_full_sync_is_refused_fsync_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some file systems of macOS do not know it."""
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)  # Linux answers EINVAL
    synced, fsync = [], os.fsync
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(descriptor) or fsync(descriptor))
    model = used(tmp_path / "store")
    assert synced
    expect(tmp_path / "store", model)


@pytest.fixture
def large_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMDB takes the page size of the system for new files, and that of the file for others."""
    template, opened = tmp_path / "template", lmdb.open
    with lmdb.open(str(template)):
        small = (template / "data.mdb").read_bytes()
    step = len(small) // 2
    metas = [bytearray(small[start : start + META_BYTES].ljust(LARGE_PAGE, b"\0")) for start in (0, step)]
    for meta in metas:
        assert struct.unpack_from("=I", meta, PAGE_BYTES_OF_META) == (step,)
        struct.pack_into("=I", meta, PAGE_BYTES_OF_META, LARGE_PAGE)

    def with_large_pages(path: str, **settings: Any) -> lmdb.Environment:
        data = Path(path, "data.mdb")
        if not settings.get("readonly") and (not data.exists() or not data.stat().st_size):
            data.parent.mkdir(exist_ok=True)
            data.write_bytes(b"".join(metas))
        environment = opened(path, **settings)
        assert environment.stat()["psize"] == LARGE_PAGE
        return environment

    monkeypatch.setattr(lmdb, "open", with_large_pages)


@pytest.mark.usefixtures("large_pages")
def test_a_store_with_pages_of_16_kib_works(tmp_path: Path) -> None:
    path = tmp_path / "store"
    model = used(path)
    index = path / "tables/1/0/index/data.mdb"
    pages.verify(index, all_pages=True)
    expect(path, model)
    index.unlink()  # it is made again from the log
    expect(path, model)


@pytest.mark.usefixtures("large_pages")
def test_damage_in_pages_of_16_kib_is_found_and_repaired(tmp_path: Path) -> None:
    path = tmp_path / "store"
    model = used(path)
    index = path / "tables/1/0/index/data.mdb"
    with open(index, "r+b") as file:
        file.seek(2 * LARGE_PAGE)
        file.write(b"\xff" * (index.stat().st_size - 2 * LARGE_PAGE))
    with pytest.raises(CorruptData, match="damaged"):
        pages.verify(index, all_pages=True)
    expect(path, model)  # made again from the log


@pytest.mark.usefixtures("large_pages")
def test_values_are_found_in_damaged_pages_of_16_kib(tmp_path: Path) -> None:
    path = tmp_path / "store"
    used(path)
    with kvstore.open(path) as store:
        edits = store.runtime.journal.edits_after(0)
    journal = path / paths.JOURNAL / "data.mdb"
    with open(journal, "r+b") as file:
        file.seek(LARGE_PAGE)
        file.write(b"\xff" * META_BYTES)
    with pytest.raises(CorruptData, match="damaged"):
        pages.verify(journal, all_pages=True)
    assert edits
    assert set(edits) <= set(pages.values(journal, bytes_max=1 << 20))
