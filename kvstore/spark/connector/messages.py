"""Messages over a socket: the length in four bytes, and JSON; and a stream of Arrow batches between two messages."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedWriter
from typing import Any, Self, cast

import pyarrow as pa

Message = dict[str, Any]
_LENGTH_BYTES = 4
_BUFFER_BYTES = 1 << 18


class Broken(Exception):
    """The other end has closed the connection."""


class Messages:
    """A conversation; owns nothing of the socket but its buffers."""

    def __init__(self, connection: socket.socket) -> None:
        self._in = connection.makefile("rb")
        self._out = cast(BufferedWriter, connection.makefile("wb", buffering=_BUFFER_BYTES))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._in.close()

    def receive(self) -> Message:
        """The next message.

        Raises:
            Broken: There is none, because the other end has closed.
        """
        return json.loads(self._read(int.from_bytes(self._read(_LENGTH_BYTES), "big")))

    def _read(self, length: int) -> bytes:
        try:
            data = self._in.read(length)
        except OSError as error:
            raise Broken from error
        if len(data) < length:
            raise Broken
        return data

    def send(self, message: Message) -> None:
        """Send a message.

        Raises:
            Broken: The other end has closed.
        """
        text = json.dumps(message).encode()
        try:
            self._out.write(len(text).to_bytes(_LENGTH_BYTES, "big") + text)
            self._out.flush()
        except OSError as error:
            raise Broken from error

    def receive_batches(self) -> Iterator[pa.RecordBatch]:
        """The batches of an Arrow stream, and the message after it, which says that the stream is complete.

        Raises:
            Broken: The other end has closed before that.
        """
        try:
            yield from pa.ipc.open_stream(self._in)
        except (OSError, pa.ArrowInvalid) as error:
            raise Broken from error
        self.receive()

    def send_batches(self, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> None:
        """Send an Arrow stream. It also ends where the batches raise an error, so that a message can follow.

        Raises:
            Broken: The other end has closed.
        """
        with _open_stream(self._out, schema) as stream:
            for batch in batches:
                try:
                    stream.write_batch(batch)
                except OSError as error:
                    raise Broken from error


@contextmanager
def _open_stream(out: BufferedWriter, schema: pa.Schema) -> Iterator[pa.RecordBatchStreamWriter]:
    """A writer of a stream; the end of the stream is written whatever happens, if it can be written."""
    try:
        stream = pa.ipc.new_stream(out, schema)
    except OSError as error:
        raise Broken from error
    try:
        yield stream
    finally:
        with suppress(OSError):  # sending the message that follows finds the same
            stream.close()
