"""A repair without a replica keeps everything that is left of a bucket with several damages, and reports the rest."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from msgspec.structs import replace

import kvstore
from kvstore.disk.files import Files
from kvstore.options import StoreOptions
from kvstore.repair.scan import PlacedBatch, scan_segment
from logformat import paths
from logformat.ids import Offset
from logformat.log.snapshot_manifest import decode_manifest, encode_manifest
from tests.repair.damage import lose_a_row, spoil
from tests.repair.worlds import SCHEMA, Store, World
from tests.support.commits import refuse_ends_of_commits
from tests.support.repairs import Dying, Killed
from tests.support.tables import rows_of

QUICK, LONG = 4, 400
BUCKET = Path("tables/1/0")
Rows = dict[int, dict[str, object]]


def options(segment_bytes_max: int) -> StoreOptions:
    return StoreOptions(
        segment_bytes_max=segment_bytes_max, commit_idle_ms=60_000, commit_wait_ms=60_000, map_bytes=1 << 28
    )


def batches(world: World) -> list[PlacedBatch]:
    """Batches of the first bucket, in order."""
    with Store(world.path, options(1 << 26), read_only=True) as store:
        identity = store.runtime.open_table(store.runtime.definition("t")).handles[0].identity
    log = world.path / BUCKET / paths.LOG
    found = [scan_segment(log, Offset(int(path.stem)), identity) for path in sorted(log.glob("*.log"))]
    return [place for segment in found for place in segment.batches()]


@dataclass
class Written:
    """A table of one bucket after some writes.

    Attributes:
        rows: The rows, by log end.
        lost: Base offsets of damaged batches.
        snapshots: Offsets of valid snapshots.
        damage: What was damaged, in words.
    """

    world: World
    rows: dict[int, Rows]
    places: list[PlacedBatch] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    snapshots: set[int] = field(default_factory=set)
    damage: list[object] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.places[-1].header.next_offset

    def reached(self, start: int) -> int:
        """The end of the undamaged batches from an offset on."""
        for each in self.places:
            if each.header.base_offset == start and start not in self.lost:
                start = each.header.next_offset
        return start

    def harm(self, random: Random) -> None:
        """Damage a file; but don't remove the first segment, for that looks as if it had expired."""
        bucket = self.world.path / BUCKET
        each = random.choice(self.places)
        kind = random.choice(["batch", "batch", "batch", "head", "cut", "gone", "sparse", "writers", "snapshot"])
        self.damage.append((kind, each.path.name, each.header.base_offset))
        if not each.path.exists() or (kind == "gone" and each.path == self.places[0].path):
            return
        if kind == "batch" and each.path.stat().st_size >= each.end:
            spoil(each.path, random.randrange(each.position, each.end - 8))
            self.lost.add(each.header.base_offset)
        elif kind == "head":
            spoil(each.path, random.randrange(56))
        elif kind in ("cut", "gone"):
            size = random.randrange(each.path.stat().st_size) if kind == "cut" else 0
            each.path.write_bytes(each.path.read_bytes()[:size])
            self.lost |= {
                there.header.base_offset for there in self.places if there.path == each.path and there.end > size
            }
            if kind == "gone":
                each.path.unlink()
        elif kind == "sparse":
            each.path.with_suffix(".index").unlink(missing_ok=True)
        elif kind == "writers" and each.path.with_suffix(".writers").exists():
            spoil(each.path.with_suffix(".writers"), 0, 20)
        elif kind == "snapshot" and self.snapshots:
            offset = random.choice(sorted(self.snapshots))
            name = random.choice([paths.SNAPSHOT_ROWS, paths.SNAPSHOT_MANIFEST])
            spoil(paths.snapshot_directory(bucket, Offset(offset)) / name, 10)
            self.snapshots.remove(offset)

    def harm_index(self, how: str) -> None:
        index = self.world.path / BUCKET / "index"
        if how == "gone":
            shutil.rmtree(index)
        elif how == "damaged":
            spoil(index / "data.mdb", 0, 4096)
        elif how == "without a row":
            lose_a_row(index)


def written(place: Path, random: Random, segment_bytes_max: int, *, is_log: bool = False) -> Written:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    made = Written(World(place / "s", place / "none"), {0: {}})
    count, rows = random.randrange(20, 60), Rows()
    snapshots = random.sample(range(count), random.randrange(4))
    with Store(made.world.path, options(segment_bytes_max)) as store:
        table = store.create_table("t", SCHEMA, None if is_log else "k", compression=None)
        for step in range(count):
            keys = random.sample(range(40), random.randrange(1, 6))
            new: Rows = {k: {"k": k, "v": step, "s": "a" * random.randrange(1, 120)} for k in keys}
            table.bucket(0).apply(kvstore.Changes.of([("upsert", row) for row in new.values()], SCHEMA), 7, step)
            rows |= new
            store.flush()
            made.rows[table.offsets()[0][1]] = dict(rows)
            if step in snapshots:
                table.snapshot()
    made.places = batches(made.world)
    made.snapshots = {int(path.name) for path in (made.world.path / BUCKET / paths.SNAPSHOTS).glob("*")}
    return made


def cases(seeds: range) -> Iterator[tuple[int, Random]]:
    for seed in seeds:
        yield seed, Random(seed)


@pytest.mark.parametrize("seeds", [range(QUICK), pytest.param(range(QUICK, LONG), marks=pytest.mark.long)])
@pytest.mark.parametrize("is_log", [False, True])
def test_everything_that_is_left_is_kept(seeds: range, tmp_path: Path, *, is_log: bool) -> None:
    for seed, random in cases(seeds):
        made = written(tmp_path / "made", random, random.choice([2000, 5000, 12_000, 1 << 26]), is_log=is_log)
        for _ in range(random.randrange(1, 4)):
            made.harm(random)
        index = random.choice(["gone", "damaged", "right"] if is_log else ["gone", "damaged", "without a row", "right"])
        made.harm_index(index)
        case = seed, index, made.damage
        world = made.world
        report = world.repair(replica=False) or world.repair(replica=False, accepts_loss=True)
        assert report, (case, report.left)
        with Store(world.path, options(5000)) as store:
            table = store.table("t")
            start, end = table.offsets()[0]
            if is_log:
                assert end - start >= made.reached(0), case
            else:
                assert {row["k"]: row for row in rows_of(table)} == made.rows[end], case
                assert end >= max(map(made.reached, [0, *made.snapshots])), case
                assert end == made.end or index != "right", case
            assert end == made.end or any(
                "new changes get" in each or "if there was" in each for each in report.gone
            ), case
            table.upsert([{"k": 1, "v": -1, "s": ""}])
            table.snapshot()
            assert store.check().findings == [], case
        again = world.repair(replica=False, accepts_loss=True)
        assert (bool(again), again.gone) == (True, []), case
        shutil.rmtree(world.path / BUCKET / "index")
        assert world.repair(replica=False), case


class Truncated:
    """A table whose log and index are damaged, so that a repair truncates the log; a consumer is at its old end."""

    def __init__(self, path: Path, *, epochs: bool = False) -> None:
        self.world = World(path / "s", path / "none")
        with Store(self.world.path, options(3000)) as store:
            table = store.create_table("t", SCHEMA, "k", buckets=2 if epochs else 1, compression=None)
            with pytest.MonkeyPatch.context() as patch:
                for step in range(60):
                    rows = [("upsert", {"k": step * 9 + n, "v": 1, "s": "a" * 50}) for n in range(9)]
                    if step == 59:
                        refuse_ends_of_commits(patch)
                    if epochs:
                        table.apply_epoch(kvstore.Changes.of(rows, SCHEMA), "w", step)
                    else:
                        table.apply(kvstore.Changes.of(rows, SCHEMA))
            store.consumer("c").commit("t", {bucket: end for bucket, (_, end) in table.offsets().items()})
        self.places = batches(self.world)
        self.at = self.places[50].header.base_offset
        spoil(self.places[50].path, self.places[50].position + 100)
        shutil.rmtree(self.world.path / BUCKET / "index")


@pytest.mark.parametrize("every", [23, pytest.param(9, marks=pytest.mark.long)])
def test_a_consumer_is_never_after_the_log_end(tmp_path: Path, every: int) -> None:
    """Also if a repair died after it had truncated the log, so that the next one has nothing to truncate."""
    damaged = Truncated(tmp_path)
    calls, ends = 0, False
    while not ends:
        world = damaged.world.copied(tmp_path / "copy")
        try:
            assert world.repair(replica=False, files=Dying(calls), accepts_loss=True)
            ends = True
        except Killed:
            pass
        assert world.repair(replica=False, accepts_loss=True), calls
        with Store(world.path, options(3000)) as store:
            assert store.table("t").offsets() == {0: (0, damaged.at)}, calls
            assert store.consumers == {"c": {"t": {0: damaged.at}}}, calls
        shutil.rmtree(world.path)
        calls += every


def test_an_open_commit_after_lost_batches_ends(tmp_path: Path) -> None:
    """Its batch would leave a gap in the sequence, and no bucket could be written any more."""
    damaged = Truncated(tmp_path, epochs=True)
    report = damaged.world.repair(replica=False, accepts_loss=True)
    assert report
    assert any("the part of buckets [0] in the commit" in each for each in report.gone)
    with Store(damaged.world.path, options(3000)) as store:
        table = store.table("t")
        assert store.runtime.catalog().writers_of(table.identity[1]).commits == ()
        table.upsert([{"k": k, "v": 2, "s": ""} for k in range(9)])
        table.apply_epoch(
            kvstore.Changes.of([("upsert", {"k": k, "v": 3, "s": ""}) for k in range(9)], SCHEMA), "new", 0
        )
        assert store.check().findings == []


def test_a_snapshot_with_a_wrong_digest_is_not_used(tmp_path: Path) -> None:
    """Of two snapshots the older one is valid."""
    made = written(tmp_path / "made", Random(3), 5000)
    with Store(made.world.path, options(5000)) as store:
        newest = store.table("t").snapshot().offsets[0]
    manifest = paths.snapshot_directory(made.world.path / BUCKET, newest) / paths.SNAPSHOT_MANIFEST
    read = decode_manifest(manifest.read_bytes())
    Files().publish(manifest, encode_manifest(replace(read, digest="00000000000000aa")))
    spoil(made.places[0].path, made.places[0].position + 40)
    made.lost.add(0)
    made.harm_index("gone")
    assert made.snapshots
    report = made.world.repair(replica=False, accepts_loss=True)
    assert report, report.left
    with Store(made.world.path, options(5000)) as store:
        assert {row["k"]: row for row in rows_of(store.table("t"))} == made.rows[made.end]
