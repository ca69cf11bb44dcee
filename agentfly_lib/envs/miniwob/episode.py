"""An episode: one page from one seed, until the page says that it is over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from agentfly_lib.envs.environment import StepResult
from agentfly_lib.envs.miniwob.actions import Finished, NoAction, read_action
from agentfly_lib.envs.miniwob.devtools import BrowserError
from agentfly_lib.envs.miniwob.page import Page, PageState
from agentfly_lib.envs.miniwob.tasks import MiniWobSettings, open_page
from agentfly_lib.errors import DataError, EnvironmentFailure

__all__ = ["MiniWob"]

Value = TypeVar("Value")


class MiniWob:
    """Plays pages. See `Environment`; actions are what `actions.click` and its like write.

    The reward is the page's own, from -1 to 1, when it ends the episode; an episode that it has not ended is worth 0.
    A browser that fails is replaced at the next `reset`.
    """

    def __init__(self, **settings: Any) -> None:
        self._settings = MiniWobSettings(**settings)
        self._page: Page | None = open_page(self._settings)
        self._playing = False

    def reset(self, problem: Mapping[str, Any]) -> str:
        """Begins the page. Raises `DataError` for a problem without `page` and `seed`."""
        name, seed = problem.get("page"), problem.get("seed")
        if not isinstance(name, str) or not name.replace("-", "").isalnum() or type(seed) is not int:
            raise DataError(
                f"miniwob: problem {problem.get('id')!r} needs a page's name in `page` and a number in `seed`"
            )
        self._playing = False
        if self._page is None:
            self._page = open_page(self._settings)
        instruction = self._ask(lambda page: page.begin(name, seed))
        self._playing = True
        return "\n".join([f"The page asks: {instruction}", *self._text()])

    def step(self, action: str) -> StepResult:
        """Does one action of mouse or keyboard."""
        page = self._page
        if page is None or not self._playing:
            raise RuntimeError("miniwob: there is no page; call reset")
        try:
            wanted = read_action(action, page.screen)
            self._ask(lambda page: page.perform(wanted))
        except NoAction as fault:
            return StepResult(observation=f"Error: {fault}", error=str(fault))
        state = self._ask(Page.state)
        if isinstance(wanted, Finished) and not state.done:
            state = PageState(done=True, reward=0.0, reason="finished before the page was")
        self._playing = not state.done
        if state.done:
            info = {"reason": state.reason}
            return StepResult(observation="The page has ended.", reward=state.reward, done=True, info=info)
        images = () if self._settings.observation == "text" else (self._ask(Page.picture),)
        return StepResult(observation="\n".join(["The page now:", *self._text()]), images=images)

    def close(self) -> None:
        """Ends the browser. A second call does nothing."""
        self._playing = False
        if self._page is not None:
            self._page.close()
            self._page = None

    def _text(self) -> list[str]:
        return [] if self._settings.observation == "screen" else [self._ask(Page.outline)]

    def _ask(self, question: Callable[[Page], Value]) -> Value:
        assert self._page is not None
        try:
            return question(self._page)
        except BrowserError as error:
            self.close()
            raise EnvironmentFailure(f"miniwob: {error}", where="environment:miniwob") from error
