"""``kvstore meta``: health of the catalog, checkpoints, and images."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from kvstore.cli.arguments import AsJson, Directory, opened_store, refuse_replica, store_id_of
from kvstore.cli.printing import cell, print_all_facts, print_facts, print_json, print_line, print_table
from kvstore.clock import SystemClock, time_text
from kvstore.disk.files import Files, refusal
from kvstore.errors import InvalidRequest, StoreError
from kvstore.index.space import HeldIndex
from kvstore.meta import image
from kvstore.meta.image import Image
from kvstore.meta.journal import Journal
from kvstore.meta.leadership import CatalogLeadership
from logformat.catalog.image import Head, Item
from logformat.ids import Epoch
from logformat.urls import without_credentials

ImagePath = Annotated[Path, typer.Argument(metavar="PATH", help="An image file.", show_default=False)]


def status(path: Directory, as_json: AsJson = False) -> None:
    """Show the health of the catalog: its images, its journal, scans that make indexes grow, and warnings.

    Exit code 1 if there are warnings.
    """
    with opened_store(path) as store:
        health, replicas = store.health(), store.replicas
    images = [{**asdict(each), "created": time_text(each.created_ms)} for each in health.images]
    for each in images:
        del each["created_ms"]
    facts = {
        "txid": health.txid,
        "edits_behind_image": health.edits_behind_image,
        "journal_begins": health.segments[0] if health.segments else None,
        "journal_segments": len(health.segments),
    }
    pushed = {name: f"{each.edits_shipped} of {each.edits}" for name, each in replicas.items()}
    if as_json:
        held = [asdict(each) for each in health.held]
        print_json({**facts, "pushed": pushed, "images": images, "held": held, "warnings": health.warnings})
    else:
        print_facts({**facts, **{f"pushed to {name}": count for name, count in pushed.items()}})
        print_line("")
        print_table(["image", "bytes", "created"], [list(each.values()) for each in images])
        if health.held:
            print_line("")
            names = ["index", "bytes", "held_bytes", "pid", "commits", "since", "process_since"]
            print_table(names, [_held_row(each) for each in health.held])
        for warning in health.warnings:
            print_line(f"warning: {warning}")
    if not health.ok:
        raise typer.Exit(1)


def _held_row(held: HeldIndex) -> list[object]:
    times = [None if ms is None else time_text(ms) for ms in (held.since_ms, held.process_since_ms)]
    return [f"{held.table}/{held.bucket}", held.bytes, held.held_bytes, held.pid, held.commits, *times]


def checkpoint(path: Directory, as_json: AsJson = False) -> None:
    """Write an image of the catalog now, and remove old segments of the journal."""
    with opened_store(path, write=True) as store:
        done = asdict(store.checkpoint())
    done["seconds"] = round(done["seconds"], 3)
    print_all_facts(done, as_json=as_json)


def verify(path: ImagePath, as_json: AsJson = False) -> None:
    """Verify an image: every checksum, and that the catalog can be loaded from it."""
    try:
        checked = _image(path)
    except StoreError as error:
        if as_json:
            print_json({"ok": False, "error": {"class": type(error).__name__, "message": str(error)}})
        raise
    facts = _facts(checked.head)
    if as_json:
        print_json({"ok": True, **facts})
    else:
        print_facts({**facts, "counts": ", ".join(f"{count} {kind}" for kind, count in checked.head.counts.items())})


def dump(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="A store, or an image.", show_default=False)],
    to: Annotated[
        Path | None,
        typer.Option("--to", metavar="FILE", help="Write an image to a new file instead.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Print the contents of an image, or of a store's current catalog; other processes may write the store."""
    refuse_replica(path)
    content = _catalog(path) if path.is_dir() else _image(path)
    if to is not None:
        _save(content, to)
        return
    records: Iterable[Head | Item] = [content.head, *image.items_of(content.state)]
    for record in records:
        fields = without_credentials(msgspec.to_builtins(record))
        if as_json:
            print_json(fields)
        else:
            kind = fields.pop("kind")
            print_line(" ".join([kind, *(f"{name}={cell(value)}" for name, value in fields.items())]))


def _image(path: Path) -> Image:
    try:
        return image.load(path)
    except OSError as error:
        raise InvalidRequest("This file can't be read.", path=path, reason=error.strerror) from error


def _catalog(store: Path) -> Image:
    """The catalog of a store as an image."""
    store_id, clock = store_id_of(store), SystemClock()
    with closing(Journal(store, Files(), clock, store_id, leadership=CatalogLeadership())) as journal:
        return image.image_of(journal.state(), store_id, epoch=Epoch(0), now_ms=clock.now_ms())


def _save(made: Image, path: Path) -> None:
    files = Files()
    try:
        image.save(path, made, files)
        files.sync_directory(path.absolute().parent)
    except FileExistsError as error:
        raise InvalidRequest("This file already exists; choose another name.", path=path) from error
    except FileNotFoundError as error:
        raise InvalidRequest("There is no such directory; create it first.", path=path.parent) from error
    except OSError as error:
        raise refusal(error, path) from error


def _facts(head: Head) -> dict[str, Any]:
    facts = msgspec.to_builtins(head)
    del facts["kind"]
    facts["created"] = time_text(facts.pop("created_ms"))
    return facts
