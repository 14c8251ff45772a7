"""How many examples a property takes that is slow: all of them in ``make test-long``, few in ``make test``."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

IS_LONG = settings().max_examples > 100


def slow(examples: int, quick: int | None = None, **others: Any) -> settings:
    """Settings of a property of which each example takes long.

    Args:
        examples: In ``make test-long``.
        quick: In ``make test``; a fifth of these if it is None.
        others: See ``hypothesis.settings``.
    """
    few = -(-examples // 5) if quick is None else quick
    return settings(max_examples=examples if IS_LONG else few, **others)
