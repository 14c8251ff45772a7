"""Progress bars: on standard error, and only if it is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Literal, Self

from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, ProgressColumn, Task, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

from kvstore.cli.printing import plain

Unit = Literal["bytes", "rows", "changes", "parts"]


class Bar:
    """A bar with the rate and the remaining time of an activity; it goes when the activity ends.

    Args:
        name: What is worked on.
        unit: What is counted.
        total: How much there is; None if it is not known.
        hidden: Whether the output of the command would be between its lines.
    """

    def __init__(self, name: str, unit: Unit, total: float | None = None, *, hidden: bool = False) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            _Rate(unit),
            TextColumn("{task.fields[about]}", markup=False),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            disable=hidden or not is_terminal(),
            transient=True,
        )
        self._task = self._progress.add_task(plain(name), total=total, about="")

    def to(self, done: float, total: float | None = None) -> None:
        """Show how much is done, and from now on of how much."""
        self._progress.update(self._task, completed=done, total=total)

    def add(self, done: float) -> None:
        """Show that so much more is done."""
        self._progress.advance(self._task, done)

    def say(self, about: str) -> None:
        """Show something next to the bar."""
        self._progress.update(self._task, about=plain(about))

    def print(self, line: str) -> bool:
        """Print a line above the bar, if both are on a terminal; otherwise the caller prints it."""
        if self._progress.disable or not sys.stdout.isatty():
            return False
        self._progress.console.print(plain(line), markup=False, highlight=False)
        return True

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def is_terminal() -> bool:
    """Whether a person sees standard error."""
    return sys.stderr.isatty()


class _Rate(ProgressColumn):
    """How much is done in a second."""

    def __init__(self, unit: Unit) -> None:
        super().__init__()
        self._unit = unit

    def render(self, task: Task) -> Text:
        """The rate of the last seconds; nothing before there is one."""
        speed = task.finished_speed or task.speed
        if speed is None or self._unit == "parts":
            return Text("")
        return Text(f"{decimal(int(speed))}/s" if self._unit == "bytes" else f"{speed:,.0f} {self._unit}/s")
