"""`GUIAgent` on pages in a real Chromium: what it sees is in the prompt as tokens, in the shard and in the viewer."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from agentfly_lib.agents import GUIAgent
from agentfly_lib.chat import ChatFormat
from agentfly_lib.chat.gui_action import Screen
from agentfly_lib.chat.pictures import shown
from agentfly_lib.data.environment import environment_problems
from agentfly_lib.envs.spec import environment_spec
from agentfly_lib.errors import UserError
from agentfly_lib.inference import GenerationRequest, ScriptedGenerate
from agentfly_lib.store.layout import RunDirectory
from agentfly_lib.tools.environment import environment_tools
from agentfly_lib.types import TrajectoryGroup
from agentfly_lib.viewer.web.pages import Viewer
from agentfly_lib.viewer.web.shelf import Shelf
from tests.chat.vision_models import model_directory
from tests.viewer.built_runs import write_step

PAGES = ("click-test", "click-button", "enter-text", "click-checkboxes", "login-user", "focus-text")
SETTINGS = {"observation": "both", "pages": PAGES}


def at(seen: str, pattern: str) -> str:
    """A click on the first thing whose line the pattern is found in."""
    line = next(line for line in seen.splitlines() if re.search(pattern, line) and "at x=" in line)
    x, y = re.findall(r"at x=(\d+), y=(\d+)", line)[0]
    return f"click(x={x}, y={y})"


def script(page: str, seen: str) -> Iterator[str]:
    """The actions that the page wants, from how it looks at first."""
    asks = re.findall(r"The page asks: (.*)", seen)[0]
    quoted = re.findall(r'"([^"]*)"', asks)
    match page:
        case "click-button":
            yield at(seen, f'button "{re.escape(quoted[0])}"')
        case "enter-text":
            yield from (at(seen, "#tt"), f'type(text="{quoted[0]}")', at(seen, "#subbtn"))
        case "login-user":
            yield from (at(seen, "#username"), f'type(text="{quoted[0]}")', 'key(keys="tab")')
            yield from (f'type(text="{quoted[1]}")', at(seen, "#subbtn"))
        case "focus-text":
            yield at(seen, "input_text")
        case "click-checkboxes":
            lines = seen.splitlines()
            wanted = asks.removeprefix("Select ").removesuffix(" and click Submit.").split(", ")
            for words in wanted if wanted != ["nothing"] else ():
                yield at(lines[next(i for i, line in enumerate(lines) if f'"{words}"' in line) - 1], "checkbox")
            yield at(seen, "#subbtn")
        case _:
            yield at(seen, "#subbtn")


@pytest.fixture(scope="module")
def model_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model_directory("qwen2_5_vl", tmp_path_factory.mktemp("seeing"))


async def test_a_scripted_policy_earns_what_the_pages_give_and_its_screens_are_kept_and_shown(model_path, tmp_path):
    spec = environment_spec("miniwob", SETTINGS, cap=1)
    try:
        spec.check()
    except UserError as error:
        pytest.skip(str(error))
    problems = [each.problem for each in await asyncio.to_thread(environment_problems, spec, "train", len(PAGES))]
    scripts = {problem.id: script(problem.columns["page"], problem.messages[-1]["content"]) for problem in problems}
    order = [problem.id for problem in problems]

    def reply(request: GenerationRequest) -> str:
        requests.append(request)
        return f"Thought: on.\nAction: {next(scripts[order[int(request.request_id.split('/')[0])]])}"

    requests: list[GenerationRequest] = []
    chat = ChatFormat.from_pretrained(model_path)
    agent = GUIAgent(
        model_path,
        environment_tools(spec),
        screen=Screen(width=320, height=420),
        reward_fn="environment",
        backend=ScriptedGenerate(reply, format=chat),
    )
    async with agent:
        result = await agent.run(problems, max_turns=9, generation_config={"max_tokens": 200})
    assert not [each.failure for each in result.trajectories if each.failure]
    assert [problem.columns["page"] for problem in problems] == list(PAGES)
    assert result.rewards == [1.0] * len(PAGES)

    groups = [
        TrajectoryGroup(id=each.group_id, problem=problem, trajectories=(each,))
        for problem, each in zip(problems, result.trajectories, strict=True)
    ]
    run = RunDirectory(tmp_path / "run")
    write_step(run, 0, groups)
    viewer = Viewer(Shelf(run.path, load_chat=lambda: chat))
    for group in (viewer.main.catalog.group("train", 0, each.id) for each in groups):
        (trajectory,) = group.trajectories
        page = viewer.group(0, group.id, {})
        for digest in trajectory.pictures:
            assert f'<img src="/pictures/train/0/{group.id}/{digest}"' in page
            assert viewer.picture("train", 0, group.id, digest) == (trajectory.pictures[digest], "image/png")
        (segment,) = trajectory.segments
        turns = trajectory.num_turns
        assert len(segment.images) == turns, "a screen before each action"
        assert set(shown(trajectory.messages)) <= set(trajectory.pictures)
        for image in segment.images:
            with Image.open(io.BytesIO(trajectory.pictures[image.digest])) as screen:
                assert screen.size == (320, 420)
            assert set(segment.token_ids[image.start : image.end].tolist()) == {chat.vision.image_token_id}
            assert not segment.loss_mask[image.start : image.end].any()
    asked = {request.request_id: request for request in requests}
    last = max((each for each in asked if each.startswith("4/")), key=lambda each: int(each.rsplit("/", 1)[1]))
    assert len(asked[last].images) == 5, "login-user: every screen so far goes to the engine"
    assert asked[last].images[0] == result.trajectories[4].pictures[result.trajectories[4].segments[0].images[0].digest]
