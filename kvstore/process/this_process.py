"""Which process this is, known without a call of the system: every read asks whether it is in a forked child."""

import os

pid = os.getpid()


def _forked() -> None:
    global pid
    pid = os.getpid()


os.register_at_fork(after_in_child=_forked)
