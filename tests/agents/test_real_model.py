"""A real small instruct model answers questions by a tool, through `HFAgent`, on the CPU.

Off unless AGENTFLY_REAL_MODEL names a folder with the packages that `prepare_smollm2.py` says. The model was not
trained for tools: three examples in the conversation show it what a call is. Figures are in docs/experiments.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agentfly_lib.agents import HFAgent
from agentfly_lib.types import Message, Trajectory

SITE = os.environ.get("AGENTFLY_REAL_MODEL")

pytestmark = [
    pytest.mark.stack,
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not SITE, reason="AGENTFLY_REAL_MODEL is not set; see tests/agents/prepare_smollm2.py"),
]

SUMS = [(17, 25), (48, 36), (123, 456), (91, 8), (250, 375), (64, 29), (7, 88), (999, 12)]
PRODUCTS = [(12, 7), (23, 45), (9, 14), (31, 6), (18, 18), (105, 4), (77, 3), (52, 11)]
PLAIN = [(f"What is {a} + {b}?", a + b) for a, b in SUMS] + [(f"What is {a} * {b}?", a * b) for a, b in PRODUCTS]
IN_WORDS = [(f"Anna has {a} apples and buys {b} more. How many apples has she now?", a + b) for a, b in SUMS] + [
    (f"There are {a} boxes with {b} books each. How many books are there?", a * b) for a, b in PRODUCTS
]


def example(question: str, expression: str, result: str) -> list[Message]:
    call = json.dumps({"name": "calculator", "arguments": {"expression": expression}})
    return [
        {"role": "user", "content": question},
        {"role": "assistant", "content": f"<tool_call>\n{call}\n</tool_call>"},
        {"role": "tool", "name": "calculator", "tool_call_id": "call-0", "content": result},
        {"role": "assistant", "content": f"The answer is {result}."},
    ]


EXAMPLES = [
    *example("What is 3 + 4?", "3 + 4", "7"),
    *example("What is 60 * 5?", "60 * 5", "300"),
    *example("Tom has 58 coins and finds 21 more. How many coins has he now?", "58 + 21", "79"),
]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("real") / "model"
    script = Path(__file__).with_name("prepare_smollm2.py")
    subprocess.run([sys.executable, str(script), str(SITE), str(path)], check=True, timeout=600)
    return path


def called(trajectory: Trajectory, result: int) -> bool:
    """The calculator was called, and gave the right result."""
    return any(message["role"] == "tool" and message["content"] == str(result) for message in trajectory.messages)


async def asked(model: Path, questions: list[tuple[str, int]], examples: list[Message]) -> tuple[int, int, str]:
    """How many of the questions led to the right call, how many to the right answer behind it, and a line of both."""
    agent = HFAgent(
        model,
        tools=["calculator"],
        parser="hermes",
        system_prompt="You are a helpful assistant that uses a calculator.",
        backend_config={"backend": "transformers", "context_length": 2048},
    )
    wall, cpu = time.perf_counter(), time.process_time()
    result = await agent.run(
        [[*examples, {"role": "user", "content": question}] for question, _ in questions],
        max_turns=3,
        generation_config={"temperature": 0, "max_tokens": 64},
    )
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    await agent.close()
    outcomes = list(zip(result.trajectories, (answer for _, answer in questions), strict=True))
    assert all(trajectory.failure is None for trajectory, _ in outcomes)
    calls = sum(called(trajectory, answer) for trajectory, answer in outcomes)
    right = sum(
        called(trajectory, answer) and str(answer) in str(trajectory.final_response) for trajectory, answer in outcomes
    )
    figure = f"{calls} called, {right} right of {len(questions)}, {wall:.0f} s, {cpu:.0f} CPU-s"
    return calls, right, figure


async def test_it_calls_the_tool_and_answers_with_what_it_gave(model, record_property, capsys):
    calls, right, plain = await asked(model, PLAIN, EXAMPLES)
    _, right_in_words, in_words = await asked(model, IN_WORDS, EXAMPLES)
    calls_without, _, without = await asked(model, PLAIN, [])
    figures = {"plain": plain, "in words": in_words, "without examples": without}
    for name, figure in figures.items():
        record_property(name, figure)
    with capsys.disabled():
        print(f"\nSmolLM2-135M-Instruct: {figures}")
    assert calls >= 14
    assert right >= 14
    assert right_in_words >= 8
    assert calls_without < calls
