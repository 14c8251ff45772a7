"""Runs targets in a process of its own: ``python -m tests.fuzz.runner INPUT SEED SECONDS TARGET=RUNS …``.

An input is in the file INPUT before it is tried, so that the parent of a process that ended, or was ended,
knows of what. A run that takes longer than so many seconds, or has the process take more than ``BYTES_MAX``, is bad.
"""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from types import MappingProxyType

from tests.fuzz.mutate import mutated
from tests.fuzz.planted import INPUT, PLANTED

SECONDS_MAX = 60
BYTES_MAX = 512 << 20
INPUT_BYTES = 1 << 20
_HEAD = 64
ROOT = Path(__file__).parents[2]


class Held:
    """The input that is being tried, in a file: name of the target, length, bytes."""

    def __init__(self, path: Path) -> None:
        if not path.exists():
            path.write_bytes(bytes(_HEAD + INPUT_BYTES))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _HEAD + INPUT_BYTES)

    def put(self, target: bytes, data: bytes) -> None:
        """Before it is tried."""
        self._map[:_HEAD] = target.ljust(_HEAD - 8) + len(data).to_bytes(8, "little")
        self._map[_HEAD : _HEAD + len(data)] = data

    def shown(self) -> str:
        """What was tried last, in words."""
        name = self._map[: _HEAD - 8].strip(b" \0").decode()
        length = int.from_bytes(self._map[_HEAD - 8 : _HEAD], "little")
        data = bytes(self._map[_HEAD : _HEAD + length])
        return f"{name} of {length} bytes: keep them as tests/fuzz/corpus/{name}/<what it is>\n{data.hex()}"


def run(held: Held, name: str, runs: int, seed: int, seconds: int) -> None:
    """Try seeds, the corpus, and what is made of them.

    Raises:
        BaseException: What a target raised, and should not have.
    """
    target, inputs, allowed = _found(name)
    began = _most_bytes()
    for data in _inputs(inputs, runs, Random(f"{seed} {name}")):
        held.put(name.encode(), data)
        signal.alarm(seconds)
        with suppress(*allowed):
            target(data)
        taken = _most_bytes() - began
        assert taken <= BYTES_MAX, f"{taken} bytes were taken"
    signal.alarm(0)


def _most_bytes() -> int:
    """Memory at its most. Not ``ru_maxrss``: that begins with what the parent took, and hides what is less."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split(maxsplit=1)[0]) << 10


def _found(name: str) -> tuple[Callable[[bytes], None], list[bytes], tuple[type[Exception], ...]]:
    """A target, what it begins with, and what it may raise."""
    if name in PLANTED:
        return PLANTED[name], [INPUT], ()
    # Those take a while to be imported.
    from tests.fuzz.targets import ALLOWED, TARGETS

    return TARGETS[name].run, TARGETS[name].inputs(name), ALLOWED


def _inputs(seeds: list[bytes], runs: int, random: Random) -> Iterator[bytes]:
    yield from seeds[:runs]
    for _ in range(runs - len(seeds)):
        yield mutated(random, seeds)


def tried(
    path: Path,
    budgets: dict[str, int],
    *,
    seed: int,
    seconds: int = SECONDS_MAX,
    program: Sequence[str] = ("tests.fuzz.runner",),
    environment: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Run targets in another process.

    Args:
        program: The module that runs them, and what it wants before the runner's arguments.
        environment: What more the process has in its environment.

    Raises:
        AssertionError: One was bad; its input is shown in hexadecimal digits.
    """
    orders = [f"{name}={runs}" for name, runs in budgets.items()]
    command = [sys.executable, "-m", *program, path, str(seed), str(seconds), *orders]
    with_more = os.environ | {"TMPDIR": str(path.parent)} | environment
    done = subprocess.run(command, cwd=ROOT, env=with_more, capture_output=True, text=True, check=False)
    assert not done.returncode, "\n".join(
        [f"{_end(done.returncode)} after {Held(path).shown()}", done.stdout[-2_000:], done.stderr[-6_000:]]
    )


def _end(status: int) -> str:
    return "it hangs" if status == -signal.SIGALRM else f"it ended with {status}"


def main() -> None:
    """Run what the file asks for; ends with 1 and a traceback at the first that is bad."""
    path, seed, seconds, *orders = sys.argv[1:]
    held = Held(Path(path))
    for order in orders:
        name, _, runs = order.partition("=")
        try:
            run(held, name, int(runs), int(seed), int(seconds))
        except BaseException:
            traceback.print_exc()
            sys.exit(1)


if __name__ == "__main__":
    main()
