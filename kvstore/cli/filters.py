"""The option ``--where``."""

from __future__ import annotations

from typing import Annotated

import typer

Where = Annotated[
    str | None,
    typer.Option(
        "--where", metavar="EXPR", help="Only rows for which this is true: \"size > 100 and path like 'src/%'\"."
    ),
]
