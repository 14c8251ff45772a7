"""Ctrl-C within work of the main thread that is not to be stopped halfway comes when the work has ended."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pytest

from kvstore.process.signals import undisturbed

done: list[str] = []


pytestmark = pytest.mark.usefixtures("usual_handlers")


def work(interrupts: int = 0) -> bool:
    """Several steps, with Ctrl-C between them."""
    done.clear()
    for _ in range(interrupts):
        signal.raise_signal(signal.SIGINT)
    while len(done) < 100:
        done.append("step")
    return True


@pytest.mark.parametrize("times", [1, 2])
def test_ctrl_c_comes_when_the_work_has_ended_and_once(times: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        undisturbed(work, times)
    assert len(done) == 100
    assert undisturbed(work), "nothing came since"


def test_an_error_of_the_work_is_raised_unless_ctrl_c_came() -> None:
    def fail(interrupts: int) -> bool:
        work(interrupts)
        raise ValueError

    with pytest.raises(ValueError):
        undisturbed(fail, 0)
    with pytest.raises(KeyboardInterrupt) as caught:
        undisturbed(fail, 1)
    assert isinstance(caught.value.__context__, ValueError)


def test_work_within_work_is_not_interrupted_until_all_is_done() -> None:
    def outer() -> bool:
        undisturbed(work, 1)
        done.append("outer")
        return True

    with pytest.raises(KeyboardInterrupt):
        undisturbed(outer)
    assert done[-1] == "outer"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_done_in_a_program_with_handlers_of_its_own(number: signal.Signals) -> None:
    def handler(*_: object) -> None:
        raise AssertionError

    done.clear()
    before = signal.signal(number, handler)
    assert not undisturbed(work)
    assert signal.getsignal(number) is handler
    signal.signal(number, before)
    assert done == []
    assert undisturbed(work), "they are gone"


def test_nothing_is_done_in_a_thread_that_only_seems_to_be_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program in which Python is embedded may import it in any of its threads."""
    found: list[bool] = []

    def run() -> None:
        with monkeypatch.context() as patched:
            patched.setattr(threading, "main_thread", threading.current_thread)
            found.append(undisturbed(work))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert found == [False]
    assert undisturbed(work)


def test_other_threads_work_as_they_are() -> None:
    found: list[object] = []

    def look() -> bool:
        found.append(signal.getsignal(signal.SIGINT))
        return True

    thread = threading.Thread(target=undisturbed, args=[look])
    thread.start()
    thread.join()
    assert found == [signal.default_int_handler]


def test_ctrl_c_at_any_moment_leaves_its_handler() -> None:
    main, (asked, ask) = threading.get_ident(), os.pipe()

    def send() -> None:
        while os.read(asked, 1) == b"1":
            time.sleep(random.random() / 2000)
            signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    for _ in range(200):
        with suppress(KeyboardInterrupt):
            os.write(ask, b"1")
            while True:
                undisturbed(work)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    os.write(ask, b"0")
    thread.join()
    os.close(asked)
    os.close(ask)


def test_a_process_that_is_forked_meanwhile_can_be_interrupted() -> None:
    def in_child(act: Callable[[], object]) -> bool:
        pid = os.fork()
        if not pid:
            code = 1
            with suppress(KeyboardInterrupt):
                act()
                code = 0 if signal.getsignal(signal.SIGINT) is signal.default_int_handler else 2
            os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        return True

    codes: list[int] = []
    undisturbed(in_child, lambda: None)
    undisturbed(in_child, lambda: signal.raise_signal(signal.SIGINT))
    assert codes == [0, 1]
