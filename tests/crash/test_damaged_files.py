"""Files of the small store of which more than a bit is wrong: it is reported, or every answer is as it was.

Bytes set to 0x00 and 0xff, cut at any length, blocks swapped, and one file as it was once while all others went on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import TypeAlias

import pytest

from tests.crash.conftest import Tell
from tests.crash.explore import on_disk
from tests.crash.flipper import Flipper
from tests.crash.flips import BAD, Change
from tests.crash.small_store import build
from tests.crash.vfs import Contents

QUICK, LONG, NIGHTLY = 3, 150, 500
"""Changes of each kind, at most."""
PAGE = 4096


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory) -> list[Contents]:
    """The store each time that it was committed, and at last as it was when it was closed."""
    path = tmp_path_factory.mktemp("damaged") / "store"
    found: list[Contents] = []
    build(path, lambda: found.append(_stored(path)))
    return [*found, _stored(path)]


def _stored(path: Path) -> Contents:
    return {name: data for name, data in on_disk(path).items() if not name.endswith(("LOCK", "lock.mdb"))}


Damage: TypeAlias = Callable[[], Change]
"""One of very many, of which few are made."""


def bytes_set(contents: Contents) -> Iterator[Damage]:
    for name, data in contents.items():
        for place, byte in enumerate(data or b""):
            for wrong in (byte, byte ^ 0xFF):  # bits that are set become 0, or all others 1
                if wrong:
                    yield partial(byte_set, name, place, wrong)


def byte_set(name: str, place: int, wrong: int) -> Change:
    return Change(name, tuple(8 * place + bit for bit in range(8) if wrong >> bit & 1), thorough=False)


def cut(contents: Contents) -> Iterator[Damage]:
    for name, data in contents.items():
        yield from (partial(cut_at, name, data, length) for length in range(len(data or b"")))


def cut_at(name: str, data: bytes, length: int) -> Change:
    return Change(name, (), content=data[:length])


def swapped(contents: Contents) -> Iterator[Damage]:
    for name, data in contents.items():
        size = PAGE if name.endswith(".mdb") else 64
        blocks = [(data or b"")[at : at + size] for at in range(0, len(data or b"") - size + 1, size)]
        for one in range(len(blocks)):
            for other in range(one):
                if blocks[one] != blocks[other]:
                    yield partial(swapped_at, name, data, blocks, one, other)


def swapped_at(name: str, data: bytes, blocks: list[bytes], one: int, other: int) -> Change:
    mixed = [*blocks]
    mixed[one], mixed[other] = blocks[other], blocks[one]
    whole = b"".join(mixed)
    return Change(name, (), content=whole + data[len(whole) :])


def old(stages: list[Contents]) -> list[Change]:
    """Files as they were at a stage before, each alone."""
    now = stages[-1]
    return [
        Change(name, (), content=data, is_read="/index/" not in name)
        for stage in stages[:-1]
        for name, data in stage.items()
        if data is not None and now.get(name) not in (None, data)
    ]


@pytest.mark.parametrize(
    "most",
    [QUICK, pytest.param(LONG, marks=pytest.mark.long), pytest.param(NIGHTLY, marks=pytest.mark.nightly)],
)
def test_each_is_reported_or_harmless(most: int, stages: list[Contents], work: Path, tell: Tell) -> None:
    chosen = old(stages)
    assert {change.file.rsplit(".", 1)[-1] for change in chosen} >= {"mdb", "log"}
    for kind in (bytes_set, cut, swapped):
        every = list(kind(stages[-1]))
        chosen += [make() for make in Random(most).sample(every, min(most, len(every)))]
    with Flipper(stages[-1], work) as flipper:
        outcomes = list(flipper.judge(chosen))
    bad = [
        f"{outcome.change.file}: {outcome.verdict}, {outcome.detail}, bits {outcome.change.bits[:8]}, "
        f"{'' if outcome.change.content is None else len(outcome.change.content)}"
        for outcome in outcomes
        if outcome.verdict in BAD
    ]
    assert len(outcomes) == len(chosen)
    tell(f"{len(outcomes)} damages, {sum(outcome.verdict == 'harmless' for outcome in outcomes)} harmless")
    assert not bad, "\n".join([f"{len(bad)} bad of {len(outcomes)}", *bad[:20]])
