"""Calls of one turn: concurrent, in order, one reply each, and nothing a tool does reaches beyond its reply."""

from __future__ import annotations

import asyncio
import base64
import io
import itertools
import math
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from agentfly_lib.errors import EnvironmentFailure, InfrastructureError
from agentfly_lib.tools import MalformedCall, Tool, ToolCall, ToolContext, ToolResult, execute_calls, tool
from agentfly_lib.types import Problem
from tests.chat.vision_models import png

PROBLEM = Problem(id="p", messages=({"role": "user", "content": "?"},), columns={"answer": "4"})


def context() -> ToolContext:
    return ToolContext(trajectory_id="g/0", group_id="g", problem=PROBLEM)


def calls(*names: str, **arguments: Any) -> list[ToolCall]:
    return [ToolCall(id=f"call-{i}", name=name, arguments=arguments) for i, name in enumerate(names)]


async def run(todo, *tools: Tool, timeout: float = 5.0, max_chars: int = 1000, of: ToolContext | None = None):
    named = {made.name: made for made in tools}
    return await execute_calls(todo, named, of or context(), default_timeout=timeout, max_chars=max_chars)


async def observe(value: Any, max_chars: int = 1000) -> ToolResult:
    (result,) = await run(calls("f"), tool(name="f")(lambda: value), max_chars=max_chars)
    return result


@tool(finishes=True)
def submit(answer: str = "") -> str:
    """Finish."""
    return f"submitted {answer}"


class Point(BaseModel):
    x: int


@dataclass
class Pair:
    a: int
    b: str


class TestResults:
    @pytest.mark.parametrize(
        ("value", "observation"),
        [
            ("text", "text"),
            ("", ""),
            (None, "(no output)"),
            (3, "3"),
            (2.5, "2.5"),
            (True, "True"),
            ({"a": "ä"}, '{"a": "ä"}'),
            ([1, None], "[1, null]"),
            (b"bytes", "bytes"),
            (b"\xff\xfe", "(2 bytes that are not text)"),
            (Point(x=1), '{"x":1}'),
            (Pair(1, "b"), '{"a": 1, "b": "b"}'),
            ({1: {2}}, '{"1": "{2}"}'),
            ("\ud800x", "?x"),
        ],
    )
    async def test_any_value_is_an_observation(self, value, observation):
        result = await observe(value)
        assert result == ToolResult(observation=observation)

    async def test_agentfly_dict(self):
        result = await observe({"observation": "seen", "reward": 0.5, "done": True, "info": {}})
        assert result == ToolResult(observation="seen", env_reward=0.5, finished=True)

    @pytest.mark.parametrize(
        ("images", "expected"),
        [
            ({"image": "a.png"}, ("a.png",)),
            ({"images": ["a.png", b"\x89PNG"]}, ("a.png", "data:image/png;base64,iVBORw==")),
            ({"images": (b"GIF89a", None)}, ("data:image/gif;base64,R0lGODlh",)),
            ({"images": b"\xff\xd8"}, ("data:image/jpeg;base64,/9g=",)),
            ({"image": None}, ()),
        ],
    )
    async def test_one_image_or_several(self, images, expected):
        assert await observe({"observation": "seen", **images}) == ToolResult(observation="seen", images=expected)

    async def test_a_path_is_read(self, tmp_path):
        (tmp_path / "a.gif").write_bytes(png(8, 8))
        (url,) = (await observe({"observation": "seen", "image": tmp_path / "a.gif"})).images
        assert url == f"data:image/png;base64,{base64.b64encode(png(8, 8)).decode()}"

    @pytest.mark.parametrize(
        ("image", "fault"),
        [
            (Path("nowhere.png"), "an image that cannot be used: the image nowhere.png cannot be read"),
            (b"GIF", "an image of 3 bytes that is not a PNG"),
            (b"\x89PNG" + b"x" * 21 * 2**20, "an image of 22020100 bytes; the limit is 20971520"),
            ("x" * 50_000_000, "an image of 50000000 characters"),
            (["a.png"] * 17, "more than 16 images"),
            (object(), "a object where an image should be"),
        ],
    )
    async def test_what_is_no_image_is_an_error_of_the_tool(self, image, fault):
        result = await observe({"observation": "seen", "images": image})
        assert fault in (result.error or "")
        assert result.images == ()

    async def test_pixels(self):
        image_module = pytest.importorskip("PIL.Image")
        pixels = np.zeros((2, 3, 3), np.uint8)
        for image in (pixels, image_module.fromarray(pixels)):
            (url,) = (await observe(ToolResult(observation="seen", images=(image,)))).images
            data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
            assert image_module.open(io.BytesIO(data)).size == (3, 2)

    @pytest.mark.parametrize(
        ("make", "observation"),
        [
            (lambda: iter(["a", 1, None]), "a\n1\n(no output)"),
            (lambda: (str(i) for i in range(3)), "0\n1\n2"),
            (lambda: map(str, ()), "(no output)"),
        ],
    )
    async def test_what_a_generator_yields_is_the_observation(self, make, observation):
        assert (await observe(make())).observation == observation

    async def test_a_generator_without_end_is_left_after_enough_of_it(self):
        lines = (await observe(itertools.count(), max_chars=10_000)).observation.splitlines()
        assert lines == [*map(str, range(1000)), "[more than 1000 items]"]

    async def test_asynchronous_generators(self):
        async def some():
            yield "a"
            yield {"b": 1}

        async def endless():
            while True:
                yield "x"

        async def a_plain_one():
            return iter("ab")

        made = [tool(name="some")(some), tool(name="endless")(endless), tool(name="plain")(a_plain_one)]
        found = await run(calls("some", "endless", "plain"), *made, max_chars=10_000)
        assert [result.observation[-24:] for result in found] == ['a\n{"b": 1}', "x\n[more than 1000 items]", "a\nb"]

    async def test_a_generator_that_raises_or_blocks_is_the_tools_fault(self):
        release = threading.Event()

        def raises():
            yield 1
            raise OSError("gone")

        def blocks():
            yield 1
            release.wait(60)

        try:
            found = await run(calls("raises", "blocks"), tool(raises), tool(timeout=0.2)(blocks))
        finally:
            release.set()
        assert [result.error for result in found] == [
            "raises failed: OSError: gone",
            "blocks did not answer within 0.2 seconds.",
        ]

    async def test_a_huge_one(self):
        result = await observe("x" * 100_000_000)
        assert result.observation == "x" * 1000 + "\n[99999000 more characters were cut]"

    async def test_a_result_of_its_own(self):
        wanted = ToolResult(observation="seen", env_reward=1.0, images=("a.png",))
        assert await observe(wanted) == wanted

    async def test_a_reward_that_is_no_number_is_an_error(self):
        for value in ({"observation": "x", "reward": float("nan")}, ToolResult(observation="x", env_reward=math.nan)):
            assert "not a finite number" in ((await observe(value)).error or "")

    async def test_a_value_that_cannot_be_shown(self):
        class Broken:
            def __str__(self) -> str:
                raise OSError("no text")

        assert "no text" in (await observe(Broken())).observation

    async def test_a_long_one_is_cut_and_says_how_much_is_missing(self):
        result = await observe("x" * 1234, max_chars=1000)
        assert result.observation == "x" * 1000 + "\n[234 more characters were cut]"

    async def test_a_refusal_is_cut_too(self):
        unknown = ToolCall(id="call-0", name="x" * 5000, arguments={})
        (result,) = await run([unknown], max_chars=100)
        assert result.observation.startswith("Error: There is no tool 'xxx")
        assert len(result.observation) < 150

    async def test_the_tools_own_limit_comes_first(self):
        (result,) = await run(calls("f"), tool(name="f", max_chars=3)(lambda: "abcdef"))
        assert result.observation == "abc\n[3 more characters were cut]"

    async def test_an_exact_fit_is_not_cut(self):
        assert (await observe("x" * 1000, max_chars=1000)).observation == "x" * 1000


class TestFaults:
    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (ValueError("bad city"), "f failed: ValueError: bad city"),
            (SystemExit(3), "SystemExit: 3"),
            (KeyboardInterrupt(), "KeyboardInterrupt"),
            (asyncio.CancelledError(), "cancelled itself"),
            (StopIteration(), "f failed"),
            (GeneratorExit(), "GeneratorExit"),
        ],
    )
    @pytest.mark.parametrize("kind", ["sync", "async"])
    async def test_whatever_a_tool_raises_is_an_observation(self, error, text, kind):
        def fail() -> None:
            raise error

        async def fail_later() -> None:
            await asyncio.sleep(0)
            raise error

        if kind == "sync" and isinstance(error, asyncio.CancelledError):
            text = "CancelledError"
        (result,) = await run(calls("f"), tool(name="f")(fail if kind == "sync" else fail_later))
        assert result.error is not None
        assert text in result.observation or (kind == "async" and isinstance(error, StopIteration))

    async def test_malformed_call(self):
        broken = MalformedCall(id="call-0", raw="{", message="The tool call is not valid JSON.")
        (result,) = await run([broken])
        assert result.observation == "Error: The tool call is not valid JSON."
        assert result.error == "The tool call is not valid JSON."

    async def test_unknown_tool_names_the_nearest(self):
        (result,) = await run(calls("submitt"), submit)
        assert result.error == "There is no tool 'submitt'. Did you mean submit?"

    async def test_unknown_tool_lists_the_tools(self):
        (result,) = await run(calls("zzz"), submit)
        assert result.error == "There is no tool 'zzz'. The tools are: submit."

    async def test_no_tools_at_all(self):
        (result,) = await run(calls("f"))
        assert "There are no tools" in result.observation

    @pytest.mark.parametrize("value", [math.inf, math.nan, "inf", "-Infinity", "NaN", "1e999", "1" * 5000])
    async def test_a_number_that_is_not_finite_is_no_argument(self, value):
        @tool
        def f(x: float, y: list[float] | None = None) -> str:
            return "ran"

        for arguments in ({"x": value}, {"x": 1.0, "y": [value]}):
            (result,) = await run([ToolCall(id="call-0", name="f", arguments=arguments)], f)
            assert "f was not called: argument" in (result.error or "")

    async def test_wrong_arguments_are_not_executed(self):
        ran = []

        @tool
        def f(x: int) -> None:
            ran.append(x)

        (result,) = await run(calls("f", y=1), f)
        assert not ran
        assert result.error == "f was not called: missing argument x, expected integer; unknown argument y, expected x."


class TestRolloutErrors:
    async def test_one_that_a_tool_raises_ends_the_trajectory_after_the_other_calls(self):
        ran = []

        @tool(retries=3)
        async def broken() -> None:
            ran.append("broken")
            raise EnvironmentFailure("the game crashed", where="tool:broken")

        @tool
        async def other() -> None:
            for _ in range(5):
                await asyncio.sleep(0)
            ran.append("other")

        with pytest.raises(EnvironmentFailure, match="the game crashed"):
            await run(calls("broken", "other"), broken, other)
        assert ran == ["broken", "other"]


@dataclass(frozen=True)
class Room:
    """A resource that writes down its openings and closings."""

    name: str
    fails: bool = False

    def check(self) -> None: ...

    @asynccontextmanager
    async def open(self) -> AsyncIterator[list[str]]:
        if self.fails:
            raise OSError("no room")
        log = [f"open {self.name}"]
        yield log
        log.append("closed")


class TestNeeds:
    async def test_it_is_open_before_the_first_call_and_shared_by_tools_of_equal_needs(self):
        @tool(needs=Room("a"))
        async def one(context: ToolContext) -> None:
            context.resources[Room("a")].append("one")

        @tool(needs=Room("a"))
        def two(context: ToolContext) -> None:  # in a thread
            context.resources[Room("a")].append("two")

        where = context()
        await run(calls("one", "two"), one, two, of=where)
        await run(calls("one"), one, two, of=where)
        log = where.resources[Room("a")]
        assert sorted(log) == ["one", "one", "open a", "two"]
        await where.resources.aclose()
        assert log[-1] == "closed"

    async def test_a_call_that_is_not_run_opens_nothing(self):
        @tool(needs=Room("a", fails=True))
        def one(x: int) -> None: ...

        (result,) = await run(calls("one"), one)
        assert "missing argument x" in (result.error or "")

    async def test_one_that_does_not_open_is_no_doing_of_the_policy(self):
        @tool(needs=Room("a", fails=True))
        def one() -> None: ...

        with pytest.raises(InfrastructureError, match="one needs cannot be opened: OSError: no room") as caught:
            await run(calls("one"), one)
        assert caught.value.where == "tool:one"

    async def test_a_tool_can_open_more_and_leave_something_to_undo(self):
        undone = []

        @tool
        async def one(context: ToolContext) -> str:
            room = await context.resources.get(Room("b"))

            async def undo() -> None:
                undone.append("undo")

            context.resources.at_end(undo)
            return room[0]

        where = context()
        (result,) = await run(calls("one"), one, of=where)
        assert (result.observation, undone) == ("open b", [])
        await where.resources.aclose()
        assert undone == ["undo"]


class TestTimeLimits:
    async def test_an_async_tool(self):
        @tool(timeout=0.01)
        async def f() -> None:
            await asyncio.Event().wait()

        (result,) = await run(calls("f"), f)
        assert result.error == "f did not answer within 0.01 seconds."

    async def test_one_that_refuses_to_be_cancelled(self):
        release = asyncio.Event()

        @tool(timeout=0.01)
        async def f() -> None:
            while not release.is_set():
                try:
                    await release.wait()
                except asyncio.CancelledError:
                    continue

        (result,) = await run(calls("f"), f)
        release.set()
        assert "did not answer" in result.observation

    async def test_a_blocking_tool_blocks_nobody(self):
        release = threading.Event()

        @tool(timeout=0.05)
        def stuck() -> None:
            release.wait(30)

        @tool
        async def quick() -> str:
            return "here"

        results = await run(calls("stuck", "quick"), stuck, quick)
        release.set()
        assert [r.observation for r in results] == ["Error: stuck did not answer within 0.05 seconds.", "here"]

    async def test_more_stuck_tools_than_any_pool_has_threads(self):
        release = threading.Event()
        stuck = tool(name="stuck", timeout=0.05)(lambda: release.wait(30))
        await run(calls(*["stuck"] * 64), stuck)
        (result,) = await run(calls("f"), tool(name="f")(lambda: "fine"))
        release.set()
        assert result.observation == "fine"

    async def test_the_agents_limit_where_the_tool_has_none(self):
        (result,) = await run(calls("f"), tool(name="f")(asyncio.Event().wait), timeout=0.01)
        assert "within 0.01 seconds" in result.observation

    async def test_cancelling_the_turn_cancels_its_tools(self):
        began, ended = asyncio.Event(), asyncio.Event()

        @tool
        async def f() -> None:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        task = asyncio.ensure_future(run(calls("f"), f))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(ended.wait(), 5)


class TestSeveralCalls:
    async def test_they_run_at_the_same_time_and_are_answered_in_order(self):
        barrier = asyncio.Barrier(3)

        @tool
        async def f(n: int) -> int:
            async with barrier:  # passes only when all three are here
                return n

        todo = [ToolCall(id=f"call-{n}", name="f", arguments={"n": n}) for n in (3, 1, 2)]
        assert [r.observation for r in await run(todo, f)] == ["3", "1", "2"]

    async def test_blocking_ones_too(self):
        barrier = threading.Barrier(3, timeout=10)
        results = await run(calls("f", "f", "f"), tool(name="f")(lambda: barrier.wait() >= 0))
        assert [r.observation for r in results] == ["True"] * 3

    async def test_blocking_ones_are_not_on_the_loops_thread(self):
        @tool
        def f() -> int:
            return threading.get_ident()

        (result,) = await run(calls("f"), f)
        assert result.observation != str(threading.get_ident())

    async def test_one_that_fails_leaves_the_others(self):
        bad = tool(name="bad")(lambda: 1 / 0)
        good = tool(name="good")(lambda: "ok")
        results = await run(calls("bad", "nope", "good"), bad, good)
        assert [r.error is None for r in results] == [False, False, True]

    async def test_no_calls(self):
        assert await run([]) == []


class TestFinishing:
    async def test_what_it_returns_is_the_answer_however_long_it_is(self):
        (result,) = await run(calls("submit", answer="x" * 500), submit, max_chars=10)
        assert result.answer == "submitted " + "x" * 500
        assert len(result.observation) < 60

    async def test_a_result_says_itself_what_the_answer_is_or_that_there_is_none(self):
        said = {"observation": "seen", "done": True, "answer": 4}
        assert (await observe(said)).answer == "4"
        assert (await observe(ToolResult(observation="seen", finished=True))).answer is None
        assert (await observe("not finished")).answer is None

    async def test_later_calls_are_not_run_and_do_not_undo_it(self):
        ran = []
        log = tool(name="log")(lambda: ran.append("log"))
        results = await run(calls("submit", "log", "nope"), submit, log)
        assert [r.finished for r in results] == [True, False, False]
        assert results[1].error == results[2].error == "This call was not run, because it came after submit."
        assert ran == []

    async def test_it_runs_after_the_calls_before_it(self):
        order = []

        @tool
        async def write() -> None:
            await asyncio.sleep(0)
            order.append("write")

        @tool(finishes=True)
        async def end() -> None:
            order.append("end")

        await run(calls("write", "write", "end"), write, end)
        assert order == ["write", "write", "end"]

    async def test_one_that_could_not_be_called_finishes_nothing(self):
        results = await run(
            [ToolCall(id="call-0", name="submit", arguments={"x": 1}), *calls("f")],
            submit,
            tool(name="f")(lambda: "ran"),
        )
        assert [r.finished for r in results] == [False, False]
        assert results[1].observation == "ran"

    async def test_one_that_raises_finishes_nothing(self):
        (result,) = await run(calls("f"), tool(name="f", finishes=True)(lambda: 1 / 0))
        assert not result.finished

    async def test_a_result_may_say_so_itself(self):
        (result,) = await run(calls("f"), tool(name="f")(lambda: ToolResult(observation="won", finished=True)))
        assert result.finished


class TestRetries:
    async def test_an_error_is_tried_again(self):
        tries = []

        @tool(retries=2)
        def f() -> str:
            tries.append(1)
            if len(tries) < 3:
                raise OSError("busy")
            return "ok"

        (result,) = await run(calls("f"), f)
        assert (result.observation, len(tries)) == ("ok", 3)

    async def test_a_time_out_is_not(self):
        tries = []

        @tool(retries=2, timeout=0.01)
        async def f() -> None:
            tries.append(1)
            await asyncio.Event().wait()

        await run(calls("f"), f)
        assert len(tries) == 1


class TestContext:
    async def test_it_is_given_by_type_whatever_its_name(self):
        @tool
        def f(x: int, ctx: ToolContext) -> str:
            return f"{ctx.trajectory_id} {ctx.problem.columns['answer']} {x}"

        (result,) = await run(calls("f", x=1), f)
        assert result.observation == "g/0 4 1"

    async def test_state_belongs_to_one_trajectory(self):
        @tool
        def count(context: ToolContext) -> int:
            context.state["n"] = context.state.get("n", 0) + 1
            return context.state["n"]

        one, two = context(), context()
        seen = [(await run(calls("count"), count, of=which))[0].observation for which in (one, one, two)]
        assert seen == ["1", "2", "1"]

    async def test_a_method_keeps_its_instance(self):
        class Shop:
            def __init__(self) -> None:
                self.sold: list[str] = []

            @tool
            def buy(self, item: str) -> str:
                self.sold.append(item)
                return f"{len(self.sold)} sold"

        shop = Shop()
        await run(calls("buy", item="tea"), shop.buy)
        assert shop.sold == ["tea"]


def test_a_tool_that_forks_comes_back_once():
    code = """
import asyncio, os
from agentfly_lib.tools import *
from agentfly_lib.types import Problem
children = []
@tool
def fork() -> str:
    child = os.fork()
    if child: children.append(child)
    return "parent" if child else "child"
context = ToolContext(trajectory_id="t", group_id="g", problem=Problem(id="p", messages=()))
call = ToolCall(id="call-0", name="fork", arguments={})
print(asyncio.run(execute_calls([call], {"fork": fork}, context, default_timeout=9, max_chars=99))[0].observation)
print([os.waitpid(child, 0)[1] for child in children], flush=True)
"""
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "parent\n[0]\n"


def test_a_stuck_tool_does_not_keep_the_program_alive():
    code = """
import asyncio, threading
from agentfly_lib.tools import *
from agentfly_lib.types import Problem
@tool(timeout=0.05)
def stuck(): threading.Event().wait()
context = ToolContext(trajectory_id="t", group_id="g", problem=Problem(id="p", messages=()))
call = ToolCall(id="call-0", name="stuck", arguments={})
print(asyncio.run(execute_calls([call], {"stuck": stuck}, context, default_timeout=1, max_chars=99))[0].error)
"""
    import subprocess

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert "did not answer" in done.stdout
