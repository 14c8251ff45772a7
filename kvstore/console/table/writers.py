"""Writers of a table: those with names, and for a bucket the last batches of each writer that it remembers."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Self

from kvstore import NamedWriter, Origins, Store
from kvstore.clock import time_text
from kvstore.console.html import Content, Html, tag, url
from kvstore.console.page import Page
from kvstore.console.parts import attempt, bucket_form, error_box, grid, is_error, pager
from kvstore.console.query import Query
from kvstore.console.table.definition import Definition
from kvstore.errors import InvalidRequest
from logformat.ids import next_sequence
from logformat.log.writer_entry import EXPIRY_MS, WINDOW, WriterEntry

WRITERS_SHOWN = 50


@dataclass(frozen=True)
class Known:
    """Writers that have or had a name.

    Attributes:
        names: Names by id.
        fenced: Ids that lost their name.
    """

    named: Mapping[str, NamedWriter]
    names: dict[int, str]
    fenced: frozenset[int]

    @classmethod
    def of(cls, definition: Definition) -> Self:
        """The writers of a table now."""
        named = definition.table.writers
        names = {int(each.writer_id): name for name, each in named.items()}
        return cls(named, names, definition.table.fenced_writers)


def writers_page(store: Store, definition: Definition, query: Query) -> Page:
    """Named writers, open commits, and the windows of ``bucket``; ``page`` counts from 1, of both lists."""
    bucket, number = query.number("bucket", most=definition.buckets - 1) or 0, query.number("page", least=1) or 1
    sequences = Known.of(definition)
    named = _named(store, definition, sequences)
    skipped = (number - 1) * WRITERS_SHOWN
    windows: Any = attempt(lambda: _windows(definition, bucket, sequences, skipped))
    facts: dict[str, Any] = {
        "id": definition.id,
        "table": definition.name,
        "bucket": bucket,
        "named_all": len(named),
        "named": named[skipped : skipped + WRITERS_SHOWN],
        "fenced_ids": len(sequences.fenced),
        "open_commits": [
            {"writer_id": each.writer_id, "epoch": each.writer_epoch, "sequence": each.sequence}
            for each in definition.table.open_commits
        ],
        "window": WINDOW,
        **(windows if is_error(windows) else {"windows_all": windows[0], "windows": windows[1]}),
    }
    path, kept = f"/tables/{definition.id}/writers", {"bucket": query.text("bucket")}
    most = max(len(named), 0 if is_error(windows) else windows[0])

    def to(page: int) -> str | None:
        return url(path, **kept, page=page) if page >= 1 and (page - 1) * WRITERS_SHOWN < most else None

    def body() -> Html:
        pages = pager(Previous=to(number - 1), Next=to(number + 1)) if most > WRITERS_SHOWN else None
        return tag(
            "div",
            tag("section", tag("h2", f"Writers with a name ({len(named):,})"), _named_html(facts, definition)),
            _commits_html(facts["open_commits"]),
            tag(
                "section",
                tag("h2", f"The last {WINDOW} batches of each writer in bucket {bucket}"),
                bucket_form(definition.buckets, path, bucket),
                error_box(windows) if is_error(windows) else _windows_html(facts, definition, bucket),
            ),
            pages,
        )

    api = "/api" + url(path, **kept, page=query.text("page"))
    return Page("Writers of " + definition.name, facts, body, None, api, definition, "writers")


def _named(store: Store, definition: Definition, known: Known) -> list[dict[str, Any]]:
    jobs: dict[str, str] = {}
    for each in map(store.job, store.list_jobs()):
        with suppress(InvalidRequest):  # it was dropped meanwhile
            jobs |= {each.writer: each.name} if each.table == definition.name else {}
    return [
        {
            "writer": name,
            "writer_id": writer.writer_id,
            "sends": writer.kind,
            "epoch": writer.epoch,
            "run": writer.run,
            "first_epoch": writer.first_epoch if writer.kind == "epochs" else None,
            "job": jobs.get(name),
        }
        for name, writer in sorted(known.named.items())
    ]


def _windows(definition: Definition, bucket: int, known: Known, skipped: int) -> tuple[int, list[dict[str, Any]]]:
    """The number of writers that a bucket remembers, and the facts of a page of them, those that wrote last first."""
    entries, origins = definition.table.bucket(bucket).writers(), definition.table.origins()
    newest = heapq.nlargest(skipped + WRITERS_SHOWN, entries.items(), key=lambda each: each[1].batches[-1].base_offset)
    return len(entries), [_window(id, entry, known, origins) for id, entry in newest[skipped:]]


def _window(id: int, entry: WriterEntry, known: Known, origins: Origins) -> dict[str, Any]:
    name, writer = origins.writer(id) or (None, None)
    last = entry.batches[-1].sequence
    counts_epochs = writer is not None and writer.kind == "epochs"
    return {
        "writer": name,
        "writer_id": id,
        "epoch": entry.epoch,
        "next_sequence": next_sequence(last),
        "last_epoch": writer.first_epoch + last if writer is not None and counts_epochs else None,
        "fenced": _fence(id, entry, known),
        "forgotten_after": None if entry.named else time_text(entry.batches[-1].timestamp + EXPIRY_MS),
        "batches": [
            {
                "sequence": batch.sequence,
                "base_offset": batch.base_offset,
                "last_offset": batch.last_offset,
                "time": time_text(batch.timestamp),
            }
            for batch in entry.batches
        ],
    }


def _fence(id: int, entry: WriterEntry, known: Known) -> str | None:
    """Why the incarnation that wrote these batches must not write any more; None if it may."""
    if id in known.fenced:
        return "its name was dropped or taken over"
    name = known.names.get(id)
    if name is not None and entry.epoch < known.named[name].epoch:
        return f"opened again as incarnation {known.named[name].epoch}"
    return None


def _named_html(facts: dict[str, Any], definition: Definition) -> list[Html]:
    if not facts["named_all"]:
        shown = tag("p", "No writer of this table has a name.", class_="none")
    else:
        rows = [[*_named_row(each), _undo(definition, each["writer"])] for each in facts["named"]]
        names = ["writer", "id", "sends", "incarnation", "run", "first epoch", ""]
        shown = grid("Writers with a name", names, rows, right=[False, True, False, True, False, True])
    fenced = facts["fenced_ids"]
    words = "" if not fenced else f"{fenced:,} {'id' if fenced == 1 else 'ids'} lost their name and never write again."
    if facts["named_all"]:
        words = f"Earlier incarnations of a writer than the one here are fenced. {words}"
    return [shown, tag("p", words, class_="note")]


def _named_row(each: dict[str, Any]) -> list[Content]:
    name = each["writer"] if each["job"] is None else f"{each['writer']} ({each['job']})"
    run = each["run"] if each["run"] is not None else tag("span", "none", class_="null")
    first_epoch = "" if each["first_epoch"] is None else f"{each['first_epoch']:,}"
    return [name, str(each["writer_id"]), each["sends"], f"{each['epoch']:,}", run, first_epoch]


def _commits_html(commits: list[dict[str, Any]]) -> Html | None:
    if not commits:
        return None
    rows = [[str(each["writer_id"]), each["epoch"], each["sequence"]] for each in commits]
    return tag(
        "section",
        tag("h2", "Open commits"),
        tag("p", "Some buckets may not have these yet; the next process that writes completes them.", class_="note"),
        grid("Open commits", ["writer id", "incarnation", "sequence"], rows, right=[True, True, True]),
    )


def _windows_html(facts: dict[str, Any], definition: Definition, bucket: int) -> Html | list[Html]:
    if not facts["windows_all"]:
        return tag("p", "This bucket remembers no writer: its batches were written without one.", class_="none")
    rows = [_window_row(each, definition, bucket) for each in facts["windows"]]
    names = ["writer", "incarnation", "last batches: sequence, offsets", "next sequence", "state"]
    words = (
        f"A batch that is sent again is answered as before if it is one of the last {WINDOW}. Other sequences than the"
        " next one are refused."
    )
    return [
        tag("p", words, class_="note"),
        grid("Windows", names, rows, right=[False, True, False, True]),
    ]


def _window_row(each: dict[str, Any], definition: Definition, bucket: int) -> list[Content]:
    name: Content = each["writer"] or [tag("span", "no name, ", class_="null"), f"id {each['writer_id']}"]
    path = f"/tables/{definition.id}/changes"
    batches = [
        tag(
            "li",
            tag("b", f"{batch['sequence']:,}"),
            " ",
            tag("a", _offsets(batch), href=url(path, bucket=bucket, start=batch["base_offset"]), title=batch["time"]),
        )
        for batch in each["batches"]
    ]
    if each["fenced"]:
        state: Content = [tag("strong", "fenced: "), each["fenced"]]
    elif each["last_epoch"] is not None:
        state = f"its last epoch is {each['last_epoch']:,}"
    else:
        state = "may write" if each["writer"] else f"forgotten after {each['forgotten_after']}"
    return [name, f"{each['epoch']:,}", tag("ol", batches, class_="window"), f"{each['next_sequence']:,}", state]


def _offsets(batch: dict[str, Any]) -> str:
    first, last = batch["base_offset"], batch["last_offset"]
    return f"{first:,}" if first == last else f"{first:,}–{last:,}"


def _undo(definition: Definition, writer: str) -> Html | None:
    if definition.primary_key is None:
        return None
    where = url(f"/tables/{definition.id}/undo", writer=writer, start="earliest")
    return tag("a", "preview undo", href=where, aria_label=f"Preview an undo of {writer}")
