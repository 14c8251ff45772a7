"""Work of the main thread that no signal's handler interrupts: handlers run when it has ended.

Python runs handlers in the main thread, between any two instructions, and they may raise: KeyboardInterrupt, or a time
limit. Other threads are not interrupted. What changes several things of which one follows from the other runs here if
it is short; what waits for others, or takes long, runs in a thread (:mod:`kvstore.calls`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import threading
from collections.abc import Callable
from inspect import currentframe
from types import FrameType
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
Handler = Callable[[int, FrameType | None], Any]

_NUMBERS = sorted(map(int, signal.valid_signals()))


class _Handlers:
    """Handlers of the main thread, which are put off while it works.

    Attributes:
        are_put_off: Whether they are now.
    """

    def __init__(self) -> None:
        self.are_put_off = False
        self._seen: tuple[object, ...] = ()
        self._own: dict[int, Handler] = {}
        self._came: list[int] = []
        self._instead = self._note

    def put_off(self) -> None:
        """Note the signals that come from now on."""
        # From a C module: what the standard library has around these two takes five times as long.
        seen = tuple(map(_signal.getsignal, _NUMBERS))
        if seen != self._seen:
            self._own = {number: each for number, each in zip(_NUMBERS, seen, strict=True) if callable(each)}
            self._seen = seen
        self.are_put_off = True
        try:
            for number in self._own:
                _signal.signal(number, self._instead)
        except ValueError:
            self._seen, self._own = (
                (),
                {},
            )  # Python is embedded in a program, and this thread is not the one that runs handlers

    def put_back(self) -> None:
        """Put the handlers back, and run those whose signals came; all of them, whatever one of them raises."""
        self.are_put_off = False
        try:
            self._put_back(list(self._own.items()))
        finally:
            self._run_late()

    def _put_back(self, rest: list[tuple[int, Handler]]) -> None:
        if not rest:
            return
        number, handler = rest.pop()
        try:
            if _signal.getsignal(number) is self._instead:
                _signal.signal(number, handler)
        finally:
            self._put_back(rest)

    def _run_late(self) -> None:
        if not self._came:
            return
        number = self._came.pop(0)
        try:
            handler = _signal.getsignal(number)
            if callable(handler):
                handler(number, currentframe())
        finally:
            self._run_late()

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.are_put_off:
            if number not in self._came:
                self._came.append(number)
            return
        # Handlers are being put back, or an error of one of them has left this one in its place.
        handler = self._own[number]
        _signal.signal(number, handler)
        handler(number, frame)

    def forked(self) -> None:
        """Put the handlers back in a child of a process that had put them off."""
        if self.are_put_off:
            self._came.clear()
            self.put_back()


_handlers = _Handlers()
os.register_at_fork(after_in_child=_handlers.forked)


def undisturbed(work: Callable[P, T], *args: P.args, **given: P.kwargs) -> T:
    """Work without a handler in between. If one raises afterwards, what the work returned or raised is lost."""
    if threading.get_ident() != threading.main_thread().ident or _handlers.are_put_off:
        return work(*args, **given)
    try:
        _handlers.put_off()
        return work(*args, **given)
    finally:
        _handlers.put_back()
