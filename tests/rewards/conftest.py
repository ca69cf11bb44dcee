"""Trajectories to score, and a module of rewards that misbehave, importable by worker processes."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from agentfly_lib.types import Failure, FailureKind, Problem, Segment, StopReason, Trajectory, TrajectoryGroup, Turn

REWARDS = """
    import ctypes, os, re, signal, sys, threading
    from agentfly_lib.rewards import group_reward, reward

    @reward
    def right(prediction, answer): return float(prediction == answer)

    @reward(timeout=0.5)
    def hangs_in_c(prediction):
        if prediction == "hang":
            re.match(r"(a+)+$", "a" * 60 + "b")  # exponential, holds the interpreter all the time
        return 1.0

    @reward(timeout=0.5)
    def ignores_signals(prediction):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
            signal.signal(number, signal.SIG_IGN)
        if prediction == "hang":
            threading.Event().wait()
        return 1.0

    @reward
    def crashes(prediction):
        if prediction == "crash":
            ctypes.string_at(0)
        return 1.0

    @reward
    def exits(prediction): sys.exit(7)

    @reward
    def leaves(prediction): os._exit(7)

    @reward
    def prints(prediction):
        print("to stdout")
        os.write(1, b"to descriptor 1")
        return 1.0

    @reward
    def pid(prediction):
        if prediction.startswith("/"):
            with open(prediction, "w") as file:
                file.write(str(os.getpid()))
        return float(os.getpid())

    @group_reward
    def group_pid(final_responses):
        return [float(os.getpid())] * len(final_responses)

    @reward
    def pid_and_hang(prediction):
        pid(prediction)
        re.match(r"(a+)+$", "a" * 60 + "b")

    @reward
    def whole(trajectory, problem, context, messages, env_reward):
        assert trajectory.id == context.trajectory_id and problem.id == context.problem_id
        assert messages[0]["role"] == "user"
        return {"reward": len(trajectory.segments[0]), "env": env_reward or 0}

    @reward
    def raises(prediction): raise ValueError("bad")

    class Unspeakable(Exception):
        def __str__(self): raise ValueError("no text")

    @reward
    def unspeakable(prediction): raise Unspeakable

    @reward
    async def unspeakable_async(prediction): raise Unspeakable

    @reward
    def forks(prediction):
        os.fork()
        return float(prediction)
"""


@pytest.fixture
def odd_rewards(tmp_path, monkeypatch) -> Any:
    """The module above."""
    import importlib

    (tmp_path / "odd_rewards.py").write_text(textwrap.dedent(REWARDS))
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("odd_rewards")
    yield module
    import sys

    del sys.modules["odd_rewards"]


@pytest.fixture
def make_group() -> Callable[..., TrajectoryGroup]:
    """A group whose chains ended with the given replies."""

    def make(*replies: str, stops: tuple[StopReason, ...] = (), env_reward: float | None = None, **columns: Any):
        def trajectory(chain: int, reply: str) -> Trajectory:
            stop = stops[chain] if stops else StopReason.FINISHED
            turn = Turn(message={"role": "assistant", "content": reply}, start=1, end=3, sampled=True)
            segment = Segment(
                token_ids=np.array([1, 2, 3], np.int32),
                loss_mask=np.array([False, True, True]),
                logprobs=np.array([np.nan, -1.0, -1.0], np.float32),
                turns=(turn,),
            )
            failure = Failure(kind=FailureKind.TOOL, message="it broke", where="tool:x")
            return Trajectory(
                id=f"0-0/{chain}",
                problem_id="p",
                group_id="0-0",
                chain=chain,
                segments=(segment,),
                stop=stop,
                env_reward=env_reward,
                failure=failure if stop is StopReason.FAILED else None,
            )

        problem = Problem(id="p", messages=({"role": "user", "content": "?"},), columns={"answer": "4", **columns})
        return TrajectoryGroup(
            id="0-0", problem=problem, trajectories=tuple(trajectory(i, reply) for i, reply in enumerate(replies))
        )

    return make
