"""Connections to the console: how long one may wait for a request, and how many there are.

* A connection waits from its start, or the end of an answer, until all headers of a request are there. The wait has an
  end, whatever comes in between.
* The number of connections has a limit. The one that waits longest is closed for a new one, so connections that ask
  for nothing keep no request out. If none waits, it is the new one that is closed.

What is answered, a stream of changes also, is never cut off by this.
"""

from __future__ import annotations

import asyncio

from uvicorn.protocols.http.h11_impl import H11Protocol

REQUEST_SECONDS = 10
"""Time for the headers of a request. A connection that has had an answer and sends nothing ends earlier, by uvicorn."""
CONNECTIONS_MAX = 100
"""A process may have 256 open files on macOS; the store needs some of them."""


class Connection(H11Protocol):
    """A connection that does not wait without an end."""

    _wait: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        super().connection_made(transport)
        self._begin_to_wait()
        if len(self.connections) > CONNECTIONS_MAX:
            waits = {
                each: each._wait.when() for each in self.connections if isinstance(each, Connection) and each._wait
            }
            min(waits, key=waits.__getitem__)._close()

    def handle_events(self) -> None:
        """Take what came in; with the end of the headers an answer begins, and the wait ends."""
        super().handle_events()
        if self.cycle is not None and not self.cycle.response_complete:
            self._end_wait()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request, which may be there."""
        self._begin_to_wait()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """End the wait with the connection."""
        self._end_wait()
        super().connection_lost(exc)

    def _begin_to_wait(self) -> None:
        self._end_wait()
        self._wait = self.loop.call_later(REQUEST_SECONDS, self._close)

    def _end_wait(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None

    def _close(self) -> None:
        self._end_wait()
        self.transport.close()
