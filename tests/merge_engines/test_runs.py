"""Computing along runs of any length equals computing element by element."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from merge_engines.runs import Runs, accumulate, choose

LENGTHS = st.lists(st.integers(1, 5) | st.integers(1, 300), min_size=1, max_size=5)


def runs_of(lengths: list[int]) -> Runs:
    counts = np.array(lengths)
    firsts = np.repeat(np.cumsum(counts) - counts, counts)
    return Runs(np.arange(len(firsts)), firsts)


@pytest.mark.parametrize("strict", [True, False])
@given(lengths=LENGTHS, different=st.sampled_from([1, 3, 1000]), seed=st.integers(0, 99))
def test_choose_equals_choosing_element_by_element(strict: bool, lengths: list[int], different: int, seed: int) -> None:
    runs = runs_of(lengths)
    values = np.random.default_rng(seed).integers(0, different, len(runs.firsts))
    found = choose(lambda own, other: values[own] > values[other] if strict else values[own] >= values[other], runs)
    expected, best = [], 0
    for element, first in enumerate(runs.firsts.tolist()):
        better = values[element] > values[best] if strict else values[element] >= values[best]
        if element == first or better:
            best = element
        expected.append(best)
    assert found.tolist() == expected


@given(lengths=LENGTHS, seed=st.integers(0, 99))
def test_sums_of_floats_equal_adding_element_by_element(lengths: list[int], seed: int) -> None:
    runs = runs_of(lengths)
    values = np.random.default_rng(seed).random(len(runs.firsts)) * 10.0 ** (seed % 20)
    expected, total = [], 0.0
    for element, first in enumerate(runs.firsts.tolist()):
        total = values[element] if element == first else total + values[element]
        expected.append(total)
    assert accumulate(np.add, values, runs).tolist() == expected
