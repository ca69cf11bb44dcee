"""Seeds are a pure function of the place, and differ between places."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentfly_lib.rollout import RolloutSeeds, turn_seed

PLACE = {"run_seed": 7, "step": 3, "group_index": 2, "chain": 1, "turn": 0}


def test_the_same_place_gives_the_same_seed_in_another_process():
    code = f"from agentfly_lib.rollout.seeds import turn_seed; print(turn_seed(**{PLACE!r}))"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert int(other.stdout) == turn_seed(**PLACE)


@pytest.mark.parametrize("name", PLACE)
def test_every_coordinate_matters(name):
    assert turn_seed(**PLACE) != turn_seed(**(PLACE | {name: PLACE[name] + 1}))


def test_a_whole_run_has_no_two_equal_seeds():
    seeds = {
        turn_seed(run_seed=0, step=step, group_index=group, chain=chain, turn=turn)
        for step in range(10)
        for group in range(16)
        for chain in range(8)
        for turn in range(4)
    }
    assert len(seeds) == 10 * 16 * 8 * 4


@settings(deadline=None)
@given(st.integers(-(2**63), 2**63 - 1))
def test_seeds_fit_in_63_bits_whatever_the_run_seed(run_seed):
    assert 0 <= turn_seed(**(PLACE | {"run_seed": run_seed})) < 2**63


def test_a_collection_fixes_run_seed_and_step():
    assert RolloutSeeds(run_seed=7, step=3).turn(2, 1, 0) == turn_seed(**PLACE)
