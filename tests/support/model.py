"""What a table with one bucket and the default engine must do, one row at a time: a dict, a list, and no cleverness."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Row = dict[str, Any]
Operation = tuple[str, Row]
"""``("upsert", row)`` or ``("delete", row with the key)``."""

WINDOW = 5
SEQUENCE_MAX = 2**31 - 1


@dataclass
class Answer:
    """What a batch is answered."""

    first_offset: int
    last_offset: int
    duplicated: bool


class Refused(Exception):
    """The batch is out of order."""


@dataclass
class Model:
    """State of a table.

    Attributes:
        rows: By key.
        log: ``(offset, change type, row, first offset of its batch)``.
        sent: For each writer its batches, oldest first.
    """

    key: tuple[str, ...]
    rows: dict[tuple[Any, ...], Row] = field(default_factory=dict)
    log: list[tuple[int, str, Row, int]] = field(default_factory=list)
    end: int = 0
    sent: dict[int, list[tuple[int, Answer]]] = field(default_factory=dict)

    def next_sequence(self, writer: int) -> int:
        sent = self.sent.get(writer)
        return 0 if not sent or sent[-1][0] == SEQUENCE_MAX else sent[-1][0] + 1

    def apply(self, operations: list[Operation], writer: int = -1, sequence: int = -1) -> Answer:
        if writer >= 0:
            for sent, answer in self.sent.get(writer, [])[-WINDOW:]:
                if sent == sequence:
                    return Answer(answer.first_offset, answer.last_offset, duplicated=True)
            if sequence != self.next_sequence(writer):
                raise Refused
        first = self.end
        for kind, row in operations:
            self._one(kind, row, first)
        self.end = max(self.end, first + 1)  # a batch without changes takes one offset
        answer = Answer(first, self.end - 1, duplicated=False)
        if writer >= 0:
            self.sent.setdefault(writer, []).append((sequence, answer))
        return answer

    def _one(self, kind: str, row: Row, version: int) -> None:
        key = tuple(row[name] for name in self.key)
        before = self.rows.pop(key, None)
        if kind == "delete":
            if before is not None:
                self._change("delete", before, version)
            return
        self.rows[key] = row
        if before is None:
            self._change("insert", row, version)
        else:
            self._change("update_preimage", before, version)
            self._change("update_postimage", row, version)

    def _change(self, kind: str, row: Row, version: int) -> None:
        self.log.append((self.end, kind, row, version))
        self.end += 1

    def binlog(self, start: int, end: int) -> list[tuple[int, str, Row | None, Row | None, int]]:
        """``(offset, change type, row before, row after, first offset of its batch)``."""
        found = []
        before = None
        for at, kind, row, version in self.log:
            if kind == "update_preimage":
                before = row
                continue
            after = None if kind == "delete" else row
            if start <= at < end:
                found.append((at, kind, row if after is None else before, after, version))
            before = None
        return found

    def as_of(self, offset: int) -> dict[tuple[Any, ...], Row]:
        """Rows after all changes before an offset; between the halves of an update, the row is still the old one."""
        rows: dict[tuple[Any, ...], Row] = {}
        for at, kind, row, _ in self.log:
            if at >= offset:
                break
            key = tuple(row[name] for name in self.key)
            if kind == "delete":
                del rows[key]
            else:
                rows[key] = row
        return rows
