"""A preview of an undo: what it would make of the rows, and the commands that save and apply it. It writes nothing.

* The preview is a patch: what it shows is what the commands would save.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from kvstore import Patch, Store, Table
from kvstore.arguments import bound_of
from kvstore.console.commands import command
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, error_box, fact_list, field, is_error
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.console.table.difference import AFTER, BEFORE, Version, version_facts, version_html, versions_of
from kvstore.console.table.keys import key_fields
from kvstore.errors import UnsupportedOperation
from logformat.log.change import ChangeType

ROWS_SHOWN = 50
OFFSETS_MAX = 50_000
BYTES_MAX = 64 << 20
"""An undo reads all changes since its start; a preview refuses to read more than this of the log."""
WRITERS_OFFERED = 200
FILE = "undo.patch"
STORE, UPDATE, DELETE, STAY = "store", "update", "delete", "stay"
"""What becomes of a row: words of :attr:`kvstore.Patch.rows`."""
_KINDS = {
    STORE: ChangeType.INSERT.word,
    UPDATE: ChangeType.UPDATE_POSTIMAGE.word,
    DELETE: ChangeType.DELETE.word,
    STAY: ChangeType.DELETE.word,  # it has no row after, either; only its key is shown
}


@dataclass(frozen=True)
class Asked:
    """What is to be undone.

    Attributes:
        start, end: As given; None if they were not.
        writer, epoch, job, task: See :meth:`kvstore.Table.undo`.
    """

    start: str | None
    end: str | None
    writer: str | None
    epoch: int | None
    job: str | None
    task: int | None

    @classmethod
    def of(cls, query: Query) -> Asked:
        """What a request asks for."""
        return cls(
            query.text("start"),
            query.text("end"),
            query.text("writer"),
            query.number("epoch"),
            query.text("job"),
            query.number("task"),
        )


def undo_page(store: Store, definition: Definition, query: Query) -> Page:
    """A form, and with ``start`` the preview of what would undo the changes from there on."""
    key_fields(definition)  # a log table has no rows to restore
    asked = Asked.of(query)
    preview: Any = None if asked.start is None else attempt(lambda: _preview(definition, asked))
    path = f"/tables/{definition.id}/undo"
    given = {name: getattr(asked, name) for name in ("start", "end", "writer", "epoch", "job", "task")}
    facts: dict[str, Any] = {"id": definition.id, "table": definition.name, **given, "preview": None}
    if preview is not None:
        facts = preview if is_error(preview) else {**facts, "preview": preview.facts}

    def body() -> Html:
        return tag(
            "div",
            tag(
                "p",
                "Choose changes, and see what would undo them. Nothing is written here: the preview ends with the"
                " commands that save it as a patch and apply it.",
                class_="note",
            ),
            _form(definition, path, given),
            None if preview is None else error_box(preview) if is_error(preview) else _html(preview, definition),
            None if preview is None else _commands(store, definition, asked),
        )

    status = 400 if is_error(preview) else 200
    line = None if asked.start is None else _command(store, definition, asked)
    api = "/api" + url(path, **given)
    return Page("Undo in " + definition.name, facts, body, line, api, definition, "undo", status)


@dataclass(frozen=True)
class Preview:
    """What an undo would do.

    Attributes:
        counts: Number of rows by what becomes of them.
        changes: The first of those that change, as changes from now on.
        stay: The first of those that stay, because others changed them later.
    """

    counts: dict[str, int]
    changes: list[Version]
    stay: list[Version]
    undone: dict[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        """The preview in JSON."""
        without = [version_facts(each) for each in self.changes]
        for each in without:
            del each["offset"]
        return {
            **self.counts,
            "undone": self.undone,
            "changes": without,
            "stay_keys": [each.key for each in self.stay],
        }


def _preview(definition: Definition, asked: Asked) -> Preview:
    table = definition.table
    start: Any = bound_of("`start`", asked.start or "", "earliest", "latest")
    end: Any = None if asked.end is None else bound_of("`end`", asked.end, "latest")
    _check_size(table, start)
    undo = table.undo(start, end, asked.writer, asked.epoch, asked.job, asked.task)
    rows = Patch.of(table, undo).rows
    what = rows.column("what")
    counts = {name: int(pc.sum(pc.equal(what, name)).as_py() or 0) for name in (STORE, UPDATE, DELETE, STAY)}
    stays = pc.equal(what, STAY)
    parts = [rows.filter(chosen).slice(0, ROWS_SHOWN) for chosen in (pc.invert(stays), stays)]
    changes, stay = (versions_of(_as_binlog(part), definition) for part in parts)
    return Preview(counts, changes, stay, msgspec.to_builtins(dict(undo.undone)))


def _as_binlog(rows: pa.RecordBatch) -> pa.Table:
    kinds = [_KINDS[each] for each in rows.column("what").to_pylist()]
    columns = [pa.array([0] * len(kinds), pa.int64()), pa.array(kinds, pa.string()), rows.column(1), rows.column(2)]
    return pa.table(columns, ["_log_offset", "_change_type", BEFORE, AFTER])


def _check_size(table: Table, start: Any) -> None:
    """Refuse to read very many changes.

    Raises:
        UnsupportedOperation: There are too many since the start.
    """
    offsets = size = 0
    for bucket, (begin, now) in table.offset_ranges(start).items():
        offsets += now - begin
        size += table.bucket(bucket).log.bytes_between(begin, now) if now > begin else 0
    if offsets > OFFSETS_MAX or size > BYTES_MAX:
        raise UnsupportedOperation(
            "These are too many changes for a page: an undo reads all changes since its start. Begin later, or let the"
            " command below print the preview.",
            changes=offsets,
            changes_max=OFFSETS_MAX,
            log_bytes=size,
            log_bytes_max=BYTES_MAX,
        )


def _command(store: Store, definition: Definition, asked: Asked, to: str | None = None) -> str:
    return command(
        "undo",
        store.path,
        definition.name,
        start=asked.start,
        end=asked.end,
        writer=asked.writer,
        epoch=asked.epoch,
        job=asked.job,
        task=asked.task,
        to=to,
    )


def _commands(store: Store, definition: Definition, asked: Asked) -> Html:
    lines = [_command(store, definition, asked, FILE), command("apply", store.path, FILE)]
    return tag(
        "section",
        tag("h2", "To do it"),
        tag(
            "ol",
            tag("li", "Save the patch, and review it: ", tag("code", lines[0])),
            tag("li", "Apply it, all of it or nothing: ", tag("code", lines[1])),
            class_="commands",
        ),
        tag("p", "If a row has changed since the patch was saved, nothing is applied.", class_="note"),
    )


def _form(definition: Definition, path: str, given: dict[str, Any]) -> Html:
    names = sorted(definition.table.writers)[:WRITERS_OFFERED]
    example = "earliest" if definition.buckets == 1 else '{"0": 17, "1": 4}'
    return tag(
        "form",
        field("Changes from (offset, time or earliest)", "start", given["start"], placeholder=example, size=28,
              required=True),
        field("up to (exclusive; else all)", "end", given["end"], size=20),
        field("by the writer", "writer", given["writer"], list="writers"),
        field("in its epoch", "epoch", given["epoch"], type="number", min=0),
        field("or by the job", "job", given["job"]),
        field("in its task", "task", given["task"], type="number", min=0),
        tag("datalist", [tag("option", value=name) for name in names], id="writers"),
        tag("button", "Preview"),
        action=path,
        role="search",
    )  # fmt: skip


def _html(preview: Preview, definition: Definition) -> Html:
    counts = preview.counts
    about: dict[str, Content] = {
        "rows to store": f"{counts[STORE]:,}",
        "to update": f"{counts[UPDATE]:,}",
        "to delete": f"{counts[DELETE]:,}",
        "that stay": f"{counts[STAY]:,}",
    }
    changed = counts[STORE] + counts[UPDATE] + counts[DELETE]
    words = "From the row as it is now to the row after the undo."
    words += f" The first {ROWS_SHOWN} of {changed:,}:" if changed > ROWS_SHOWN else ""
    none = tag("p", "Nothing would change: the rows already are as they would become.", class_="none")
    return tag(
        "div",
        fact_list(about),
        tag(
            "section",
            tag("h2", "What would change"),
            none if not changed else tag("p", words, class_="note"),
            [version_html(each, definition, None) for each in preview.changes],
        ),
        _stay_html(preview, counts[STAY]),
    )


def _stay_html(preview: Preview, count: int) -> Html | None:
    if not count:
        return None
    first = f" The first {ROWS_SHOWN}:" if count > ROWS_SHOWN else ""
    return tag(
        "section",
        tag("h2", f"What stays as it is ({count:,})"),
        tag("p", f"Others changed the same columns of these rows later.{first}", class_="note"),
        tag("ul", [tag("li", ", ".join(each.key), class_="value") for each in preview.stay]),
    )
