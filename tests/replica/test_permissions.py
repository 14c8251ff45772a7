"""A replica in a directory is its owner's alone, like the store, whatever the umask would allow."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvstore.disk.files import Files
from kvstore.errors import InvalidRequest, Unavailable
from kvstore.replica.client import ObjectStore
from tests.support.processes import ran

SHIPS = """
import os, sys, kvstore, pyarrow as pa
from pathlib import Path
from kvstore.disk.files import Files
os.umask(int(sys.argv[2]))
base, write = Path(sys.argv[1]), Files.write

def looked_at(files, descriptor, pieces, position):
    write(files, descriptor, pieces, position)
    for each in (base / "new").rglob("*"):
        assert each.stat().st_mode & 0o077 == 0, each

Files.write = looked_at
with kvstore.open(base / "s") as store:
    table = store.create_table("t", pa.schema([pa.field("k", pa.int64(), False)]), "k", buckets=2)
    replica = store.add_replica(str(base / "new" / "deep" / "r"), "r")
    for step in range(3):
        table.upsert([{"k": step}])
        replica.ship()
    next((base / "new").rglob("*.range")).write_bytes(b"")
    assert not replica.check()
    assert replica.repair()
with kvstore.follow(str(base / "new" / "deep" / "r"), base / "c") as follower:
    follower.pull()
"""


@pytest.mark.parametrize("umask", [0, 0o022, 0o077])
def test_only_the_owner_can_read_objects_and_directories(tmp_path: Path, umask: int) -> None:
    done = ran(SHIPS, tmp_path, umask)
    assert done.returncode == 0, done.stderr
    made = [tmp_path / "new", *(tmp_path / "new").rglob("*")]
    assert len(made) > 15
    modes = {str(each): oct(each.stat().st_mode & 0o777) for each in made}
    assert modes == {str(each): "0o700" if each.is_dir() else "0o600" for each in made}


@pytest.mark.parametrize("umask", ["0", "0o777"])
def test_the_owner_keeps_its_rights_under_a_strict_umask(tmp_path: Path, umask: str) -> None:
    puts = (
        f"import os, sys; os.umask({umask})\n"
        "from kvstore.replica.client import ObjectStore\n"
        "place = ObjectStore(sys.argv[1], create=True)\n"
        "assert place.create('a/b', [b'x', b'y'])\n"
        "assert not place.create('a/b', [b'z'])\n"
        "place.replace('a/b', [b'w'])\n"
        "place.replace('c', [b''])\n"
    )
    done = ran(puts, tmp_path / "r")
    assert done.returncode == 0, done.stderr
    modes = {each.name: oct(each.stat().st_mode & 0o777) for each in tmp_path.rglob("*")}
    assert modes == {"r": "0o700", "a": "0o700", "b": "0o600", "c": "0o600"}
    assert sorted(ObjectStore(str(tmp_path / "r")).list()) == [("a/b", 1), ("c", 0)]


def test_a_put_that_dies_leaves_no_listed_object_and_can_be_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        pass

    def kill(*_: object) -> None:
        raise Killed

    place = ObjectStore(str(tmp_path / "r"), create=True)
    for put in (place.create, place.replace):
        for owner, step in ((Files, "write"), (Files, "rename"), (os, "link")):
            with monkeypatch.context() as patch:
                patch.setattr(owner, step, kill)
                patch.setattr(Files, "remove", lambda *_: None)
                try:
                    put("a/b", [b"first"])
                except Killed:
                    assert not list(place.list())
                else:
                    place.delete("a/b")
        put("a/b", [b"second"])
        assert bytes(place.get("a/b", bytes_max=6)) == b"second"
        assert list(place.list()) == [("a/b", 6)]
        place.delete("a/b")


def test_a_name_that_points_outside_the_directory_is_refused(tmp_path: Path) -> None:
    place = ObjectStore(str(tmp_path / "r"), create=True)
    for name in ("../out", "a/../../out", "/out", "a//b", "", "a/", "."):
        for put in (place.create, place.replace):
            with pytest.raises(InvalidRequest, match="name"):
                put(name, [b"x"])
    assert [each.name for each in tmp_path.rglob("*")] == ["r"]


def test_a_directory_that_is_gone_is_not_created_again(tmp_path: Path) -> None:
    place = ObjectStore(str(tmp_path / "r"), create=True)
    (tmp_path / "r").rmdir()
    for put in (place.create, place.replace):
        with pytest.raises(Unavailable, match="no such directory"):
            put("a/b", [b"x"])
    assert not (tmp_path / "r").exists()
