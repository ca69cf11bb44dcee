"""Any environment of ours as one of Gymnasium, for code that knows no other.

env = GymnasiumEnv("chess", problems=20)
observation, info = env.reset(seed=0)
observation, reward, terminated, truncated, info = env.step("move e2e4")
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np

from agentfly_lib.envs.environment import EnvironmentKind
from agentfly_lib.envs.instances import settings_values
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import ConfigError

__all__ = ["GymnasiumEnv", "TextSpace"]


class TextSpace(gymnasium.Space[str]):
    """Texts of any characters, up to a length."""

    def __init__(self, max_length: int, *, seed: int | np.random.Generator | None = None) -> None:
        self.max_length = max_length
        super().__init__(shape=None, dtype=str, seed=seed)  # pyright: ignore[reportArgumentType] - as its own Text does

    def sample(self, mask: Any = None, probability: Any = None) -> str:
        """A few letters."""
        letters = self.np_random.integers(ord("a"), ord("z") + 1, size=int(self.np_random.integers(1, 9)))
        return "".join(map(chr, letters))[: self.max_length]

    def contains(self, x: Any) -> bool:
        """Whether it is such a text."""
        return isinstance(x, str) and len(x) <= self.max_length

    @property
    def is_np_flattenable(self) -> bool:
        return False

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSpace) and other.max_length == self.max_length

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"TextSpace({self.max_length})"


class GymnasiumEnv(gymnasium.Env[str, str]):
    """Actions are the texts that `Environment.step` takes. A reset draws one of the problems, or takes the one in
    `options["problem"]`. It runs in this process."""

    metadata = {"render_modes": []}  # noqa: RUF012  as Gymnasium declares it

    def __init__(
        self,
        kind: EnvironmentKind | str,
        settings: Mapping[str, Any] | None = None,
        *,
        split: Literal["train", "eval"] = "train",
        problems: int = 100,
        max_chars: int = 1_000_000,
    ) -> None:
        """problems: so many of the split's first ones are drawn from. max_chars: of actions and observations.

        Raises `ConfigError`, and what the environment's own check raises.
        """
        spec = environment_spec(kind, settings)
        spec.check()
        self.problems = [dict(row) for row in itertools.islice(spec.kind.problems(spec.settings, split), problems)]
        if not self.problems:
            raise ConfigError(f"environment {spec.kind.name!r} has no problems in the split {split}")
        self.environment = spec.kind.make(**settings_values(spec.settings))
        self.observation_space = TextSpace(max_chars)
        self.action_space = TextSpace(max_chars)
        self._max_chars = max_chars

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """Begins an episode; its problem is `info["problem"]`."""
        super().reset(seed=seed)
        problem = (options or {}).get("problem")
        if problem is None:
            problem = self.problems[int(self.np_random.integers(len(self.problems)))]
        return self.environment.reset(problem)[: self._max_chars], {"problem": dict(problem)}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """One action. Episodes are never truncated from here: wrap it in `gymnasium.wrappers.TimeLimit` for that."""
        result = self.environment.step(action)
        info = {**result.info, "error": result.error, "images": result.images}
        return result.observation[: self._max_chars], float(result.reward), bool(result.done), False, info

    def close(self) -> None:
        """Frees what the environment holds."""
        self.environment.close()
