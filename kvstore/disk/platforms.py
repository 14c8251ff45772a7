"""Refuses systems that kvstore can't run on, before anything else of it is imported."""

import sys

if sys.platform == "win32":
    raise ImportError(
        "kvstore does not run on Windows, which lacks the file locks it needs; use WSL 2, or a container."
    )
