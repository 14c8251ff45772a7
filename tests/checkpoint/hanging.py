"""A worker that never answers, nor ends by itself before its time."""

from __future__ import annotations

import signal
import sys
import time

from kvstore.checkpoint.messages import decode_task

if __name__ == "__main__":
    signal.alarm(decode_task(sys.argv[1]).seconds)
    time.sleep(600)
