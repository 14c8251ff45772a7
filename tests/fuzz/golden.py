"""Files of the golden store and its replica, as they were committed: real bytes to begin with."""

from __future__ import annotations

import tarfile
from functools import cache
from pathlib import Path

GOLDEN = Path(__file__).parents[1] / "golden/format-1"


@cache
def files(archive: str) -> dict[str, bytes]:
    """Contents by name of ``store`` or ``replica``."""
    found = {}
    with tarfile.open(GOLDEN / f"{archive}.tar.xz") as opened:
        for member in opened:
            if member.isfile():
                held = opened.extractfile(member)
                assert held is not None
                found[member.name.partition("/")[2]] = held.read()
    return found


def ending(archive: str, suffix: str) -> list[bytes]:
    """Those whose name ends so, in order."""
    return [data for name, data in sorted(files(archive).items()) if name.endswith(suffix)]
