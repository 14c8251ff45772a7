"""Statements that are run again after a conflict: :func:`retry`."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TypeVar

from pyspark.errors import PySparkException

from kvstore.arguments import integer_within

Result = TypeVar("Result")
TRIES_MAX = 1000
_CONFLICT = re.compile(r"\bkvstore\.errors\.Conflict: ")


def retry(run: Callable[[], Result], tries: int = 10) -> Result:
    """Run a statement, and again after each conflict with another writer; nothing of a refused try is written.

    A try fails only if another write of its keys was committed while it ran. So beside an application that commits n
    statements meanwhile, n + 1 tries are enough.

    Args:
        run: Runs the statement with what it reads, such as ``lambda: spark.sql("UPDATE …")``. A DataFrame that it
            writes must be made in it, to be read again.
        tries: Number of tries, from 1 to 1000.

    Returns:
        What ``run`` returns.

    Raises:
        InvalidRequest: ``tries`` is not such a number; nothing was run.
        PySparkException: The last try failed with ``kvstore.errors.Conflict``, or a try failed for another reason.
            Nothing of it was written, unless the error says that the outcome is not known.
    """
    for _ in range(integer_within("tries", tries, 1, TRIES_MAX) - 1):
        try:
            return run()
        except PySparkException as error:
            if _CONFLICT.search(str(error)) is None:
                raise
    return run()
