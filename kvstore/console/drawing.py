"""Small drawings as SVG in a page: they need no script and no style of their own, and say in words what they show."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kvstore.console.html import Html, tag

WIDTH = 1000
_LEAST = 4
"""Width of the smallest part, so that it is seen."""
PARTS_MAX = 200
_HEIGHTS = {"spark": 100, "chart": 200}
"""Heights of curves by their class, in units of which a line has ``WIDTH``."""


class Part(NamedTuple):
    """A part of a line, from ``start`` to ``stop`` (exclusive); ``kind`` is its class in the style sheet."""

    start: int
    stop: int
    kind: str


def line(start: int, stop: int, parts: Sequence[Part], words: str) -> Html:
    """A range of offsets as a line; later parts are drawn over earlier ones.

    Args:
        words: What the line shows, for those who do not see it.
    """
    scale = WIDTH / max(stop - start, 1)
    drawn = []
    for part in parts[:PARTS_MAX]:
        width = max((part.stop - part.start) * scale, _LEAST)
        x = min((part.start - start) * scale, WIDTH - width)
        title = tag("title", f"{part.kind}: offsets {part.start:,} to {max(part.start, part.stop - 1):,}")
        drawn.append(tag("rect", title, class_=part.kind, x=_number(x), y=2, width=_number(width), height=12))
    return _svg(drawn, words, 16, "line")


def _svg(content: Sequence[Html], words: str, height: int, kind: str) -> Html:
    return tag(
        "svg",
        tag("title", words),
        *content,
        class_=kind,
        viewBox=f"0 0 {WIDTH} {height}",
        preserveAspectRatio="none",
        role="img",
        aria_label=words,
    )


def _number(given: float) -> str:
    return f"{given:.1f}".removesuffix(".0")


def curve(values: Sequence[float], words: str, kind: str) -> Html:
    """Values over time as an area from left to right, the largest at full height."""
    height = _HEIGHTS[kind]
    top, step = max(*values, 1e-9), WIDTH / max(len(values) - 1, 1)
    points = [f"{_number(nth * step)} {_number(height - each / top * (height - 4))}" for nth, each in
              enumerate(values)]  # fmt: skip
    path = f"M0 {height}L" + "L".join(points)
    area = tag("path", class_="area", d=f"{path}L{WIDTH} {height}Z")
    return _svg([area, tag("path", class_="edge", d="M" + "L".join(points))], words, height, kind)
