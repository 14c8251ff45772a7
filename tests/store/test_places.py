"""A place in a log that is given as text means the same everywhere, and what is none is refused by name."""

from __future__ import annotations

import datetime as dt
import json

import pytest
from hypothesis import given, strategies as st

from kvstore.arguments import bound_of
from kvstore.errors import InvalidRequest

offsets = st.integers(0, 2**63 - 1)
times = st.datetimes(
    timezones=st.just(dt.UTC) | st.integers(-700, 700).map(lambda m: dt.timezone(dt.timedelta(minutes=m)))
)


@given(st.sampled_from(["full", "latest"]) | offsets | st.dictionaries(st.integers(0, 9), offsets) | times)
def test_a_place_comes_back_from_its_text(place: object) -> None:
    text = place.isoformat() if isinstance(place, dt.datetime) else place if isinstance(place, str) else None
    found = bound_of("--start", json.dumps(place) if text is None else text, "full", "latest")
    assert found == place
    assert isinstance(found, dt.datetime) == isinstance(place, dt.datetime)


@pytest.mark.parametrize(
    "text", ["", " ", "-1", "1.0", "٣", "9" * 5000, "[]", "2026-01-31", "2026-01-31T12:00:00", "earliest", "\udcff"]
)
def test_what_is_none_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^--start is full, JSON .*, an offset, or a time with its zone"):
        bound_of("--start", text, "full")


@pytest.mark.parametrize(
    "text", ['{"0": "x"}', '{"x": 1}', '{"0": 1', "{" * 5000, '{"0": null}', '{"0": 1.5}', '{"\udcff"']
)
def test_offsets_by_bucket_are_json(text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"^--end is latest, or JSON from bucket to offset"):
        bound_of("--end", text, "latest")
