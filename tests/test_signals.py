"""Work of the main thread without a signal's handler in between: handlers run afterwards, once, and stay in place."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

import pytest

from kvstore.signals import undisturbed


class TimedOut(Exception):
    """Raised by the handler of a time limit."""


def _time_out(*_: object) -> None:
    raise TimedOut


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    """Ctrl-C and a time limit raise; they still do after each test."""
    before = [signal.signal(number, handler) for number, handler in _RAISE.items()]
    yield
    assert {number: signal.getsignal(number) for number in _RAISE} == _RAISE
    for number, handler in zip(_RAISE, before, strict=True):
        signal.signal(number, handler)


_RAISE: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGALRM: _time_out}
done: list[str] = []


def work(*numbers: int) -> str:
    """Several steps, with signals between them."""
    done.clear()
    for number in numbers:
        signal.raise_signal(number)
    while len(done) < 100:
        done.append("step")
    return "done"


@pytest.mark.parametrize(("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGALRM, TimedOut)])
def test_the_work_ends_before_the_handler_raises(number: int, error: type[BaseException]) -> None:
    with pytest.raises(error):
        undisturbed(work, number)
    assert len(done) == 100
    assert undisturbed(work) == "done", "nothing came since"


def test_a_handler_that_returns_is_called_once_with_its_signal() -> None:
    calls: list[tuple[int, bool]] = []

    def handler(number: int, frame: FrameType | None) -> None:
        calls.append((number, frame is not None))

    before = signal.signal(signal.SIGINT, handler)
    assert undisturbed(work, signal.SIGINT, signal.SIGINT) == "done"
    assert calls == [(signal.SIGINT, True)]
    assert signal.getsignal(signal.SIGINT) is handler
    signal.signal(signal.SIGINT, before)


def test_of_two_signals_each_handler_runs_and_both_stay_in_place() -> None:
    with pytest.raises((KeyboardInterrupt, TimedOut)) as caught:
        undisturbed(work, signal.SIGINT, signal.SIGALRM)
    first, context = caught.value, caught.value.__context__
    assert {type(first), type(context)} == {KeyboardInterrupt, TimedOut}


def test_an_error_of_the_work_is_raised_unless_a_handler_raises() -> None:
    def fail(*numbers: int) -> None:
        work(*numbers)
        raise ValueError

    with pytest.raises(ValueError):
        undisturbed(fail)
    with pytest.raises(KeyboardInterrupt) as caught:
        undisturbed(fail, signal.SIGINT)
    assert isinstance(caught.value.__context__, ValueError)


def test_work_within_work_puts_handlers_off_until_all_is_done() -> None:
    def outer() -> None:
        undisturbed(work, signal.SIGINT)
        done.append("outer")

    with pytest.raises(KeyboardInterrupt):
        undisturbed(outer)
    assert done[-1] == "outer"


def test_a_signal_between_two_steps_of_putting_handlers_back() -> None:
    """A handler that runs while others are still put off loses none of them."""

    def alarm_too(number: int, frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGALRM)
        signal.default_int_handler(number, frame)

    before = signal.signal(signal.SIGINT, alarm_too)
    with pytest.raises((KeyboardInterrupt, TimedOut)):
        undisturbed(work, signal.SIGINT)
    signal.signal(signal.SIGINT, before)
    with pytest.raises(TimedOut):
        signal.raise_signal(signal.SIGALRM)


def test_a_handler_that_replaces_others_has_its_way() -> None:
    def replace(*_: object) -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        undisturbed(work)

    before = signal.signal(signal.SIGINT, replace)
    undisturbed(work, signal.SIGINT)
    assert signal.signal(signal.SIGALRM, _time_out) is signal.SIG_IGN
    signal.signal(signal.SIGINT, before)


def test_a_thread_that_only_seems_to_be_the_main_one_works_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in which Python is embedded may import it in any of its threads."""
    found: list[object] = []

    def run() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading, "main_thread", threading.current_thread)
            found.append(undisturbed(work))
            found.append(undisturbed(lambda: signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == ["done", signal.default_int_handler]
    with pytest.raises(KeyboardInterrupt):
        undisturbed(work, signal.SIGINT)
    assert len(done) == 100, "in the main thread, handlers still wait"


def test_other_threads_work_as_they_are() -> None:
    found: list[object] = []

    def run() -> None:
        found.append(undisturbed(lambda: signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_a_process_that_is_forked_meanwhile_has_its_handlers() -> None:
    def in_child(act: Callable[[], object]) -> int:
        pid = os.fork()
        if not pid:
            code = 1
            with suppress(KeyboardInterrupt):
                act()
                code = 0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 2
            os._exit(code)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    assert undisturbed(in_child, lambda: None) == 0
    assert undisturbed(in_child, lambda: signal.raise_signal(signal.SIGINT)) == 1, "it is interrupted"
