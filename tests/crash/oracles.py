"""What there is to each kind of script: jobs that run and recover it, its history, and the judge of its states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash import verdict, whole_verdict
from tests.crash.history import History
from tests.crash.transfers import TransferScript
from tests.crash.verdict import Finding
from tests.crash.whole_history import WholeHistory
from tests.crash.whole_store import WholeScript
from tests.crash.workload import STORE, Script

AnyScript = Script | WholeScript | TransferScript
AnyHistory = Any
"""What an oracle makes of a script, and is given again."""


@dataclass(frozen=True, slots=True)
class Oracle:
    """Knows one kind of script.

    Attributes:
        run, recover: Names of jobs; see ``recorder.JOBS``.
        prepare: Called in each process that judges, before the first state.
        examine: Judges what is in a directory; ``thorough`` is a keyword.
    """

    run: str
    recover: str
    history: Callable[[Any], AnyHistory]
    prepare: Callable[[], None]
    examine: Callable[..., Finding]


def _examine_table(directory: Path, history: History, *, thorough: bool) -> Finding:
    return verdict.examine(directory / STORE, history, thorough=thorough)


_OF_TABLE = Oracle("run", "recover", History, lambda: None, _examine_table)
_OF_STORE = Oracle("run whole", "recover whole", WholeHistory, whole_verdict.prepare, whole_verdict.examine)


def oracle_of(script: AnyScript) -> Oracle:
    """Who knows a script."""
    return _OF_STORE if isinstance(script, WholeScript) else _OF_TABLE
