"""``kvstore meta recover``: continue with a damaged catalog, or make a copy the leader in place of its original."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from kvstore.checkpoint import recovery
from kvstore.cli.arguments import AsJson, Directory, store_id_of
from kvstore.cli.printing import print_facts, print_json, print_line
from kvstore.clock import SystemClock
from kvstore.disk.files import Files


def recover(
    path: Directory,
    write: Annotated[
        bool, typer.Option("--metadata-failure-recovery", help="Recover; by default the command only shows the plan.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Continue with the readable part of the catalog in this directory, in a new epoch that fences all other copies.

    Exit code 1 if something is lost and nothing was written.
    """
    recovered = recovery.recover(path, store_id_of(path), Files(), SystemClock(), write=write)
    facts = asdict(recovered)
    facts |= {"quarantined": list(map(str, recovered.quarantined)), "quarantine": str(recovered.quarantine)}
    if as_json:
        print_json(facts)
    else:
        lists = {name: facts.pop(name) for name in ("damaged", "gone", "restored", "quarantined")}
        print_facts({**facts, "tables": ", ".join(recovered.tables)})
        for name, lines in lists.items():
            for line in lines:
                print_line(f"{name.replace('_', ' ')}: {line}")
        print_line("")
        print_line(
            "Done; now run `kvstore check`."
            if write
            else "Nothing was written. Keep a copy of the directory, then run this with --metadata-failure-recovery."
        )
    if recovered.gone and not write:
        raise typer.Exit(1)
