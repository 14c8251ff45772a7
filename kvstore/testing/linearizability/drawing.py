"""The smallest part of a history as text and as a page: everything in it may come from anywhere, so all is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from kvstore.testing.linearizability.operations import Record

_VALUE_LETTERS_MAX = 60
_ROW, _STEP, _LEFT, _HEIGHT = 46, 110, 20, 22

_STYLE = """
body { font: 14px/1.5 system-ui, sans-serif; margin: 2em; color: #1d2430; background: #fff }
svg { display: block; margin: 1em 0 2em; max-width: none }
svg text { font: 12px ui-monospace, monospace }
figure { overflow-x: auto; margin: 0 }
table { border-collapse: collapse }
th, td { text-align: left; padding: .2em .8em; border-bottom: 1px solid #ccd; font-family: ui-monospace, monospace }
tr:last-child td { background: #fde2e0 }
"""


def value_text(value: Any) -> str:
    """A value in one line of limited length."""
    text = repr(value)
    return text if len(text) <= _VALUE_LETTERS_MAX else text[: _VALUE_LETTERS_MAX - 1] + "…"


def table(records: Sequence[Record]) -> str:
    """A line for each record and a column for each process; ``|`` where an operation is open."""
    if not records:
        return "No operations."
    processes, rows = _rows(records)
    lines = [["time", *map(_name, processes)], *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))]
    lines.insert(1, ["-" * width for width in widths])
    shown = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join([*shown, _reason(records)])


def page(summary: str, records: Sequence[Record]) -> str:
    """A page of HTML with a drawing of the operations and the same table."""
    drawn = ""
    if records:
        drawn = f"<figure>{_drawing(records)}</figure>{_html_table(records)}<p>{escape(_reason(records))}</p>"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><title>Verdict on a history</title>'
        f"<style>{_STYLE}</style></head><body><h1>Verdict on a history</h1><p>{escape(summary)}</p>"
        f"{drawn}</body></html>\n"
    )


def _reason(records: Sequence[Record]) -> str:
    last = records[-1]
    return f"No order explains the answer of process {_name(last['process'])} at {last['time']}."


def _rows(records: Sequence[Record]) -> tuple[list[Any], list[list[str]]]:
    processes = list(dict.fromkeys(record["process"] for record in records))
    is_open = dict.fromkeys(processes, False)
    rows = []
    for record in records:
        process = record["process"]
        rows.append(
            [
                str(record["time"]),
                *(_cell(record) if column == process else "|" if is_open[column] else "" for column in processes),
            ]
        )
        is_open[process] = record["type"] in ("invoke", "info")
    return processes, rows


def _cell(record: Record) -> str:
    if record["type"] == "invoke":
        value = record.get("value")
        return f"{_printable(record['f'])} {value_text(value)}" if value is not None else _printable(record["f"])
    answer = record.get("value")
    is_read = record["type"] == "ok" and (record.get("f") == "read" or answer is not None)
    return f"{record['type']} {value_text(answer)}" if is_read else str(record["type"])


def _name(process: Any) -> str:
    return process if isinstance(process, str) and process.isprintable() else value_text(process)


def _printable(text: str) -> str:
    return text if text.isprintable() else repr(text)


def _html_table(records: Sequence[Record]) -> str:
    processes, rows = _rows(records)
    head = "".join(f"<th>{escape(name)}</th>" for name in ["time", *map(_name, processes)])
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _drawing(records: Sequence[Record]) -> str:
    """A row for each process, and a bar for each operation; distances show the order and not the times."""
    processes = list(dict.fromkeys(record["process"] for record in records))
    names = {process: _name(process) for process in processes}
    left = _LEFT + 9 * max(map(len, names.values()))
    right = left + _STEP * (len(records) + 1)
    shapes = []
    opened: dict[Any, tuple[int, Record]] = {}
    bars: list[tuple[int, int | None, Record, Record | None]] = []
    for nth, record in enumerate(records):
        if record["type"] == "invoke":
            opened[record["process"]] = nth, record
        else:
            begin, invocation = opened.pop(record["process"])
            bars.append((begin, nth, invocation, record))
    bars += [(begin, None, invocation, None) for begin, invocation in opened.values()]
    for row, process in enumerate(processes):
        y = _ROW * row + 30
        shapes.append(f'<text x="0" y="{y + 15}">{escape(names[process])}</text>')
        shapes.append(f'<line x1="{left}" x2="{right}" y1="{y + 11}" y2="{y + 11}" stroke="#dde"/>')
    for begin, last, invocation, end in bars:
        y = _ROW * processes.index(invocation["process"]) + 30
        is_violated = last == len(records) - 1
        is_known = end is not None and end["type"] != "info"
        colour = "#e5534b" if is_violated else "#7aa7e0" if is_known else "#c8ccd4"
        x, width = left + _STEP * begin, (right if last is None else left + _STEP * last) - left - _STEP * begin
        label = _cell(invocation) + ("" if end is None else f": {_cell(end)}")
        shapes.append(
            f'<rect x="{x}" y="{y}" width="{width}" height="{_HEIGHT}" rx="3" fill="{colour}"><title>{escape(label)}'
            f'</title></rect><text x="{x + 4}" y="{y - 4}">{escape(label)}</text>'
        )
    height = _ROW * len(processes) + 30
    return f'<svg width="{right + 10}" height="{height}" role="img">{"".join(shapes)}</svg>'
