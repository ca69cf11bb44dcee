"""`HFAgent`: what a user of the library sees, from a question to trajectories and rewards."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import subprocess
import sys

import datasets
import numpy as np
import pytest

from agentfly_lib.agents import HFAgent, RunResult
from agentfly_lib.agents.backend import HostedVllm
from agentfly_lib.configs import VllmEngineConfig
from agentfly_lib.errors import ConfigError, DataError, EngineError, InfrastructureError
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.rewards import anls, reward
from agentfly_lib.tools import ToolContext, calculator, code_interpreter, tool
from agentfly_lib.types import FinishReason, Problem, StopReason

MESSAGES = [{"role": "user", "content": "What is the result of 1 + 1?"}]
CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "1 + 1"}}\n</tool_call>'
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "0", "type": "function", "function": {"name": "calculator", "arguments": {}}}],
}
SCRIPT = {"What is the result": CALL, "<tool_response>": "The answer is \\boxed{2}"}
"""Calls the calculator when asked, and answers when it sees the tool's result."""


def agent(model_path, script=None, **settings) -> HFAgent:
    settings.setdefault("tools", [calculator])
    return HFAgent(model_path, backend_config={"backend": "scripted", "script": script or SCRIPT}, **settings)


class TestTheReadmesExample:
    async def test_a_question_a_call_an_answer(self, model_path):
        made = agent(model_path, reward_fn="math_equal")
        result = await made.run(
            messages={"messages": MESSAGES, "answer": "2"},
            max_turns=3,
            num_chains=1,
            generation_config={"max_tokens": 128},
        )
        assert isinstance(result, RunResult)
        (trajectory,) = result.trajectories
        assert [m["role"] for m in trajectory.messages] == ["assistant", "tool", "assistant"]
        assert trajectory.messages[1]["content"] == "2"
        assert trajectory.final_response == "The answer is \\boxed{2}"
        assert trajectory.stop is StopReason.FINISHED
        assert result.rewards == [1.0]
        assert trajectory.reward == 1.0

    async def test_the_last_result_stays_on_the_agent(self, model_path):
        made = agent(model_path)
        assert made.trajectories == []
        assert made.rewards == []
        result = await made.run(messages=MESSAGES)
        assert made.trajectories == result.trajectories
        assert made.rewards == result.rewards == [None]

    def test_scripts_need_no_loop(self, model_path):
        assert agent(model_path).run_sync(MESSAGES, max_turns=3).trajectories[0].num_turns == 2

    async def test_it_closes_its_engine(self, model_path, monkeypatch):
        closed = []

        async def close(engine):
            closed.append(engine)

        monkeypatch.setattr(ScriptedGenerate, "close", close, raising=False)
        async with agent(model_path) as made:
            await made.run(MESSAGES)
            assert closed == []
        assert closed == [made._host.engine]


class TestChains:
    async def test_conversations_times_chains_in_order(self, model_path):
        made = agent(model_path)
        rows = [{"id": "a", "question": "What is the result?"}, {"id": "b", "messages": MESSAGES}]
        result = await made.run(rows, num_chains=3)
        assert [(t.problem_id, t.chain) for t in result.trajectories] == [(p, c) for p in "ab" for c in range(3)]
        assert [group.problem.id for group in result.groups] == ["a", "b"]

    async def test_they_run_at_the_same_time(self, model_path):
        barrier = asyncio.Barrier(4)

        async def all_here(request: GenerationRequest) -> None:
            if "tool_response" not in request.request_id and request.request_id.endswith("/0"):
                await barrier.wait()

        made = agent(model_path)
        engine = ScriptedGenerate(SCRIPT, format=made.chat, delay=all_here)
        made = HFAgent(model_path, tools=[calculator], backend=engine)
        assert len((await made.run(MESSAGES, num_chains=4)).trajectories) == 4
        assert engine.max_in_flight == 4

    async def test_no_more_than_allowed(self, model_path):
        chat = agent(model_path).chat
        engine = ScriptedGenerate(SCRIPT, format=chat)
        made = HFAgent(model_path, tools=[calculator], backend=engine, max_concurrency=2)
        await made.run(MESSAGES, num_chains=6)
        assert engine.max_in_flight <= 2

    async def test_a_run_may_allow_fewer(self, model_path):
        engine = ScriptedGenerate(SCRIPT, format=agent(model_path).chat)
        made = HFAgent(model_path, tools=[calculator], backend=engine)
        await made.run(MESSAGES, num_chains=6, max_concurrent_chains=3)
        assert engine.max_in_flight == 3

    async def test_every_chain_has_seeds_of_its_own_and_a_run_can_be_repeated(self, model_path):
        chat = agent(model_path).chat
        seeds = []
        for seed in (1, 1, 2):
            engine = ScriptedGenerate(SCRIPT, format=chat)
            made = HFAgent(model_path, tools=[calculator], backend=engine)
            await made.run(MESSAGES, num_chains=2, generation_config={"seed": seed})
            seeds.append(sorted(request.seed for request in engine.requests))
        assert len(set(seeds[0])) == 4
        assert seeds[0] == seeds[1] != seeds[2]

    async def test_max_turns(self, model_path):
        result = await agent(model_path, script={"What is the result": CALL}).run(MESSAGES, max_turns=2)
        assert result.trajectories[0].stop is StopReason.MAX_TURNS
        assert result.trajectories[0].num_turns == 2

    async def test_a_bad_call_is_answered_and_the_chain_goes_on(self, model_path):
        script = {"What is the result": CALL.replace("expression", "exp"), "<tool_response>": "I give up"}
        (trajectory,) = (await agent(model_path, script=script).run(MESSAGES)).trajectories
        assert "missing argument expression" in trajectory.messages[1]["content"]
        assert trajectory.stop is StopReason.FINISHED

    async def test_state_of_tools_is_each_chains_own(self, model_path):
        @tool
        def calculator(expression: str, context: ToolContext) -> int:
            context.state["calls"] = context.state.get("calls", 0) + 1
            return context.state["calls"]

        result = await agent(model_path, tools=[calculator]).run(MESSAGES, num_chains=3)
        assert [t.messages[1]["content"] for t in result.trajectories] == ["1"] * 3

    async def test_one_that_breaks_is_a_recorded_failure(self, model_path):
        engine = ScriptedGenerate([InfrastructureError("no engine", where="generate")])
        made = HFAgent(model_path, backend=engine, reward_fn="math_equal")
        result = await made.run({"question": "?", "answer": "2"})
        assert result.trajectories[0].failure is not None
        assert result.rewards == [None]

    async def test_an_engine_that_is_gone_is_an_error(self, model_path):
        made = HFAgent(model_path, backend=ScriptedGenerate([EngineError("dead"), EngineError("dead")]))
        with pytest.raises(EngineError, match="dead"):
            await made.run(MESSAGES, num_chains=2)


class TestGenerationConfig:
    async def sampled(self, model_path, **config) -> GenerationRequest:
        engine = ScriptedGenerate(lambda request: [65, *request.stop_token_ids])
        await HFAgent(model_path, backend=engine).run(MESSAGES, generation_config=config)
        return engine.requests[0]

    async def test_what_is_asked_for_is_what_the_engine_sees(self, model_path):
        request = await self.sampled(model_path, max_tokens=7, temperature=0.5, top_p=0.9, top_k=-1)
        assert (request.max_tokens, request.greedy) == (7, False)
        assert (request.sampling.temperature, request.sampling.top_p, request.sampling.top_k) == (0.5, 0.9, 0)

    @pytest.mark.parametrize("config", [{"temperature": 0}, {"do_sample": False}])
    async def test_greedy(self, model_path, config):
        assert (await self.sampled(model_path, **config)).greedy

    async def test_hugging_face_words(self, model_path):
        request = await self.sampled(model_path, max_new_tokens=5, min_new_tokens=2, stop_strings=["x", "y"])
        assert (request.max_tokens, request.sampling.min_tokens, request.sampling.stop) == (5, 2, ("x", "y"))

    async def test_penalties_biases_and_stop_texts(self, model_path):
        asked = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": 0.2, "logit_bias": {"7": -3}}
        request = await self.sampled(model_path, stop="Observation:", **asked)
        assert request.sampling.model_dump(exclude_defaults=True) == asked | {
            "logit_bias": {7: -3.0},
            "stop": ("Observation:",),
        }

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"temperatur": 1}, "unknown key generation_config.temperatur: did you mean temperature"),
            ({"top_p": 2}, "top_p = 2"),
            ({"max_tokens": 0}, "max_tokens = 0"),
            ({"presence_penalty": 3}, "presence_penalty = 3"),
            ({"logit_bias": {5: 101}}, r"logit_bias\.5 = 101"),
        ],
    )
    async def test_mistakes_are_named_before_anything_is_generated(self, model_path, config, message):
        with pytest.raises(ConfigError, match=message):
            await self.sampled(model_path, **config)

    async def test_a_cut_turn_ends_the_chain(self, model_path):
        (trajectory,) = (await agent(model_path).run(MESSAGES, generation_config={"max_tokens": 3})).trajectories
        assert trajectory.stop is StopReason.MAX_TOKENS
        assert trajectory.segments[0].turns[0].finish is FinishReason.LENGTH


class TestInputs:
    @pytest.mark.parametrize(
        ("value", "count"),
        [
            ("What is the result?", 1),
            (MESSAGES, 1),
            ([MESSAGES, MESSAGES], 2),
            ({"question": "What is the result?"}, 1),
            ([{"question": "What is the result?"}, {"messages": MESSAGES}], 2),
            (["What is the result?"] * 3, 3),
            (Problem(id="p", messages=tuple(MESSAGES)), 1),
            (np.array(MESSAGES), 1),
            (np.array(["What is the result?"] * 2), 2),
            ([{"messages": np.array(MESSAGES)}], 1),
            ((MESSAGES for _ in range(2)), 2),
            (datasets.Dataset.from_list([{"question": "What is the result?", "hint": "psst"}] * 2), 2),
            ([*MESSAGES, CALLED, {"role": "tool", "tool_call_id": "0", "content": "2"}], 1),
        ],
    )
    async def test_forms(self, model_path, value, count):
        assert len((await agent(model_path).run(value)).groups) == count

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([], "an empty list"),
            (None, "of type NoneType"),
            (3, "of type int"),
            (b"What?", "of type bytes"),
            (np.array([]), "an empty list"),
            ("half \ud83d", "input 0 holds half of a surrogate pair"),
            ({"messages": [{"role": "user", "content": "half \udc00"}]}, "half of a surrogate pair"),
            ([*MESSAGES, {"role": "assistant", "content": None}, *MESSAGES], "message 1 has no text in 'content'"),
            ([MESSAGES, 3], "input 1 is of type int"),
            ({"text": "?"}, "input 0 has neither 'messages' nor a 'question'"),
            ({"question": " "}, "neither"),
            ({"question": "?", "trajectory": 1}, "the column 'trajectory' has a name that is reserved for the rollout"),
            ([{"role": "robot", "content": "?"}], "has the role 'robot'"),
            ([{"role": "user"}], "no text in 'content'"),
            ([*MESSAGES, {"role": "assistant", "content": "2"}], "the last message is the assistant's"),
        ],
    )
    async def test_what_cannot_be_used_is_named(self, model_path, value, message):
        with pytest.raises(DataError, match=message):
            await agent(model_path).run(value)

    async def test_columns_reach_tools_and_rewards(self, model_path):
        @tool
        def calculator(expression: str, context: ToolContext) -> str:
            return context.problem.columns["hint"]

        @reward(inline=True)
        def told(messages, hint):
            return float(any(m["role"] == "tool" and m["content"] == hint for m in messages))

        made = agent(model_path, tools=[calculator], reward_fn=told)
        assert (await made.run({"messages": MESSAGES, "hint": "psst"})).rewards == [1.0]

    async def test_equal_rows_have_equal_ids(self, model_path):
        ids = [(await agent(model_path).run(MESSAGES)).trajectories[0].problem_id for _ in range(2)]
        assert ids[0] == ids[1]

    @pytest.mark.parametrize("limits", [{"num_chains": 0}, {"max_turns": 0}, {"max_concurrent_chains": 0}])
    async def test_limits_that_cannot_be(self, model_path, limits):
        with pytest.raises(ConfigError, match="must be at least 1"):
            await agent(model_path).run(MESSAGES, **limits)


class TestReward:
    async def test_a_missing_column_is_found_before_anything_is_generated(self, model_path):
        engine = ScriptedGenerate([])
        made = HFAgent(model_path, backend=engine, reward_fn="math_equal")
        with pytest.raises(ConfigError, match="reward 'math_equal' asks for the column 'answer'"):
            await made.run(MESSAGES)
        assert engine.requests == []

    async def test_parts(self, model_path):
        made = agent(model_path, reward_fn=reward(inline=True)(lambda prediction: {"reward": 1, "length": 2}))
        (trajectory,) = (await made.run(MESSAGES)).trajectories
        assert trajectory.reward_parts == {"length": 2.0}


class TestConstruction:
    @pytest.mark.parametrize("name", ["tools", "max_turns", "system_prompt", "reward", "chat"])
    def test_an_agent_never_changes(self, model_path, name):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(agent(model_path), name, None)

    @pytest.mark.parametrize(
        ("limit", "message"),
        [("max_turns", "max_turns=0 must be at least 1"), ("tool_timeout_seconds", "must be more than 0")],
    )
    def test_limits_that_allow_nothing(self, model_path, limit, message):
        with pytest.raises(ConfigError, match=message):
            agent(model_path, **{limit: 0})

    def test_the_parameters_are_agentflys(self):
        names = list(inspect.signature(HFAgent).parameters)
        assert names[:6] == ["model_name_or_path", "tools", "reward_fn", "template", "system_prompt", "backend_config"]

    def test_the_system_prompt_comes_first_unless_the_problem_has_its_own(self, model_path):
        made = agent(model_path, system_prompt="Be brief.")
        user = {"role": "user", "content": "?"}
        own = {"role": "system", "content": "Own."}
        assert made.build_messages(Problem(id="p", messages=(user,))) == [
            {"role": "system", "content": "Be brief."}, user,
        ]  # fmt: skip
        assert made.build_messages(Problem(id="p", messages=(own, user))) == [own, user]

    def test_tools_by_name(self, model_path):
        assert agent(model_path, tools=["calculator"]).tools == {"calculator": calculator}

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"tools": ["calculater"]}, "did you mean 'calculator'"),
            ({"tools": "calculator"}, "tools is 'calculator' alone, not a list"),
            ({"tools": calculator}, "tools is 'calculator' alone, not a list"),
            ({"tools": [len]}, "len is a builtin_function_or_method, not a tool; put @tool on it"),
            ({"tools": [code_interpreter]}, r'module, not a tool; write tools=\["code_interpreter"\]'),
            ({"tools": [calculator, calculator]}, "two tools are called 'calculator'"),
            ({"reward_fn": "math_equls"}, "did you mean 'math_equal'"),
            ({"reward_fn": len}, "not a reward; put @reward on it"),
            ({"reward_fn": anls}, r'rewards\.anls is a module, not a reward; write reward_fn="anls"'),
        ],
    )
    def test_what_cannot_be_used_is_named(self, model_path, settings, message):
        with pytest.raises(ConfigError, match=message):
            agent(model_path, **settings)

    @pytest.mark.parametrize(
        ("config", "message"),
        [
            ({"backend": "transformer"}, "unknown backend 'transformer'; there are: async_vllm"),
            ({"backend": "async_vllm", "dtpye": "float32"}, "unknown key backend_config.dtpye: did you mean dtype"),
            ({"dtype": "int3"}, "dtype = 'int3'"),
            ({"max_model_len": "long"}, "context_length = 'long'"),
        ],
    )
    def test_backend_settings_that_cannot_be(self, model_path, config, message):
        with pytest.raises(ConfigError, match=message):
            HFAgent(model_path, backend_config=config)

    def test_vllms_own_words_are_understood_and_nothing_is_started(self, model_path):
        options = {"max_model_len": 512, "max_num_seqs": 8, "gpu_memory_utilization": 0.5, "tensor_parallel_size": 2}
        host = HFAgent(model_path, backend_config={"backend": "async_vllm"} | options)._host
        assert isinstance(host.engine, HostedVllm)
        assert (host.context_length, host.engine._home) == (512, None)
        expected = VllmEngineConfig(max_sequences=8, gpu_memory_fraction=0.5, tensor_parallel=2)
        assert host.engine._inference == expected


def test_importing_the_public_packages_loads_nothing_heavy():
    code = (
        "import sys; import agentfly_lib.agents, agentfly_lib.tools, agentfly_lib.rewards, agentfly_lib.chat; "
        "heavy = ('torch', 'vllm', 'ray', 'deepspeed', 'transformers', 'datasets', 'prefect', 'mlflow'); "
        "print([m for m in heavy if m in sys.modules])"
    )
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
