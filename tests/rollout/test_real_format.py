"""The whole path with a real tokenizer, chat template, agent and tools; only the policy is scripted."""

import numpy as np
import pytest

from agentfly_lib.agents import HFAgent
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.models.tokenizer import build_tokenizer
from agentfly_lib.types import Problem, StopReason

CALL = '<tool_call>\n{"name": "calculator", "arguments": {"expression": "2 + 3 * 4"}}\n</tool_call>'
REPLIES = [
    [CALL, "14"],
    [CALL + CALL, "14, 14"],
    ["思考 🙂 " + CALL, " 14 \n\n"],
    [
        '<tool_call>{"name": "calculator"}</tool_call>',
        '<tool_call>{"name": "abacus", "arguments": {}}</tool_call>',
        "?",
    ],
    ["14"],
]


@pytest.fixture(scope="module")
def agent(tmp_path_factory) -> HFAgent:
    path = tmp_path_factory.mktemp("model")
    build_tokenizer(["Tom has 2 apples and buys 3 bags of 4. How many apples?"] * 20).save_pretrained(path)
    return HFAgent(path, tools=["calculator"], reward_fn="math_equal", system_prompt="Calculate.")


@pytest.mark.parametrize("replies", REPLIES)
async def test_what_the_engine_sees_is_what_the_segment_holds(world, agent, replies):
    tokenizer, stop = agent.chat.tokenizer, agent.chat.stop_token_ids[0]
    # Character by character: legal ids that encoding the text would never give, as a sampled reply may be.
    ids = [[t for c in reply for t in tokenizer.encode(c, add_special_tokens=False)] + [stop] for reply in replies]
    generate = ScriptedGenerate(ids)
    problem = Problem(id="p", messages=({"role": "user", "content": "Tom has 2 apples."},), columns={"answer": "14"})
    trajectory = await world.run(generate, agent, problem=problem)
    assert (trajectory.stop, trajectory.failure) == (StopReason.FINISHED, None)
    (segment,) = trajectory.segments
    turns = [turn for turn in segment.turns if turn.sampled]
    for turn, request, sampled in zip(turns, generate.requests, ids, strict=True):
        assert list(request.token_ids) == segment.token_ids[: turn.start].tolist()
        assert segment.token_ids[turn.start : turn.end].tolist() == sampled
    mask = np.zeros(len(segment), bool)
    for turn in turns:
        mask[turn.start : turn.end] = True
    np.testing.assert_array_equal(segment.loss_mask, mask)
    assert [turn.message["content"] for turn in turns] == replies
    first = agent.chat.prompt_ids(agent.build_messages(problem), agent.schemas)
    assert segment.token_ids[: len(first)].tolist() == first
    if len(turns) == 2:
        results = [turn.message["content"] for turn in segment.turns if not turn.sampled]
        assert results == ["14"] * (len(segment.turns) - 2)
        between = agent.chat.decode(segment.token_ids[turns[0].end : turns[1].start].tolist(), end_of_turn=True)
        assert between.startswith("\n<|im_start|>user\n<tool_response>\n14\n</tool_response>")
        assert between.endswith("<|im_end|>\n<|im_start|>assistant\n")
