"""What a batch changes of the figures of a bucket."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Effect(NamedTuple):
    """Change of the row count and of the digest (modulo 2^64) by a batch."""

    added_rows: int
    digest: int = 0


def digest_of(hashes: np.ndarray) -> int:
    """Sum of hashes, modulo 2^64."""
    return int(hashes.sum(dtype=np.uint64))
