"""``kvstore meta ls`` and ``show``: journal segments and edits, also of a catalog that can't be loaded."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer

from kvstore.cli.arguments import AsJson, Directory
from kvstore.cli.printing import AlignedRows, print_facts, print_json, print_records
from kvstore.clock import time_text
from kvstore.errors import CorruptData
from kvstore.meta.browse import browse_catalog
from logformat.catalog import edits
from logformat.ids import Txid
from logformat.urls import without_credentials

_LINES = 1000
"""Number of edits printed at a time."""


def ls(
    path: Directory,
    journal: Annotated[
        int | None,
        typer.Argument(metavar="JOURNAL", help="Its first edit: list the edits in it.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the journals of the catalog's edits, or the edits in one."""
    with browse_catalog(path) as browser:
        if journal is None:
            listed = [
                {"journal": each.first, "last": each.last, "edits": each.edits, "name": each.name}
                for each in browser.segments()
            ]
            print_records(["journal", "last", "edits", "name"], listed, as_json=as_json)
            return
        names = ["txid", "time", "edit", "about"]
        printed = AlignedRows(names, right=[True])
        lines: list[dict[str, Any]] = []
        for txid, data in browser.edits(journal):
            facts = facts_of(txid, data)
            facts["about"] = facts["error"] if "error" in facts else _about(facts["payload"])
            lines.append({name: facts.get(name) for name in names})
            if len(lines) == _LINES:
                _print(lines, printed, as_json=as_json)
                lines = []
        _print(lines, printed, as_json=as_json)
        if not as_json:
            printed.finish()


def show(
    path: Directory,
    txid: Annotated[int, typer.Argument(metavar="TXID", help="Number of the edit.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Show an edit of the catalog.

    Exit code 1 if it is damaged, or a newer version wrote it.
    """
    with browse_catalog(path) as browser:
        facts = facts_of(Txid(txid), browser.edit(txid))
    if as_json:
        print_json(facts)
    else:
        payload = facts.pop("payload", {})
        print_facts({**facts, **payload})
    if "error" in facts:
        raise typer.Exit(1)


def facts_of(txid: Txid, data: bytes) -> dict[str, Any]:
    """Fields of an edit, or its error if it can't be decoded."""
    try:
        edit = edits.decode(data)
    except CorruptData as error:
        return {"txid": txid, "error": str(error), "bytes": len(data)}
    return {
        "txid": edit.txid,
        "time": time_text(edit.time_ms),
        "epoch": edit.epoch,
        "op": edit.payload.op,
        "edit": type(edit.payload).__name__,
        "payload": without_credentials(msgspec.to_builtins(edit.payload)),
    }


def _about(payload: dict[str, Any]) -> str:
    """Short description of an edit, without columns and other nested values."""
    return " ".join(f"{name}={value}" for name, value in payload.items() if isinstance(value, int | str))


def _print(lines: list[dict[str, Any]], printed: AlignedRows, *, as_json: bool) -> None:
    if as_json:
        print_json(*lines)
    elif lines:
        printed.add([list(line.values()) for line in lines])
