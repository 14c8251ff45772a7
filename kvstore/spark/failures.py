"""What Spark shows of a store's error: the error, without the traceback of the task it was raised in.

PySpark looks for ``SPARK_HIDE_TRACEBACK`` in the environment of a worker when it reports an error, and ends the worker
after that. So setting it in the worker that fails changes this report and no other; errors of the user's own functions
keep their tracebacks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from kvstore.errors import StoreError

Class = TypeVar("Class", bound=type)


@contextmanager
def shown_alone() -> Iterator[None]:
    """Let Spark show a store's error that leaves this context without a traceback."""
    try:
        yield
    except StoreError:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


def errors_shown_alone(of: Class) -> Class:
    """Decorate a class that Spark calls: the same for errors of its public methods, and of making one."""
    for name, method in list(vars(of).items()):
        if callable(method) and (name == "__init__" or not name.startswith("_")):
            setattr(of, name, _wrapped(method))
    return of


def _wrapped(method: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(method)
    def call(*given: Any, **named: Any) -> Any:
        with shown_alone():
            return method(*given, **named)

    @wraps(method)
    def generate(*given: Any, **named: Any) -> Iterator[Any]:
        with shown_alone():
            yield from method(*given, **named)

    return generate if isgeneratorfunction(method) else call
