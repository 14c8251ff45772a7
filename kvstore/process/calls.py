"""Calls that Ctrl-C does not stop halfway: they run in a thread, which no KeyboardInterrupt reaches; the caller waits.

* Python raises KeyboardInterrupt in the main thread only, at almost any instruction. What takes locks, descriptors or
  transactions, or changes several things of which one follows from the other, runs in a thread of its own. Elsewhere
  than in the main thread it runs where it is called; so it does in what the main thread does undisturbed
  (:mod:`kvstore.process.signals`).
* The interrupt of a caller waits for the call to end, and then goes on: so the call is over, as a whole or refused.
  Calls that wait or take long look for it (:func:`check_caller`) and end early. A second interrupt does not wait: the
  thread goes on alone.
* A call keeps what it acquires in an object of its caller before it returns, not in its result: a result may be lost to
  an interrupt. An object that nobody refers to any more gives up what it has (:func:`in_background`).
"""

from __future__ import annotations

import _thread
import contextvars
import functools
import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Generic, ParamSpec, TypeVar

from kvstore.process.signals import is_put_off

P = ParamSpec("P")
T = TypeVar("T")


class CallerInterrupted(BaseException):
    """The caller of this thread's call was interrupted. It ends the call, and is seen by nobody else."""


class Call(Generic[T]):
    """One call, from the thread that waits and from the one that works."""

    def __init__(self, work: Callable[[], T]) -> None:
        self.interrupted = False
        self._work = work
        self._context = contextvars.copy_context()
        self._turns = [None]  # the thread that takes it decides whether the work begins
        self._ended, self._is_over = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self._is_over.acquire()
        self._result: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Work, unless it is too late."""
        if self.take():
            self._do()

    def _do(self) -> None:
        try:
            self._result.append(self._context.run(self._work_here))
        except BaseException as error:  # it is raised where it belongs, by the caller
            self._error = error
        finally:
            del self._work
            self._ended.release()
            self._is_over.release()

    def _work_here(self) -> T:
        around = getattr(_here, "call", None)  # without another thread, a call within a call runs in the same one
        _here.call = self
        try:
            return self._work()
        finally:
            _here.call = around

    def take(self) -> bool:
        """Take the turn; False if it was taken."""
        with suppress(IndexError):
            self._turns.pop()
            return True
        return False

    def wait(self) -> None:
        """Return once the work has ended; do it here if no thread takes it: there may be no memory for its frames."""
        if not self._is_over.acquire(timeout=BEGIN_SECONDS) and self.take():
            self._do()
        self._wait_for_end()

    def _wait_for_end(self) -> None:
        # An interrupt leaves this lock as it was. Event.wait(), Thread.join() and a wait with a time do not stand one.
        with self._ended:
            pass

    def interrupt(self) -> None:
        """Have the work not begin; or end, and wait for that."""
        self.interrupted = True
        if self.take():
            del self._work
        else:
            self._wait_for_end()

    def answer(self) -> T:
        """What came of it."""
        error, self._error = self._error, None
        try:
            if error is not None:
                raise error
            return self._result.pop()
        finally:
            del error  # its traceback has this frame


BEGIN_SECONDS = 1.0
"""A call that no thread has begun by then is made by its caller."""
_here = threading.local()
_NO_THREAD = (RuntimeError, MemoryError)
"""What beginning a thread raises if there are too many, or too little memory or address space for one."""


def uninterrupted(work: Callable[P, T]) -> Callable[P, T]:
    """A function that Ctrl-C does not stop halfway; see above. A decorator, too."""

    @functools.wraps(work)
    def called(*args: P.args, **given: P.kwargs) -> T:
        if threading.get_ident() != threading.main_thread().ident or is_put_off():
            return work(*args, **given)
        call = Call(lambda: work(*args, **given))
        try:
            try:
                _begin(call.run)
            except _NO_THREAD:  # better done here than not at all
                call.run()
            call.wait()
        except BaseException:
            call.interrupt()
            raise
        return call.answer()

    return called


class _Condition(threading.Condition):
    """A condition whose lock no interrupt leaves locked: ``with`` calls the lock, and no Python code around it."""

    _lock: Any

    @property
    def __enter__(self) -> Callable[[], bool]:
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__


class Answer(Future[T]):
    """A future that one thread may wait for and be interrupted, while another gives the answer."""

    def __init__(self) -> None:
        super().__init__()
        self._condition = _Condition()

    def cancel(self) -> bool:
        """False: what was asked goes on, and its answer is given to this future."""
        return False


class Reply(Generic[T]):
    """An answer for which only the thread that asked waits: what it needs of a future, at a fifth of the cost."""

    __slots__ = ("_answered", "_error", "_is_done", "_result")

    def __init__(self) -> None:
        self._answered: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_done = False
        self._result: list[T] = []
        self._error: BaseException | None = None

    def set_result(self, result: T) -> None:
        """Give the answer."""
        self._result.append(result)
        self._is_done = True  # first, so that a wait that an interrupt ended is not repeated
        self._answered.put(None)

    def set_exception(self, error: BaseException) -> None:
        """Give the reason why there is none."""
        self._error = error
        self._is_done = True
        self._answered.put(None)

    def done(self) -> bool:
        """Whether it was answered."""
        return self._is_done

    def wait(self) -> None:
        """Return once it was answered."""
        if not self._is_done:
            self._answered.get()

    def exception(self) -> BaseException | None:
        """Why there is no answer; None if there is one."""
        self.wait()
        return self._error

    def result(self) -> T:
        """The answer."""
        if not self._is_done:
            self._answered.get()
        if self._error is not None:
            raise self._error
        return self._result[0]


def wait_for(future: Future[T] | Reply[T]) -> Future[T] | Reply[T]:
    """Wait until there is an answer: what ``wait()`` does, which can end with a RuntimeError when Ctrl-C comes."""
    if isinstance(future, Reply):
        future.wait()
        return future
    answered: queue.SimpleQueue[Future[T]] = queue.SimpleQueue()
    future.add_done_callback(answered.put)
    return answered.get()


def answer_of(future: Future[T] | Reply[T]) -> T:
    """Wait for an answer, like ``future.result()``."""
    return future.result() if isinstance(future, Reply) else wait_for(future).result()


def check_caller() -> None:
    """End this thread's call if its caller was interrupted; for calls that wait or take long.

    Raises:
        CallerInterrupted: It was.
    """
    call = getattr(_here, "call", None)
    if call is not None and call.interrupted:
        raise CallerInterrupted


def in_background(work: Callable[[], None]) -> None:
    """Run work in a thread, without waiting; for finalizers, which may run at any moment of any thread."""
    with suppress(*_NO_THREAD):  # or the program ends
        _begin(work)


def _begin(work: Callable[[], None]) -> None:
    """Begin a thread, in one step of the interpreter.

    Raises:
        RuntimeError, MemoryError: It can't begin.
    """

    def begin() -> None:
        try:
            threading.Thread(target=work, name="kvstore-call", daemon=True).start()
        except _NO_THREAD:
            work()

    # Thread.start() takes locks of Python, which an interrupt could leave locked, or which whatever a finalizer
    # interrupts may hold. This takes none.
    _thread.start_new_thread(begin, ())
