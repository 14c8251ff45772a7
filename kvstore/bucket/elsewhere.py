"""What a bucket's handle asks while another process owns the bucket.

The engine knows no other process: it is given an :class:`OtherOwner`, to which requests go instead.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from kvstore.errors import StoreLocked
from kvstore.index.index import View
from kvstore.log.segments import LogFiles
from kvstore.process.calls import Answer
from kvstore.request.encoded import Submitted
from logformat.ids import Sequence, WriterId


class TooLarge(Exception):
    """A request is too large to be sent; the bucket is taken over for it."""


class NotAnswered(Exception):
    """The connection ended before a transaction was answered: it may have been committed."""


class ThisBucket(Protocol):
    """The bucket's handle, for what sends its requests; see :class:`kvstore.bucket.handle.BucketHandle`."""

    @property
    def log(self) -> LogFiles:
        """The log."""

    def is_owned_elsewhere(self) -> bool:
        """Whether another process owns the bucket, or recovers it now."""

    def lock_identity(self) -> tuple[int, int] | None:
        """Device and inode of the file of the bucket's lock."""

    def try_own(self) -> bool:
        """Become the bucket's owner; False if another process is."""

    def take_in(self, request: Submitted, *, here: bool = False) -> bool:
        """Have a request answered here; False if this process does not own the bucket."""

    def latest(self) -> AbstractContextManager[View]:
        """A view of every acknowledged change, for short reads."""

    def last_sequence(self, writer_id: WriterId) -> Sequence | None:
        """Sequence of a writer's last batch."""


class OtherOwner(Protocol):
    """The process that owns a bucket, while it is another one. Any thread may use it."""

    @property
    def takes_requests(self) -> bool:
        """Whether this process takes requests of others while it is the owner."""

    @property
    def is_met(self) -> bool:
        """Whether it takes requests of this process now."""

    def send(self, request: Submitted, /, *, here: bool = False) -> bool:
        """Have it answer a request; False if it is not met, and then nothing was sent.

        Args:
            here: Whether this thread may receive the answer, since its caller waits for nothing else.

        Raises:
            InvalidRequest: The request does not fit the table. Nothing was sent.
            TooLarge: It can't be sent. Nothing was sent.
        """

    def transact(self, content: bytes, answer: Answer[tuple[int, bytes]], /) -> bool:
        """Have it commit a transaction; False if it is not met, and then nothing was sent.

        Args:
            content: The transaction; see :mod:`kvstore.transaction.elsewhere`.
            answer: Gets the kind of the answer and its content; or NotAnswered.

        Raises:
            TooLarge: It can't be sent. Nothing was sent.
        """

    def meet(self, handle: ThisBucket, refused: StoreLocked, /) -> None:
        """Meet it, or return if the bucket may be free now.

        Args:
            refused: Why this process does not own the bucket.

        Raises:
            StoreLocked: It can't be met. The message says why.
        """

    def wait(self) -> None:
        """Return once it has applied all that it was sent before, by any process."""

    def close(self) -> None:
        """Send nothing more; what was sent is answered first."""


TAKES_NO_REQUESTS = (
    "Another process writes this bucket, and takes no requests of others: it is stopped, or does exclusive work such as"
    " a repair, or is of an older version. Wait until it is done, or end it."
)


class NoOtherOwner:
    """Other processes take no requests: a bucket that one of them owns is locked."""

    takes_requests = False
    is_met = False

    def send(self, _: Submitted, *, here: bool = False) -> bool:  # noqa: ARG002
        """False."""
        return False

    def transact(self, _: bytes, __: Answer[tuple[int, bytes]]) -> bool:
        """False."""
        return False

    def meet(self, _: ThisBucket, refused: StoreLocked) -> None:
        """Raise the refusal."""
        raise refused

    def wait(self) -> None:
        """Nothing was sent."""

    def close(self) -> None:
        """Nothing is open."""
