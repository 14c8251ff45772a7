"""``kvstore meta ls`` and ``show``: journals, their edits, one edit; whether or not a catalog can be made of them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import numpy as np
import typer

from kvstore.cli.arguments import AsJson, Directory
from kvstore.cli.printing import AlignedRows, print_facts, print_json, print_table, without_credentials
from kvstore.errors import CorruptData
from kvstore.files import Files
from kvstore.meta.browse import browse
from logformat.catalog import edits
from logformat.ids import Txid

_LINES = 1000
"""So many edits are printed at a time."""


def ls(
    path: Directory,
    journal: Annotated[
        int | None,
        typer.Argument(metavar="[JOURNAL]", help="Its first edit: list the edits in it.", show_default=False),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """List the journals of the catalog's edits, or the edits in one."""
    with browse(path, Files()) as found:
        if journal is None:
            listed = [
                {"journal": each.first, "last": each.last, "edits": each.edits, "name": each.name}
                for each in found.segments()
            ]
            if as_json:
                print_json(listed)
            else:
                print_table(["journal", "last", "edits", "name"], [list(each.values()) for each in listed])
            return
        names = ["txid", "time", "edit", "about"]
        printed = AlignedRows(names, right=[True])
        lines: list[dict[str, Any]] = []
        for txid, data in found.edits(journal):
            told = facts_of(txid, data)
            told["about"] = told["error"] if "error" in told else _about(told["payload"])
            lines.append({name: told.get(name) for name in names})
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

    Exit code 1 if it is damaged, or of a newer version.
    """
    with browse(path, Files()) as found:
        told = facts_of(Txid(txid), found.edit(txid))
    if as_json:
        print_json(told)
    else:
        payload = told.pop("payload", {})
        print_facts({**told, **payload})
    if "error" in told:
        raise typer.Exit(1)


def facts_of(txid: Txid, data: bytes) -> dict[str, Any]:
    """What an edit says, or what is wrong with it."""
    try:
        edit = edits.decode(data)
    except CorruptData as error:
        return {"txid": txid, "error": str(error), "bytes": len(data)}
    return {
        "txid": edit.txid,
        "time": time_of(edit.time_ms),
        "epoch": edit.epoch,
        "op": edit.payload.op,
        "edit": type(edit.payload).__name__,
        "payload": without_credentials(msgspec.to_builtins(edit.payload)),
    }


def time_of(milliseconds: int) -> str:
    """A time as it is printed."""
    return str(np.datetime64(milliseconds, "ms")) + "Z"


def _about(payload: dict[str, Any]) -> str:
    """What an edit is about, in a few words: not its columns."""
    return " ".join(f"{name}={value}" for name, value in payload.items() if isinstance(value, int | str))


def _print(lines: list[dict[str, Any]], printed: AlignedRows, *, as_json: bool) -> None:
    if as_json:
        print_json(*lines)
    elif lines:
        printed.add([list(line.values()) for line in lines])
