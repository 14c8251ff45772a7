"""In what order tests run, and which of them one worker runs."""

from __future__ import annotations

ROOMS = ("spark", "crash", "proof", "table", "writer", "cli", "store", "logformat")
"""What takes longest begins first, so that workers end together."""
SPARK = ("tests/spark/", "tests/cli/test_demo.py")
SINGLE = ("tests/crash/", "tests/fuzz/", "tests/interrupts/", "tests/proof/")


def scope_of(nodeid: str) -> str:
    """What goes to one worker: tests of the same scope."""
    if nodeid.startswith(SPARK):
        return "spark"
    return nodeid if nodeid.startswith(SINGLE) else nodeid.partition("::")[0]


def rank_of(nodeid: str) -> int:
    """Of what is run first it is lowest."""
    room = "spark" if scope_of(nodeid) == "spark" else nodeid.split("/")[1]
    return ROOMS.index(room) if room in ROOMS else len(ROOMS)
