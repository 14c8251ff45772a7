"""``kvstore ui``: the console, pages of a browser about what is in a store."""

from __future__ import annotations

from typing import Annotated

import typer

from kvstore.cli.arguments import Directory, refuse_replica, store_id_of
from kvstore.cli.doctor import version_of
from kvstore.cli.printing import print_line
from kvstore.errors import UnsupportedOperation


def ui(
    path: Directory,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="An address of this machine's loopback.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(metavar="N", help="0: a free one.", min=0, max=65_535)] = 8765,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="Print the URL only.")] = False,
) -> None:
    """Show the store in a browser until interrupted: tables, rows, changes, history of keys.

    The store is opened read-only. Only the URL that is printed, which has a token, leads there, and only from this
    machine.
    """
    if missing := [name for name in ("starlette", "uvicorn") if version_of(name) is None]:
        raise UnsupportedOperation(
            "The console needs packages that are not installed: pip install starlette uvicorn.", missing=missing
        )
    from kvstore.console.server import serve

    refuse_replica(path)
    store_id_of(path)  # there is a store here, though it may be damaged
    try:
        serve(path.absolute(), host, port, print_line, opens=not no_browser)
    except KeyboardInterrupt:
        return
