"""A part of a commit over several buckets, on its way into a bucket."""

from __future__ import annotations

from concurrent.futures import Future
from copy import copy
from dataclasses import dataclass, field

from kvstore.errors import StoreError
from kvstore.process.calls import Answer, Reply
from kvstore.request.encoded import SmallRequest
from kvstore.request.request import Request
from kvstore.request.results import AppendResult


@dataclass(frozen=True, slots=True)
class Prepared:
    """A batch that is applied but not appended until its commit over several buckets is decided.

    Attributes:
        decision: Whether to append it; shared by all parts of the commit. Until it is set the bucket waits.
        ready: The answer that it would get; an error if it can't be applied, which ends it.
    """

    request: Request | SmallRequest
    decision: Future[bool]
    ready: Future[AppendResult] = field(default_factory=Answer)

    @property
    def answer(self) -> Future[AppendResult] | Reply[AppendResult]:
        """The batch's answer, if the decision is to append it."""
        return self.request.answer

    def refuse(self, error: StoreError) -> None:
        """Answer that it can't be applied, or not be appended."""
        for answer in (self.ready, self.answer):
            if not answer.done():
                answer.set_exception(copy(error))
