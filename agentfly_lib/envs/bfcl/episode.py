"""An episode: the user's requests one after another, and what the policy's work is worth at any moment.

After every action the policy's systems are compared with the ground truth's, by the package's own check. What the
conversation would be worth if it ended now is the episode's return so far, so that a policy that ends its last request
with a plain reply instead of `done` is scored just the same; and an action that spoils what was right costs what it had
brought. As on the leaderboard, nothing can be earned after a request that was not done: there the episode ends.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentfly_lib.envs.bfcl.tasks import DONE, BfclSettings, functions_of
from agentfly_lib.envs.bfcl.world import Call, World, read_call
from agentfly_lib.envs.environment import StepResult
from agentfly_lib.errors import DataError

__all__ = ["Bfcl"]

_FORMAT = 'an action is an object of JSON such as {"name": "ls", "arguments": {"a": true}}'


@dataclass(slots=True)
class _Conversation:
    requests: list[str]
    truths: list[list[Call]]
    functions: Mapping[str, str]
    """That the policy may call, with their systems."""
    policy: World
    truth: World
    number: int = 0
    """Of the request."""
    calls: int = 0
    """Of the policy, for this request."""
    expected: Sequence[str] = ()
    """What the ground truth's calls for this request returned."""
    earned: float = 0.0
    over: bool = False


class Bfcl:
    """Plays tasks. See `Environment`; actions are what `tasks.write_call` writes."""

    def __init__(self, **settings: Any) -> None:
        self._settings = BfclSettings(**settings)
        self._conversation: _Conversation | None = None

    def reset(self, problem: Mapping[str, Any]) -> str:
        """Returns the user's first request. Raises `DataError` if a column is missing or cannot be read."""
        try:
            names, configs = problem["involved_classes"], problem["initial_config"]
            requests = list(problem["requests"])
            truths = [[read_call(source) for source in turn] for turn in problem["ground_truth"]]
            functions = functions_of(names)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"bfcl: problem {problem.get('id')!r} is not a multi-turn task: {type(error).__name__}: {error}"
            ) from error
        if not requests or len(truths) != len(requests):
            raise DataError(
                f"bfcl: problem {problem.get('id')!r} has {len(requests)} requests and {len(truths)} ground truths"
            )
        long_context = self._settings.category == "long_context"
        policy, truth = (World.create(names, configs, long_context=long_context) for _ in range(2))
        self._conversation = _Conversation(requests, truths, functions, policy, truth)
        self._begin_request(self._conversation)
        return requests[0]

    def step(self, action: str) -> StepResult:
        """Calls a function, or goes on to the user's next request."""
        conversation = self._conversation
        if conversation is None or conversation.over:
            raise RuntimeError("bfcl: there is no conversation; call reset")
        try:
            call = _parse(action)
            if call.name != DONE and call.name not in conversation.functions:
                raise _NoAction(f"There is no function {call.name[:64]!r} in this task.")
        except _NoAction as fault:
            return StepResult(observation=f"Error: {fault}", error=str(fault), info=self._info(conversation))
        if call.name == DONE:
            observation = self._end_request(conversation)
        else:
            observation = conversation.policy.call(conversation.functions[call.name], call)
            conversation.calls += 1
        worth = self._worth(conversation)
        reward, conversation.earned = worth - conversation.earned, worth
        return StepResult(observation=observation, reward=reward, done=conversation.over, info=self._info(conversation))

    def close(self) -> None:
        """Forgets the conversation."""
        self._conversation = None

    def _begin_request(self, conversation: _Conversation) -> None:
        truth, conversation.calls = conversation.truth, 0
        conversation.expected = [
            truth.call(truth.owner(call.name), call) for call in conversation.truths[conversation.number]
        ]

    def _end_request(self, conversation: _Conversation) -> str:
        """The user's next message."""
        if not self._is_done(conversation) or conversation.number + 1 == len(conversation.requests):
            conversation.over = True
            return "The conversation has ended."
        conversation.number += 1
        self._begin_request(conversation)
        return f"The user says: {conversation.requests[conversation.number]}"

    def _is_done(self, conversation: _Conversation) -> bool:
        """Whether the request is done as things are: the package's check, in the package's order."""
        from bfcl_eval.eval_checker.multi_turn_eval.multi_turn_checker import response_checker, state_checker

        if not conversation.expected:
            return True
        if not conversation.calls:
            return False
        try:
            state = state_checker(conversation.policy.systems, conversation.truth.systems)
        except RecursionError:  # folders that a policy has moved into themselves
            return False
        if not state["valid"]:
            return False
        return response_checker(conversation.policy.results, list(conversation.expected), conversation.number)["valid"]

    def _worth(self, conversation: _Conversation) -> float:
        """Of the conversation if it ended here."""
        passed, total = conversation.number + self._is_done(conversation), len(conversation.requests)
        return float(passed == total) if self._settings.reward == "task" else passed / total

    def _info(self, conversation: _Conversation) -> dict[str, Any]:
        return {"request": conversation.number + 1, "requests": len(conversation.requests)}


class _NoAction(Exception):
    """Why an action is none, for the model."""


def _parse(action: str) -> Call:
    try:
        call = json.loads(action)
    except (ValueError, RecursionError) as error:
        raise _NoAction(f"This is no JSON; {_FORMAT}.") from error
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        raise _NoAction(f"This is no call; {_FORMAT}.")
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        raise _NoAction(f"The arguments of {call['name'][:64]!r} are no object; {_FORMAT}.")
    return Call(name=call["name"], arguments=arguments)
