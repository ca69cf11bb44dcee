"""A collection wastes little of what an ideal schedule needs, whatever the delays of tools; in virtual time."""

from __future__ import annotations

import pytest

from benchmarks.scheduler import over_ideal
from benchmarks.simulated import DELAYS, Script
from tests.resources.virtual_time import run


@pytest.mark.parametrize("delays", DELAYS)
@pytest.mark.parametrize(("chains", "bar"), [(64, 1.4), (16, 1.1)])
def test_over_the_bound(chains, bar, delays):
    assert 1.0 <= run(over_ideal(Script.draw(chains, 3, delays), slots=16)) < bar
