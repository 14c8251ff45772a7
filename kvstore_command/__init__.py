"""Entry of the command ``kvstore``, outside of that package: its imports take most of the time of a short command."""

from __future__ import annotations

import os
import signal
import sys
from typing import NoReturn


def main() -> None:
    """Run the command; an interrupt becomes one line and exit code 130, as docs/cli.md says."""
    raises = signal.default_int_handler
    is_default = signal.getsignal(signal.SIGINT) is raises  # a shell may have it ignored
    if is_default:
        signal.signal(signal.SIGINT, _end)
    from kvstore.cli.main import main as run

    if is_default:
        signal.signal(signal.SIGINT, raises)
    try:
        run()
    except KeyboardInterrupt:
        print("kvstore: interrupted", file=sys.stderr)
        sys.exit(130)


def _end(_signal: int, _frame: object) -> NoReturn:
    # No exception: a library that is being imported may turn it into an error of its own. No store is open yet.
    os.write(2, b"kvstore: interrupted\n")
    os._exit(130)
