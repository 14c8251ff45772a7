"""``kvstore serve``: a process that owns the buckets of a store, for others that write, and does nothing else."""

from __future__ import annotations

import signal
import threading
from contextlib import suppress
from types import FrameType

import kvstore
from kvstore.cli.arguments import Directory, opened_store
from kvstore.cli.printing import print_line
from kvstore.errors import NoSuchTable

_LOOK_SECONDS = 0.5
"""How often it takes the buckets that are free: of new tables, or given back after a commit."""


def serve(path: Directory) -> None:
    """Own the buckets of the store until interrupted, so that other processes send their writes here.

    A bucket that another process owns is taken once that one gives it up; start this before the others.
    """
    ended = threading.Event()

    def end(_signal: int, _frame: FrameType | None) -> None:
        ended.set()

    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, end)
    with opened_store(path, write=True) as store:
        others = own(store)
        waits = f", as soon as other processes give them up: {others} of them" if others else ""
        print_line(f"owns the buckets of {path}{waits}; Ctrl-C or SIGTERM ends it")
        while not ended.wait(_LOOK_SECONDS):
            own(store)


def own(store: kvstore.Store) -> int:
    """Become the owner of every bucket that has none.

    Returns:
        How many buckets other processes own.
    """
    others = 0
    for name in store.list_tables():
        with suppress(NoSuchTable):  # another process has dropped it at this moment
            table = store.table(name)
            for number in range(table.buckets):
                handle = table.bucket(number).handle
                others += not (handle.writes or handle.try_own())
    return others
