"""Every single-bit flip of a small store's files (but for locks): detected, or harmless with the reason.

Detected: opening, reading, writing or `check` reports damage by a CorruptData or a finding. Harmless: every answer is
as it was, also those of a store that is written to and opened again; then the bit lies in a region of `REASONS`.

Not flipped are `LOCK`, `PUBLISHED` and `lock.mdb`, which hold nothing that is stored. The test of every bit takes those
regions that nothing looks at, which are most of an LMDB file, all at once in patterns of noise; of their bits alone
only a sample.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import on_disk
from tests.crash.flipper import Flipper
from tests.crash.flips import BAD, Change, Outcome
from tests.crash.lmdb_regions import regions_of
from tests.crash.small_store import build
from tests.crash.vfs import Contents
from tests.support.proof import Proves

REASONS = {
    "sparse index": "a hint: an entry that fails its checksum is left out, and then the log is walked from its start",
    "address": "where to map the file; LMDB takes it only with MDB_FIXEDMAP, which is never set",
    "map size": "LMDB takes it only from the size that is given at open, or to grow; it is never less than the file",
    "unused field": "LMDB has the field in each page's head or first branch node, and does not look at it there",
    "after the meta": "a meta page ends before its page does",
    "commit before": "the meta page that the next commit overwrites: all but its number, and what that is held against",
    "free page": "a page that the next commits fill",
    "gap": "between the pointers of a page and its nodes",
    "pad byte": "after a node of an odd length",
    "separator": "a branch's key may be any that is above all keys before it, and not above the first after it",
    "free record": "which commit freed a page matters to readers of that time only; order and the last are verified",
    "overflow tail": "after a value that does not fill its pages",
    "after the last page": "pages that were never committed",
}
"""Regions in which a bit may be harmless."""

UNSEEN = ("after the meta", "free page", "gap", "overflow tail", "after the last page")
"""Regions that nothing at all looks at."""
UNSEEN_EVERY = 101
RISKY = ("structure", "separator", "free record", "commit before")
"""Regions that LMDB follows."""
THOROUGH_EVERY = 31
"""Of the others so many bits for one that is asked everything, also after damage was reported."""
QUICK_CHANGES, QUICK_OF_A_REGION = 30, 1


@pytest.fixture(scope="module")
def contents(tmp_path_factory: pytest.TempPathFactory) -> Contents:
    """The store, as it is when it was closed."""
    path = tmp_path_factory.mktemp("flips") / "store"
    build(path)
    return {name: data for name, data in on_disk(path).items() if not name.endswith(("LOCK", "PUBLISHED", "lock.mdb"))}


@pytest.fixture
def flipper(contents: Contents, work: Path) -> Iterator[Flipper]:
    with Flipper(contents, work) as flipper:
        yield flipper


def regions(contents: Contents) -> dict[str, Sequence[str]]:
    """The region of each byte of each file."""
    found: dict[str, Sequence[str]] = {}
    for name, data in contents.items():
        if data is None:
            continue
        if name.endswith(".mdb"):
            found[name] = regions_of(data)
        else:
            found[name] = [("sparse index" if name.endswith(".index") else "ours")] * len(data)
    return found


def single_bits(contents: Contents) -> list[Change]:
    """Every bit of what is looked at, and some of what is not, each alone."""
    changes = []
    for name, of_bytes in regions(contents).items():
        for bit in range(8 * len(of_bytes)):
            region = of_bytes[bit // 8]
            if region not in UNSEEN or not bit % UNSEEN_EVERY:
                thorough = region in RISKY or not bit % THOROUGH_EVERY
                changes.append(Change(name, (bit,), thorough))
    return changes


def noise(contents: Contents, patterns: int) -> Iterator[Change]:
    """All bits that nothing looks at at once, each other than it was in about half of the patterns."""
    random = Random(1)
    for name, of_bytes in regions(contents).items():
        unseen = [bit for bit in range(8 * len(of_bytes)) if of_bytes[bit // 8] in UNSEEN]
        for _ in range(patterns if unseen else 0):
            yield Change(name, tuple(bit for bit in unseen if random.random() < 0.5))


def held(contents: Contents, outcomes: Iterator[Outcome], tell: Tell) -> Counter[tuple[str, str]]:
    """Outcomes counted by verdict and region, after none was found to be bad."""
    of_bytes = regions(contents)
    counts: Counter[tuple[str, str]] = Counter()
    bad: list[str] = []
    for outcome in outcomes:
        change = outcome.change
        byte = change.bits[0] // 8
        region = of_bytes[change.file][byte]
        counts[outcome.verdict, region] += 1
        if outcome.verdict in BAD or (outcome.verdict == "harmless" and region not in REASONS):
            bad.append(
                f"{change.file} byte {byte} bit {change.bits[0] % 8}: {outcome.verdict} in {region}, {outcome.detail}"
            )
    verdicts = Counter[str]()
    for (verdict, _), count in counts.items():
        verdicts[verdict] += count
    tell(f"{counts.total()} flips: {dict(verdicts)}, {len(bad)} bad")
    tell(*(f"{verdict} in {region}: {count}" for (verdict, region), count in sorted(counts.items())))
    assert not bad, "\n".join([f"{len(bad)} bad", *bad[:20]])
    return counts


def test_the_store_has_every_kind_of_file_and_region(contents: Contents) -> None:
    suffixes = Counter(name.rsplit(".", 1)[-1] for name, data in contents.items() if data)
    named = {"STORE": 1, "tables/1/TABLE": 1}
    assert suffixes == named | {"mdb": 2, "log": 2, "index": 2, "writers": 1, "parquet": 1, "json": 2}
    found = {region for of_bytes in regions(contents).values() for region in of_bytes}
    assert found | {"after the last page"} == {*REASONS, "ours", "value", "structure"}


def test_some_bits(contents: Contents, flipper: Flipper, tell: Tell) -> None:
    """So many bits in even steps, and of each rare region some."""
    every = single_bits(contents)
    of_bytes = regions(contents)
    rare: dict[tuple[str, str], list[Change]] = {}
    for change in every:
        rare.setdefault((change.file, of_bytes[change.file][change.bits[0] // 8]), []).append(change)
    chosen = every[:: len(every) // QUICK_CHANGES]
    chosen += [change for some in rare.values() for change in some[:: -(-len(some) // QUICK_OF_A_REGION)]]
    counts = held(contents, flipper.judge(chosen), tell)
    assert counts.total() >= QUICK_CHANGES


@pytest.mark.parametrize("patterns", [1, pytest.param(32, marks=pytest.mark.long)])
def test_noise_in_what_nothing_looks_at(patterns: int, contents: Contents, flipper: Flipper, tell: Tell) -> None:
    counts = held(contents, flipper.judge(list(noise(contents, patterns))), tell)
    assert {verdict for verdict, _ in counts} == {"harmless"}


@pytest.mark.long
def test_every_bit(contents: Contents, flipper: Flipper, tell: Tell, proves: Proves) -> None:
    changes = single_bits(contents)
    counts = held(contents, flipper.judge(changes), tell)
    assert counts.total() == len(changes)
    proves("bits flipped", len(changes))
