"""Targets that are bad, to see that each way to be is found: none of them is about kvstore."""

from __future__ import annotations

import os


def _ends_the_process(_: bytes) -> None:
    os.abort()


def _raises_another_error(data: bytes) -> None:
    data[len(data)]


def _takes_memory(_: bytes) -> None:
    taken = bytearray(1 << 30)
    taken[:: 1 << 12] = b"x" * len(taken[:: 1 << 12])


def _hangs(_: bytes) -> None:
    while True:
        pass


PLANTED = {
    each.__name__.removeprefix("_"): each for each in (_ends_the_process, _raises_another_error, _takes_memory, _hangs)
}
INPUT = b"\xfe\xed"
