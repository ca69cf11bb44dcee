"""`GUIAgent` and `ImageAgent`: the action space, the screen's edges, pictures in the prompt."""

from __future__ import annotations

import io
import threading
from typing import ClassVar

import pytest
from PIL import Image

from agentfly_lib.agents import GuiAction, GUIAgent, HFAgent, ImageAgent, ReActAgent, gui_tools
from agentfly_lib.chat.gui_action import Screen
from agentfly_lib.chat.images import digest_of
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.store.shards import read_part, write_part
from agentfly_lib.tools import ToolCall, ToolResult, tool
from agentfly_lib.types import Problem, StopReason, TrajectoryGroup

QUESTION = {"role": "user", "content": "Log in."}


def made(model_path, script, perform=lambda action, context: f"did {action.name}", **options):
    chat = GUIAgent(model_path).chat
    engine = ScriptedGenerate(script, format=chat)
    options.setdefault("screen", Screen(width=100, height=50))
    return GUIAgent(model_path, tools=gui_tools(perform), backend=engine, max_turns=20, **options)


async def contents(agent) -> list[str]:
    (trajectory,) = (await agent.run([QUESTION])).trajectories
    assert trajectory.failure is None
    return [message["content"] for message in trajectory.messages if message["role"] == "user"]


async def test_every_action_reaches_who_performs_it(model_path):
    done: list[GuiAction] = []
    script = [
        "Action: click(x=1, y=2)",
        "Action: click(x=1, y=2, button='right', times=2)",
        "Action: type(text='me\\n')",
        "Action: scroll(x=99, y=49, direction='down')",
        "Action: drag(x=0, y=0, to_x=9, to_y=9)",
        "Action: key(keys='ctrl+c')",
        "Action: wait(seconds=2)",
        "Action: finished(answer='in')",
    ]
    agent = made(model_path, script, lambda action, context: done.append(action))
    (trajectory,) = (await agent.run([QUESTION])).trajectories
    assert [(action.name, action.arguments) for action in done] == [
        ("click", {"x": 1, "y": 2, "button": "left", "times": 1}),
        ("click", {"x": 1, "y": 2, "button": "right", "times": 2}),
        ("type", {"text": "me\n"}),
        ("scroll", {"x": 99, "y": 49, "direction": "down", "amount": 3}),
        ("drag", {"x": 0, "y": 0, "to_x": 9, "to_y": 9}),
        ("key", {"keys": "ctrl+c"}),
        ("wait", {"seconds": 2.0}),
    ]
    assert trajectory.stop is StopReason.FINISHED
    assert trajectory.messages[-1]["content"] == "in"


async def test_a_performer_that_blocks_takes_no_place_in_a_pool(model_path):
    threads: list[threading.Thread] = []
    script = ["Action: key(keys='a')", "Action: finished()"]
    agent = made(model_path, script, lambda action, context: threads.append(threading.current_thread()))
    await agent.run([QUESTION])
    assert [(thread.name, thread.daemon) for thread in threads] == [("agentfly-call", True)]


async def test_an_asynchronous_performer(model_path):
    async def perform(action, context):
        return f"{action.name} in {context.trajectory_id}"

    agent = made(model_path, ["Action: key(keys='a')", "Action: finished()"], perform)
    assert await contents(agent) == ["key in 0/0", "done"]


async def test_nothing_is_done_outside_the_screen_or_with_what_is_no_action(model_path):
    done = []
    script = [
        "Action: click(x=100, y=0)",
        "Action: click(x=1)",
        "Action: click(x=1, y=2, button='left hand')",
        "Action: fly(x=1)",
        "I click now",
        "Action: finished()",
    ]
    answers = await contents(made(model_path, script, lambda action, context: done.append(action)))
    assert done == []
    for answer, expected in zip(
        answers,
        ["x=100 is not on the screen", "missing argument y", "button", "no tool 'fly'", "has no action", "done"],
        strict=True,
    ):
        assert expected in answer


def test_the_prompt_names_screen_and_actions(model_path):
    text = made(model_path, []).instructions()
    assert "100 x 50 pixels" in text
    assert "drag(x: integer, y: integer, to_x: integer, to_y: integer)  Press at one point" in text
    assert "click(x: integer, y: integer, button: 'left' | 'right' | 'middle' = 'left', times: integer = 1)" in text


def test_it_can_always_finish(model_path):
    assert list(GUIAgent(model_path).tools) == ["finished"]


def png() -> bytes:
    file = io.BytesIO()
    Image.linear_gradient("L").resize((16, 16)).convert("RGB").save(file, "PNG")
    return file.getvalue()


class TestImagesOfResults:
    RESULT: ClassVar = {"observation": "a form", "image": png()}
    PART: ClassVar = {"type": "image", "digest": digest_of(png())}

    async def test_a_gui_agent_is_shown_the_screen(self, model_path):
        agent = made(model_path, ["Action: key(keys='a')", "Action: finished(answer='x')"], lambda *_: self.RESULT)
        (trajectory,) = (await agent.run([QUESTION])).trajectories
        assert trajectory.failure is None
        assert trajectory.messages[1]["content"] == [self.PART, {"type": "text", "text": "a form"}]
        assert trajectory.final_response == "x"
        assert trajectory.pictures == {digest_of(png()): png()}

    async def test_one_message_holds_the_images_of_all_results(self, model_path):
        results = [ToolResult(observation="1", images=("a",)), ToolResult(observation="2", images=("b", "c"))]
        (message,) = GUIAgent(model_path).observe([], results)
        assert [part.get("image") or part["text"] for part in message["content"]] == ["a", "b", "c", "1\n2"]

    async def test_one_that_is_broken_is_told_and_counted_and_ends_nothing(self, model_path):
        broken = {"observation": "a form", "image": png()[: len(png()) // 2]}
        agent = made(model_path, ["Action: key(keys='a')", "Action: finished(answer='x')"], lambda *_: broken)
        (trajectory,) = (await agent.run([QUESTION])).trajectories
        assert trajectory.failure is None
        told, text = trajectory.messages[1]["content"]
        assert told["text"].startswith("[An image was left out: the image is damaged")
        assert (text["text"], trajectory.metrics["image_errors"], trajectory.pictures) == ("a form", 1.0, {})

    async def test_an_image_agent_gets_them_with_the_result_of_the_call(self, model_path, tmp_path):
        look = tool(name="look")(lambda: self.RESULT)
        script = ['<tool_call>{"name": "look", "arguments": {}}</tool_call>', "A form."]
        chat = ImageAgent(model_path).chat
        agent = ImageAgent(model_path, tools=[look], backend=ScriptedGenerate(script, format=chat))
        (trajectory,) = (await agent.run([QUESTION])).trajectories
        assert trajectory.failure is None
        assert trajectory.messages[1] == {
            "role": "tool",
            "tool_call_id": "call-0",
            "name": "look",
            "content": [self.PART, {"type": "text", "text": "a form"}],
        }
        group = TrajectoryGroup(id="0", problem=Problem(id="p", messages=(QUESTION,)), trajectories=(trajectory,))
        write_part(tmp_path / "p.arrow", [group], step=0)
        assert read_part(tmp_path / "p.arrow") == [group]

    @pytest.mark.parametrize("kind", [HFAgent, ReActAgent])
    def test_an_agent_that_does_not_see_is_told_that_they_were_left_out(self, model_path, kind):
        calls = [ToolCall(id="call-0", name="look", arguments={})]
        one, two = ToolResult(observation="a form", images=("a",)), ToolResult(observation="b", images=("a", "b"))
        agent = kind(model_path, tools=[])
        assert agent.observe(calls, [one])[0]["content"].endswith("a form\n[1 image was left out]")
        assert agent.observe(calls, [two])[0]["content"].endswith("b\n[2 images were left out]")


class TestImageAgent:
    def messages(self, model_path, content="What is this?", **columns):
        problem = Problem(id="p", messages=({"role": "user", "content": content},), columns=columns)
        return ImageAgent(model_path, system_prompt="Look.").build_messages(problem)

    def test_pictures_come_before_the_text_of_the_first_user_message(self, model_path):
        system, user = self.messages(model_path, images=["a.png", "b.png"])
        assert system == {"role": "system", "content": "Look."}
        assert user["content"] == [
            {"type": "image", "image": "a.png"},
            {"type": "image", "image": "b.png"},
            {"type": "text", "text": "What is this?"},
        ]

    def test_one_picture(self, model_path):
        assert self.messages(model_path, image="a.png")[1]["content"][0] == {"type": "image", "image": "a.png"}

    def test_content_that_has_parts_already_stays(self, model_path):
        parts = [{"type": "text", "text": "?"}]
        assert self.messages(model_path, content=parts, image="a.png")[1]["content"] == parts

    def test_without_pictures_nothing_changes(self, model_path):
        assert self.messages(model_path)[1] == {"role": "user", "content": "What is this?"}
