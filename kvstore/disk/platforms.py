"""Refuses systems and environments that kvstore can't run in, before anything else of it is imported."""

import os
import sys
from importlib.util import find_spec

_PACKAGES = ("logformat", "merge_engines", "writer")
"""Packages of this distribution beside ``kvstore``, whose names a file of the user may have."""


def _file_of(name: str) -> str | None:
    module = sys.modules.get(name)
    if module is not None:
        return getattr(module, "__file__", None)
    spec = find_spec(name)
    return None if spec is None else spec.origin


def _check_packages() -> None:
    here = os.path.realpath(__file__)
    for _ in ("platforms.py", "disk", "kvstore"):
        here = os.path.dirname(here)
    for name in _PACKAGES:
        file = _file_of(name)
        if file is None:
            raise ImportError(f"The package `{name}` of kvstore is missing; install kvstore-cdc again.", name=name)
        if os.path.dirname(os.path.realpath(file)) != os.path.join(here, name):
            raise ImportError(
                f"kvstore has a package `{name}`, but Python finds {file} under that name; rename that file, or use an"
                " environment without it.",
                name=name,
                path=file,
            )


if sys.platform == "win32":
    raise ImportError(
        "kvstore does not run on Windows, which lacks the file locks it needs; use WSL 2, or a container."
    )
if not getattr(sys, "_is_gil_enabled", lambda: True)():  # of Python 3.13
    raise ImportError(
        "kvstore was never run without the GIL of Python; set PYTHON_GIL=1, or use a build that is not free-threaded."
    )
_check_packages()
