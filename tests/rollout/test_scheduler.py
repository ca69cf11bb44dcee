"""A collection wastes little of what an ideal schedule needs, whatever the delays of tools; in virtual time."""

from __future__ import annotations

import pytest

from agentfly_lib.agents.build import build_agent
from agentfly_lib.configs import HFAgentConfig, TinyModelConfig
from agentfly_lib.models.tiny import ensure_tiny
from benchmarks.scheduler import over_ideal
from benchmarks.simulated import DELAYS, Script, SimulatedEngine
from benchmarks.virtual_time import run


@pytest.mark.parametrize("delays", DELAYS)
@pytest.mark.parametrize(("chains", "bar"), [(32, 1.45), (8, 1.1)])
def test_over_the_bound(chains, bar, delays):
    assert 1.0 <= run(over_ideal(Script.draw(chains, 3, delays), slots=8)) < bar


def test_tools_of_a_second_add_little_more_than_those_of_one_chain():
    def seconds(delay: float) -> float:
        script = Script.draw(16, 4, "none")
        script.delays[:] = delay
        agent = build_agent(HFAgentConfig(), ensure_tiny(TinyModelConfig()).path)
        ideal = script.ideal(SimulatedEngine(script, agent.chat, slots=16))
        return run(over_ideal(script, slots=16)) * ideal

    assert 2.5 <= seconds(1.0) - seconds(0.0) < 2 * 3.0
