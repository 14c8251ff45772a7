"""Errors of a store in Spark's messages: the error alone, without the traceback of the task that raised it.

PySpark reads ``SPARK_HIDE_TRACEBACK`` from the environment of a worker when it reports an error, and then ends the
worker. So setting it in the failing worker changes only this report; errors of users' functions keep their tracebacks.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import isgeneratorfunction
from typing import Any, TypeVar

from pyspark.errors import PythonException

from kvstore import errors
from kvstore.errors import StoreError

_ERROR = re.compile(r"^kvstore\.errors\.(\w+): (.*)$", re.MULTILINE)
"""An error of the store in the text of PySpark's exception."""
Class = TypeVar("Class", bound=type)


@contextmanager
def shown_alone() -> Iterator[None]:
    """Hide the traceback from Spark's report of a store's error that leaves this context."""
    try:
        yield
    except StoreError:
        if os.environ.get("SPARK_PYTHON_RUNTIME") == "PYTHON_WORKER":
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise


@contextmanager
def raised_here() -> Iterator[None]:
    """Raise the store's error that ended a job, in place of PySpark's exception: the same class, with its text.

    An error of a user's function, which has a traceback, stays PySpark's.
    """
    try:
        yield
    except PythonException as error:
        match = _ERROR.search(text) if "Traceback" not in (text := str(error)) else None
        if match is None or match[1] not in errors.__all__:
            raise
        raise getattr(errors, match[1])(match[2]) from error


def errors_shown_alone(of: Class) -> Class:
    """Decorate a class that Spark calls with :func:`shown_alone` for its constructor and public methods."""
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
