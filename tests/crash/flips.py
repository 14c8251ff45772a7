"""A changed bit of the small store, and what is to be said of it."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.crash.places import fill
from tests.crash.small_store import CHECK, Answers, go_on, read, write
from tests.crash.vfs import Contents

Verdict = Literal["read", "checked", "late", "harmless", "silent", "unnamed", "crash"]
BAD: frozenset[Verdict] = frozenset(["silent", "unnamed", "crash"])


@dataclass(frozen=True, slots=True)
class Change:
    """Bits of a file that are other than they were; bit 0 is the lowest of the first byte.

    Attributes:
        thorough: Go on after damage was reported: check, write, open again.
        content: What the file holds instead, before any bit is changed; None for what it held.
        is_read: Whether a reader comes before any writer. An index as it was once is no damage: a reader only sees
            what was there then, and a writer brings it up to date.
    """

    file: str
    bits: tuple[int, ...]
    thorough: bool = True
    content: bytes | None = None
    is_read: bool = True


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a change.

    Attributes:
        verdict: ``read``: reported when opening, reading or writing. ``checked``: reported by the check alone, and
            every answer was right. ``late``: reported by the check alone, and some answers were wrong. ``harmless``:
            all as it was. ``silent``: something was wrong, and nothing reported. ``unnamed``: an error that is no
            StoreError. ``crash``: the process ended, or did not.
        detail: What was wrong.
    """

    change: Change
    verdict: Verdict
    detail: str = ""


class Judge:
    """Knows what the store answers as it is.

    Args:
        directory: Where stores are made, one after the other.
    """

    def __init__(self, directory: Path, contents: Contents) -> None:
        self._directory = directory
        self._contents = contents
        self._truth: dict[str, Answers] = {}
        self._written = True

    def judge(self, change: Change) -> Outcome:
        """Change the bits, and ask all that can be asked."""
        if not self._truth:
            self._make()
            self._truth = {step.__name__: step(self._directory) for step in _STEPS}
            self._written = True
        data = bytearray((self._contents[change.file] or b"") if change.content is None else change.content)
        for bit in change.bits:
            data[bit // 8] ^= 1 << bit % 8
        if self._written:
            self._make()
        _overwrite(self._directory / change.file, data)
        outcome = self._ask(change)
        if not self._written:
            _overwrite(self._directory / change.file, self._contents[change.file] or b"")
        return outcome

    def _ask(self, change: Change) -> Outcome:
        verdict: Verdict = "harmless"
        steps = _STEPS if change.thorough else _STEPS[:2]
        for step in steps if change.is_read else steps[1:]:
            if verdict != "harmless" and not change.thorough:
                break
            self._written = self._written or step is not read
            try:
                answers = step(self._directory, thorough=change.thorough)
            except Exception as error:  # whatever it is, the user would get it
                return Outcome(change, "unnamed", f"{step.__name__}: {type(error).__name__}: {error}")
            truth = self._truth[step.__name__]
            wrong = [what for what in truth.keys() | answers.keys() if answers.get(what) != truth.get(what)]
            if not wrong:
                continue
            if answers.damage_is_read:
                verdict = "read"
            elif not answers.damage_is_checked:
                return Outcome(change, "silent", f"{step.__name__}: {sorted(wrong)}")
            elif verdict != "read":
                verdict = "checked" if wrong == [CHECK] else "late"
        return Outcome(change, verdict)

    def _make(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir()
        fill(self._directory, self._contents)
        self._written = False


_STEPS = (read, write, go_on)


def _overwrite(path: Path, data: bytes | bytearray) -> None:
    """Change a file as rot would: it is the same file."""
    descriptor = os.open(path, os.O_WRONLY)
    os.write(descriptor, data)
    os.ftruncate(descriptor, len(data))
    os.close(descriptor)
