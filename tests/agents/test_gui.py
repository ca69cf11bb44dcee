"""`GUIAgent` and `ImageAgent`: the action space, the screen's edges, pictures in the prompt."""

from __future__ import annotations

from agentfly_lib.agents import GuiAction, GUIAgent, ImageAgent, gui_tools
from agentfly_lib.chat.gui_action import Screen
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.types import Problem, StopReason

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
