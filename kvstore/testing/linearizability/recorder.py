"""Records the calls around a table as a history of a map.

* An invocation is recorded before the call begins, its end after it has returned. So the recorded times of an operation
  contain its real ones, and a process that is killed leaves an operation with an unknown outcome.
* Times are of the machine's steady clock, which all its processes share.
* Each thread is a process of the history, of a name that no other thread has, nor a process of an earlier run that
  wrote into the same directory.
"""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

from kvstore.clock import Clock, SystemClock
from kvstore.errors import Conflict, InvalidRequest, StoreReplaced, Unavailable, WriterRejected
from kvstore.testing.linearizability.files import SUFFIX, encode, read_history

Answer = TypeVar("Answer")

_NOTHING_WRITTEN = (InvalidRequest, WriterRejected, Unavailable, Conflict)
_NUMBERS = itertools.count()


class Client(Protocol):
    """What a :class:`Recorder` calls: a :class:`kvstore.Table`, or anything with these methods."""

    @property
    def primary_key(self) -> tuple[str, ...] | None:
        """Names of the key's columns."""

    def get(self, key: Any) -> Mapping[str, Any] | None:
        """The row of a key."""

    def upsert(self, data: Mapping[str, Any]) -> Any:
        """Store a row."""

    def put_if(self, row: Mapping[str, Any], expected: Mapping[str, Any] | None) -> bool:
        """Store a row if the row of its key is the expected one."""

    def delete(self, keys: Any) -> Any:
        """Remove the row of a key."""


class Recorder:
    """A table whose calls are recorded as a history of a map, for :func:`certify`.

    ``get`` is recorded as ``read``, ``upsert`` as ``write``, ``put_if`` as ``cas``, and ``delete`` as a ``write`` of
    None. A value is the row without its key and without nulls. Any number of threads may call it. After an error the
    outcome is ``fail`` where the error says that nothing was written, for a read after any error; otherwise ``info``.
    The error goes on to the caller.

    Rows must come back as they were written, so the table has the merge engine ``last_row``, and values are given as
    ``get`` returns them. Each key must have no row at the beginning.

    Args:
        client: A table, or an object with ``primary_key``, ``get``, ``upsert``, ``put_if`` and ``delete``, of which
            those are called that you call.
        path: A directory for files of JSON lines, one for each process that records; it is created. Any number of
            processes may record into one directory, each by a recorder of its own. Lines are written at once and not
            synced. None keeps the records in memory.
        clock: The source of times.

    Raises:
        InvalidRequest: The client has no primary key.
        OSError: The directory can't be created.
    """

    def __init__(
        self, client: Client, path: str | os.PathLike[str] | None = None, *, clock: Clock | None = None
    ) -> None:
        if not client.primary_key:
            raise InvalidRequest("A recorder needs a table with a primary key.")
        self._client = client
        self._key_names = tuple(client.primary_key)
        self._clock = SystemClock() if clock is None else clock
        self._path = None if path is None else Path(path)
        if self._path is not None:
            self._path.mkdir(parents=True, exist_ok=True)
        self._records: list[dict[str, Any]] = []
        self._number = next(_NUMBERS)
        self._lock = threading.Lock()
        self._threads = threading.local()
        self._thread_numbers = itertools.count()
        self._pid = 0
        self._name = ""
        self._file = -1

    def history(self) -> list[dict[str, Any]]:
        """All records so far: of this recorder, or of all that have written into ``path``."""
        return list(self._records) if self._path is None else read_history(self._path)

    def get(self, key: Any) -> Mapping[str, Any] | None:
        """Read a row, as :meth:`kvstore.Table.get` does."""
        name = self._key(key)
        return self._called(
            "read",
            name,
            None,
            lambda: self._client.get(key),
            lambda row: ("ok", None if row is None else self._value(row)),
        )

    def upsert(self, row: Mapping[str, Any]) -> Any:
        """Store one row, as :meth:`kvstore.Table.upsert` does.

        Raises:
            InvalidRequest: It is not one row as a dict, with its key.
        """
        value = self._value(row)
        return self._called("write", self._key(row), value, lambda: self._client.upsert(row), lambda _: ("ok", value))

    def delete(self, key: Any) -> Any:
        """Remove the row of one key, as :meth:`kvstore.Table.delete` does."""
        name = self._key(key)
        return self._called("write", name, None, lambda: self._client.delete(key), lambda _: ("ok", None))

    def put_if(self, row: Mapping[str, Any], expected: Mapping[str, Any] | None) -> bool:
        """Store a row if the row of its key is the expected one, as :meth:`kvstore.Table.put_if` does.

        Raises:
            InvalidRequest: A row is not a dict with its key.
        """
        value = [None if expected is None else self._value(expected), self._value(row)]
        return self._called(
            "cas",
            self._key(row),
            value,
            lambda: self._client.put_if(row, expected),
            lambda is_stored: ("ok" if is_stored else "fail", value),
        )

    def close(self) -> None:
        """Close the file of this process. A call after it is an error of the system."""
        with self._lock:
            if self._pid == os.getpid() and self._file >= 0:
                os.close(self._file)

    def _called(
        self,
        f: str,
        key: Any,
        value: Any,
        call: Callable[[], Answer],
        outcome: Callable[[Answer], tuple[str, Any]],
    ) -> Answer:
        process = self._process()
        self._record(process, "invoke", f, [key, value])
        try:
            answer = call()
        except BaseException as error:  # Ctrl-C, too, leaves an outcome; the error goes on
            is_refused = f == "read" or (isinstance(error, _NOTHING_WRITTEN) and not isinstance(error, StoreReplaced))
            self._record(process, "fail" if is_refused else "info", f, [key, value], type(error).__name__)
            raise
        type_, result = outcome(answer)
        self._record(process, type_, f, [key, result])
        return answer

    def _record(self, process: str, type: str, f: str, value: Any, error: str | None = None) -> None:
        record = {"process": process, "type": type, "f": f, "value": value, "time": self._now()}
        if error is not None:
            record["error"] = error
        if self._path is None:
            self._records.append(record)
            return
        line = encode(record)
        # One call: lines of several threads are not mixed.
        if os.write(self._file, line) != len(line):
            raise OSError("A line of the history was written in part; the disk may be full.")

    def _now(self) -> int:
        return round(self._clock.monotonic() * 1_000_000_000)

    def _process(self) -> str:
        """The name of this thread in the history."""
        if self._pid != os.getpid():  # the first call, or the first one after a fork
            with self._lock:
                if self._pid != os.getpid():
                    self._begin()
        named = getattr(self._threads, "name", None)
        if named is not None and named[0] == self._pid:
            return named[1]
        name = f"{self._name}-{next(self._thread_numbers)}"
        self._threads.name = self._pid, name
        return name

    def _begin(self) -> None:
        pid = os.getpid()
        if self._path is None:
            self._name = f"{pid}-{self._number}"
        else:
            self._name, self._file = _new_file(self._path, pid)
        self._pid = pid

    def _key(self, key: Any) -> Any:
        """A key as the history has it: the one value, or the list of all."""
        if isinstance(key, Mapping):
            missing = [name for name in self._key_names if name not in key]
            if missing:
                raise InvalidRequest(f"The row has no {missing[0]!r}, which is in the key.")
            values = [key[name] for name in self._key_names]
        elif isinstance(key, tuple):
            values = list(key)
        else:
            values = [key]
        if len(values) != len(self._key_names) or isinstance(key, list):
            raise InvalidRequest(f"A recorder takes one key of {', '.join(self._key_names)} at a time, not {key!r}.")
        return values[0] if len(values) == 1 else values

    def _value(self, row: Any) -> dict[str, Any]:
        if not isinstance(row, Mapping):
            raise InvalidRequest(f"A recorder takes one row at a time, as a dict; not {type(row).__name__}.")
        return {name: value for name, value in row.items() if name not in self._key_names and value is not None}


def _new_file(path: Path, pid: int) -> tuple[str, int]:
    """A file of this process in a directory, and its name without the end."""
    for number in itertools.count():
        name = f"{pid}-{number}"
        # Others are of another recorder of this process, or of an earlier process with the same number.
        with suppress(FileExistsError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            return name, os.open(path / f"{name}{SUFFIX}", flags, 0o666)
    raise AssertionError
