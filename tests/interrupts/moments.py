"""Ctrl-C at a chosen moment: a signal comes while the main thread runs a chosen instruction of a call.

CPython looks for signals only after calls, at the beginning of functions and when loops go back. So the moments of a
call are the instructions that look; the signal is made pending just before one of them runs, by a C function: any
Python code would be interrupted itself. What follows is exactly what Ctrl-C does there.
"""

from __future__ import annotations

import ctypes
import dis
import gc
import signal
import sys
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise, repeat
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

OWN = ("kvstore", "logformat", "merge_engines", "writer")
_OURS = tuple(f"/{name}/" for name in OWN)
_TESTS = str(Path(__file__).parents[1])
_LIBRARY = ("/contextlib.py", "/threading.py", "/_base.py", "/thread.py", "/_weakrefset.py", "/weakref.py")
_LOOKING = ("CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD", "BEFORE_WITH", "FOR_ITER", "WITH_EXCEPT_START")
_GO_ELSEWHERE = ("EXTENDED_ARG", "RETURN_VALUE", "RERAISE", "RAISE_VARARGS")

Trace = Callable[[FrameType, str, Any], Any]


# Trace functions that run no Python code: one that does nothing, and the interrupt, which is followed by it.
_nothing = ctypes.pythonapi["Py_IsInitialized"]
_nothing.argtypes = [ctypes.py_object] * 3
_nothing.restype = None
_interrupt = ctypes.pythonapi["PyErr_SetInterrupt"]
_interrupt.argtypes = [ctypes.py_object] * 3
_interrupt.restype = defaultdict(repeat(_nothing).__next__).__getitem__  # type: ignore[assignment]


class Moments:
    """Counts the instructions of a call, and interrupts it at one."""

    def __init__(self) -> None:
        self._offsets: dict[CodeType, frozenset[int]] = {}
        self._at = -1
        self._count = 0

    def of(self, call: Callable[[], object]) -> int:
        """How many moments a call has, which runs to its end."""
        self._traced(call, -1)
        return self._count

    def interrupt(self, call: Callable[[], object], moment: int) -> BaseException | None:
        """Run a call, with a signal at a moment of it; what it raised."""
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        error: BaseException | None = None
        try:
            try:
                self._traced(call, moment)
                for _ in range(10):
                    pass  # a signal that came at its very end
            except BaseException as raised:  # whatever it is, the test judges it
                error = raised.with_traceback(None)
        except KeyboardInterrupt as raised:
            error = raised
        finally:
            sys.settrace(None)
            signal.signal(signal.SIGINT, before)
        _without_traces(error)
        return error

    def _traced(self, call: Callable[[], object], at: int) -> None:
        self._at, self._count = at, 0
        sys.settrace(self._called)
        try:
            call()
        finally:
            sys.settrace(None)

    def _called(self, frame: FrameType, _event: str, _arg: Any) -> Trace | None:
        name = frame.f_code.co_filename
        if self._count > self._at >= 0 or not (any(each in name for each in _OURS) or name.endswith(_LIBRARY)):
            return None
        if name.startswith(_TESTS):
            return None
        frame.f_trace = self._step  # from Python 3.12 on, a frame without one has no instructions to trace
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self._step

    def _step(self, frame: FrameType, event: str, _arg: Any) -> Trace | None:
        if event != "opcode":
            return self._step
        if frame.f_lasti in self._before_looking(frame.f_code):
            self._count += 1
            if self._count == self._at + 1:
                frame.f_trace = _interrupt  # type: ignore[assignment]  # for the instruction after this one
                return None
        return self._step

    def _before_looking(self, code: CodeType) -> frozenset[int]:
        """Where the instructions of a function are that come just before one that looks."""
        known = self._offsets.get(code)
        if known is None:
            known = self._offsets[code] = frozenset(
                one.offset
                for one, following in pairwise(dis.get_instructions(code))
                if following.opname in _LOOKING and one.opname not in _GO_ELSEWHERE and one.opcode not in dis.hasjrel
            )
        return known


def _without_traces(error: BaseException | None) -> None:
    """Let go what the frames of an error hold, as a program does that has handled it."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        error.__traceback__ = None
        error = error.__context__
    gc.collect()
