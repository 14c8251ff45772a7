"""How many examples a property takes that is slow: all of them in ``make test-long``, a fifth in ``make test``."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

IS_LONG = settings().max_examples > 100


def slow(examples: int, **others: Any) -> settings:
    """Settings of a property of which each example takes long.

    Args:
        examples: In ``make test-long``.
        others: See ``hypothesis.settings``.
    """
    return settings(max_examples=examples if IS_LONG else -(-examples // 5), **others)
