"""The smallest part of a violation: what is in it, that it is one, and how it is shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from random import Random
from typing import Any

from hypothesis import assume, given, settings, strategies as st

from kvstore.testing import Part, Verdict, certify
from tests.testing import jepsen, registers
from tests.testing.registers import Op


def smallest(verdict: Verdict) -> Part:
    assert verdict.smallest is not None
    return verdict.smallest


def long_violation(seed: int) -> list[dict[str, Any]]:
    """A history of 120 operations with a read that is changed, most often so that no order explains it."""
    random = Random(seed)
    happened = registers.happened(random, operations=120, processes=3, unknown=0.05)
    return registers.records(registers.mutated(random, happened), random)


@settings(max_examples=120)
@given(registers.small(), st.randoms(use_true_random=False))
def test_a_part_is_a_violation_of_records_of_its_history(operations: list[Op], random: Random) -> None:
    assume(not registers.has_an_order(operations))
    check_part(registers.records(operations, random))


@settings(max_examples=25)
@given(st.integers(0, 10**6))
def test_a_part_of_a_long_history_is_a_violation(seed: int) -> None:
    check_part(long_violation(seed))


def check_part(history: list[dict[str, Any]]) -> None:
    verdict = certify(history)
    assume(not verdict)
    part = smallest(verdict)
    assert all(each in history for each in part)
    assert [each["time"] for each in part] == sorted(each["time"] for each in part)
    again = certify(part)
    assert again.outcome == "violation"
    # It ends with the answer that no order explains.
    assert certify(part[:-1])
    assert smallest(certify(history[::-1])) == part
    assert smallest(certify(part)) == part
    # What was read was written in it, if it was written at all before.
    for each in part:
        if each["type"] == "ok" and each["f"] == "read" and each["value"] is not None:
            sources = [write for write in not_failed(history) if sets(write) == each["value"]]
            sources = [write for write in sources if write["time"] <= each["time"]]
            assert not sources or any(source in part for source in sources)


def not_failed(history: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records without those of operations that failed."""
    failed = []
    for end in (each for each in history if each["type"] == "fail"):
        same = [each for each in history if each["process"] == end["process"] and each["time"] <= end["time"]]
        failed += [end, max((each for each in same if each["type"] == "invoke"), key=lambda each: each["time"])]
    return [each for each in history if each not in failed]


def sets(record: dict[str, Any]) -> Any:
    if record["type"] != "invoke" or record["f"] == "read":
        return None
    return record["value"] if record["f"] == "write" else record["value"][1]


def stale(**value: Any) -> list[dict[str, Any]]:
    written = value.get("written", 7)
    calls = [
        ("a", "write", 1, 1, 0, 3),
        ("b", "read", None, 1, 4, 6),
        ("a", "write", written, written, 10, 13),
        ("c", "read", None, written, 12, 14),
        ("b", "write", 8, 8, 20, 23),
        ("a", "read", None, 8, 24, 26),
        ("c", "read", None, written, 30, 33),
        ("a", "write", 9, 9, 31, 35),
    ]
    return [
        {"process": process, "type": type, "f": f, "value": shown, "time": time}
        for process, f, given, result, start, end in calls
        for type, shown, time in (("invoke", given, start), ("ok", result, end))
    ]


def test_a_stale_read_is_shown_with_what_it_read_and_what_it_missed() -> None:
    verdict = certify(stale())
    assert smallest(verdict).operations == 3
    assert str(verdict) == (
        "violation: no order explains these 3 of 8 operations.\n"
        "\n"
        "time  a        b        c\n"
        "----  -------  -------  ----\n"
        "10    write 7\n"
        "13    ok 7\n"
        "20             write 8\n"
        "23             ok 8\n"
        "30                      read\n"
        "33                      ok 7\n"
        "No order explains the answer of process c at 33."
    )
    assert repr(smallest(verdict)) == str(smallest(verdict)) == str(verdict).partition("\n\n")[2]


def test_a_part_has_the_unknown_outcomes_after_which_a_process_goes_on() -> None:
    history = [
        {"process": 1, "type": "invoke", "f": "write", "value": 7, "time": 1},
        {"process": 1, "type": "info", "f": "write", "value": 7, "time": 2},
        {"process": 1, "type": "invoke", "f": "read", "value": None, "time": 3},
        {"process": 1, "type": "ok", "f": "read", "value": 7, "time": 4},
        {"process": 1, "type": "invoke", "f": "read", "value": None, "time": 5},
        {"process": 1, "type": "ok", "f": "read", "value": None, "time": 6},
        {"process": 2, "type": "invoke", "f": "write", "value": 8, "time": 5},
        {"process": 2, "type": "info", "f": "write", "value": 8, "time": 7},
    ]
    part = smallest(certify(history))
    assert list(part) == history[:6]
    assert not certify(part)


def test_parts_of_histories_of_etcd_are_small() -> None:
    parts = [smallest(certify(jepsen.etcd(number))) for number, fine in jepsen.VERDICTS.items() if not fine]
    assert [part.operations for part in parts] == [3, 11, 17, 6, 3, 7]
    assert all(not certify(part) for part in parts)


def test_a_linearizable_history_has_no_part() -> None:
    verdict = certify(stale()[:-4])
    assert verdict.smallest is None
    assert str(verdict) == "linearizable, 6 operations"
    assert repr(verdict) == "<Verdict: linearizable, 6 operations>"
    assert "linearizable, 6 operations" in verdict.to_html()


class Page(HTMLParser):
    """Elements and texts of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.texts: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        assert not {name for name, _ in attributes} & {"href", "src", "onload", "onerror"}
        if tag not in ("meta", "line"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, _: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_page_shows_the_part_and_needs_nothing_else() -> None:
    page = certify(stale()).to_html()
    found = Page(page)
    assert found.open == []
    assert found.elements.count("rect") == 3
    assert {"write 7", "ok 7", "read: ok 7", "a", "b", "c", "33"} <= set(found.texts)
    assert not re.search(r"https?:|url\(|@import|<script|<link", page)


HOSTILE = "</title><script>alert(1)</script>&\"'\x1b[2J\u202e\n"


def test_names_and_values_of_a_history_are_escaped() -> None:
    history = [{**each, "process": HOSTILE + str(each["process"])} for each in stale(written=HOSTILE)]
    verdict = certify(history)
    found = Page(verdict.to_html())
    assert "script" not in found.elements
    assert found.open == []
    assert any("<script>" in text for text in found.texts)
    assert str(verdict).replace("\n", "").isprintable()
    moved = [{**each, "value": (HOSTILE, each["value"])} for each in stale()]
    assert "script" not in Page(certify(moved, "map").to_html()).elements
    assert str(certify(moved, "map")).replace("\n", "").isprintable()


def test_long_values_are_shown_in_part() -> None:
    assert max(map(len, str(certify(stale(written="x" * 10_000))).splitlines())) < 300
