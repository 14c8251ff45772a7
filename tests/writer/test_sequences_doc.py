"""docs/sequences.md has the same table as the code."""

from __future__ import annotations

import re
from pathlib import Path

from writer.sequence import SETTLED, TRANSITIONS, Event, State

PAGE = (Path(__file__).parents[2] / "docs" / "sequences.md").read_text()


def written_table() -> dict[tuple[str, str], tuple[str, str]]:
    head = "| State | Event | Next state | What else is done |\n|---|---|---|---|\n"
    (body,) = re.findall(re.escape(head) + r"((?:\|.*\|\n)+)", PAGE)
    table: dict[tuple[str, str], tuple[str, str]] = {}
    for line in body.splitlines():
        states, event, next_state, action = (cell.strip() for cell in line.strip("|").split("|"))
        for state in states.split(", "):
            assert (state, event) not in table, "a transition is written twice"
            table[state, event] = (next_state, action)
    return table


def test_the_page_has_exactly_the_transitions_of_the_code() -> None:
    used = {
        (state.value, event.value): (step.state.value, step.action.value)
        for state, steps in TRANSITIONS.items()
        for event, step in steps.items()
    }
    assert written_table() == used


def test_every_state_and_event_is_used_and_settled_states_are_final() -> None:
    assert set(TRANSITIONS) == set(State)
    assert {event for steps in TRANSITIONS.values() for event in steps} == set(Event)
    assert {state for state in State if not TRANSITIONS[state]} == SETTLED


def test_the_page_names_every_event_of_an_answer() -> None:
    (body,) = re.findall(r"\| Answer \| Event \|\n\|---\|---\|\n((?:\|.*\|\n)+)", PAGE)
    named = {line.strip("|").split("|")[1].strip().split(":")[0].split(";")[0] for line in body.splitlines()}
    assert named - {"none"} == {event.value for event in Event if event is not Event.SENT}
