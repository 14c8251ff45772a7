"""Who runs which tests when several processes do (``pytest -n 2``): what is shared goes to one, what is long is first.

* All that needs Spark goes to one worker, so that there is one session in the run.
* Crash tests and interrupts, long and sharing little, are spread one by one; other tests a file at a time.

xdist's own groups (``--dist loadgroup``) do nothing with pytest 9.2 (pytest-xdist issue 1386), and say nothing of it.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.support.order import scope_of


class Scheduling(LoadScopeScheduling):
    """Hands out scopes in the order in which they were collected."""

    def __init__(self, config: pytest.Config, log: object) -> None:
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid)
