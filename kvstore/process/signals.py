"""Work of the main thread that Ctrl-C does not stop halfway: KeyboardInterrupt is raised when it has ended.

Python runs handlers of signals in the main thread, between any two instructions, and they may raise. Other threads are
not interrupted. What changes several things of which one follows from the other runs here if it is short; what waits
for others, or takes long, runs in a thread (:mod:`kvstore.process.calls`).
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import ParamSpec

P = ParamSpec("P")

_NUMBERS = sorted(map(int, signal.valid_signals()))
STACK_FRAMES = 150
"""Calls that undisturbed work, such as a write, may take."""
_INT = _NUMBERS.index(signal.SIGINT)


class _CtrlC:
    """Ctrl-C in the main thread.

    Attributes:
        is_put_off: Whether it is only noted now.
        raises: Whether it raises KeyboardInterrupt. A shell has what it starts with ``&`` ignore Ctrl-C.
    """

    def __init__(self) -> None:
        self.is_put_off = self.raises = self._came = False
        self._seen: tuple[object, ...] = ()
        self._is_all = False
        self._instead = self._note

    def is_all(self) -> bool:
        """Whether no signal has a handler of Python's, or Ctrl-C alone, and the usual one."""
        # From a C module: what the standard library has around this takes five times as long.
        seen = tuple(map(_signal.getsignal, _NUMBERS))
        if seen != self._seen:
            self.raises = seen[_INT] is signal.default_int_handler
            self._is_all = sum(map(callable, seen)) == self.raises
            self._seen = seen
        return self._is_all

    def put_off(self) -> None:
        """Note it from now on."""
        self._came = False
        _signal.signal(signal.SIGINT, self._instead)
        self.is_put_off = True

    def put_back(self) -> None:
        """Have it raise KeyboardInterrupt again, and now, if it came.

        Raises:
            KeyboardInterrupt: It came.
        """
        self.is_put_off = False
        _signal.signal(signal.SIGINT, signal.default_int_handler)
        if self._came:
            raise KeyboardInterrupt

    def forked(self) -> None:
        """Go on in the child of a process that had put it off."""
        if _signal.getsignal(signal.SIGINT) is self._instead:
            self.put_back()

    def _note(self, *_: object) -> None:
        self._came = True


_ctrl_c = _CtrlC()
os.register_at_fork(after_in_child=_ctrl_c.forked)


def is_put_off() -> bool:
    """Whether Ctrl-C in the main thread is only noted now."""
    return _ctrl_c.is_put_off


def is_stack_short() -> bool:
    """Whether the caller is so deep in recursion that work could fail halfway for it."""
    try:
        sys._getframe(max(sys.getrecursionlimit() - STACK_FRAMES, 0))
    except ValueError:
        return False
    return True


def undisturbed(work: Callable[P, bool], *args: P.args, **given: P.kwargs) -> bool:
    """Work without a handler of a signal in between; False if that can't be had, and then nothing was done.

    It can't be had by a caller that is deep in recursion, nor in the main thread of a program that has handlers of its
    own: they would have to be replaced, and what the program has set for its signals besides (``siginterrupt``,
    ``faulthandler``) would be lost.

    Raises:
        KeyboardInterrupt: Ctrl-C came. The work has ended; what it returned or raised is lost.
    """
    if is_stack_short():
        return False
    if threading.get_ident() != threading.main_thread().ident or _ctrl_c.is_put_off:
        return work(*args, **given)
    if not _ctrl_c.is_all():
        return False
    if not _ctrl_c.raises:
        return work(*args, **given)
    try:
        _ctrl_c.put_off()
    except ValueError:
        return False  # Python is embedded in a program, and another thread runs its handlers
    try:
        return work(*args, **given)
    finally:
        _ctrl_c.put_back()
