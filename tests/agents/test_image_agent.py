"""`ImageAgent` with a model that sees: what it is shown stands in the tokens, goes to the engine and into the shard."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from PIL import Image

from agentfly_lib.agents import ImageAgent
from agentfly_lib.chat import ChatFormat
from agentfly_lib.chat.image_reader import ImageReader
from agentfly_lib.errors import DataError
from agentfly_lib.inference import ScriptedGenerate
from agentfly_lib.store.shards import read_part, write_part
from agentfly_lib.tools.corpus import CorpusProvider
from agentfly_lib.tools.web_search import make_web_search
from agentfly_lib.types import FailureKind, Problem, StopReason, TrajectoryGroup
from tests.chat.vision_models import model_directory, png


@pytest.fixture(scope="module")
def seeing(tmp_path_factory):
    return model_directory("qwen2_vl", tmp_path_factory.mktemp("seeing"))


def call(name: str, **arguments) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def problem(**columns) -> Problem:
    message = {"role": "user", "content": "What is in the picture?"}
    return Problem(id="p", messages=(message,), columns=columns)


async def played(seeing, script, tools, given, *, context_length: int = 4096):
    requests = []
    replies = iter(script)

    def reply(request):
        requests.append(request)
        return next(replies)

    engine = ScriptedGenerate(reply, format=ChatFormat.from_pretrained(seeing))
    options = {"backend": engine, "backend_config": {"context_length": context_length}, "max_turns": 4}
    agent = ImageAgent(seeing, tools=tools, reward_fn="token_f1", **options)
    result = await agent.run(given, generation_config={"max_tokens": 400})
    return result.trajectories[0], requests, result.rewards[0]


async def test_a_picture_in_the_question_and_one_in_a_result(seeing, tmp_path, assert_token_exact):
    image = Image.linear_gradient("L").resize((40, 24)).convert("RGB")
    file = io.BytesIO()
    image.save(file, "PNG")
    given = problem(image=f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}", answer="a gradient")
    script = [call("crop_image", left=0, top=0, right=16, bottom=16), "The answer is a gradient."]
    trajectory, requests, reward = await played(seeing, script, ["crop_image"], given)
    assert (trajectory.failure, reward) == (None, 1.0)
    assert_token_exact(trajectory, requests)

    (segment,) = trajectory.segments
    first, second = segment.images
    assert trajectory.pictures[first.digest] == file.getvalue()
    assert [len(request.images) for request in requests] == [1, 2]
    assert requests[1].images == (trajectory.pictures[first.digest], trajectory.pictures[second.digest])
    reader = ImageReader.of(seeing)
    placed = reader.placed(requests[1].token_ids, requests[1].images)
    assert [(place, inputs.grid) for place, inputs in placed] == [
        (first.start, first.grid),
        (second.start, second.grid),
    ]

    group = TrajectoryGroup(id=trajectory.group_id, problem=given, trajectories=(trajectory,))
    write_part(tmp_path / "p.arrow", [group], step=0)
    (read,) = read_part(tmp_path / "p.arrow")[0].trajectories
    for image in read.segments[0].images:
        before = reader.read(trajectory.pictures[image.digest]).pixel_values
        after = ImageReader.of(seeing).read(read.pictures[image.digest]).pixel_values
        assert before.numpy().tobytes() == after.numpy().tobytes()


async def test_a_question_answered_by_what_a_search_shows(seeing, tmp_path):
    (tmp_path / "red.png").write_bytes(png(16, 16))
    (tmp_path / "captions.jsonl").write_text(json.dumps({"text": "the flag of somewhere", "image": "red.png"}))
    search = make_web_search(CorpusProvider(tmp_path / "captions.jsonl"))
    script = [call("web_search", query="flag"), "The answer is red."]
    trajectory, requests, reward = await played(seeing, script, [search], problem(answer="red"))
    assert (trajectory.failure, reward) == (None, 1.0)
    assert [list(request.images) for request in requests] == [[], [png(16, 16)]]
    assert trajectory.messages[1]["content"][0]["type"] == "image"


async def test_pictures_of_a_message_may_be_anything_that_is_one(seeing, tmp_path):
    (tmp_path / "a.png").write_bytes(png(16, 16))
    sources = [tmp_path / "a.png", png(16, 16), Image.new("RGB", (16, 16), "red")]
    parts = [*({"type": "image", "image": each} for each in sources), {"type": "text", "text": "?"}]
    row = {"messages": [{"role": "user", "content": parts}], "answer": "red"}
    trajectory, (request,), _ = await played(seeing, ["red"], [], row)
    assert trajectory.failure is None
    assert [Image.open(io.BytesIO(each)).getpixel((0, 0)) for each in request.images] == [(255, 0, 0)] * 3
    text = {"messages": [{"role": "user", "content": [{"type": "image", "image": str(tmp_path / "a.png")}]}]}
    with pytest.raises(DataError, match=r"input 0: .*no folder is allowed"):
        await played(seeing, [], [], text | {"answer": "red"})


async def test_a_context_that_is_full_ends_before_a_picture_is_cut(seeing):
    given = problem(image=png(64, 64), answer="x")
    script = [call("zoom_image", x=5, y=5), "never asked"]
    whole, _, _ = await played(seeing, script, ["zoom_image"], given)
    limit = len(whole.segments[0].token_ids) - 40  # inside what the result would add
    trajectory, requests, _ = await played(seeing, script, ["zoom_image"], given, context_length=limit)
    assert trajectory.stop is StopReason.CONTEXT_FULL
    assert len(requests) == 1
    (image,) = trajectory.segments[0].images
    assert image.end < len(trajectory.segments[0])
    assert len(trajectory.pictures) == 2, "what the tool showed is kept, though the policy never saw it"


async def test_a_question_whose_picture_is_broken_ends_its_chain_with_a_reason(seeing):
    trajectory, requests, reward = await played(seeing, [], [], problem(image=png(64, 64)[:60], answer="x"))
    assert requests == []
    assert trajectory.failure is not None
    assert trajectory.failure.kind is FailureKind.ENVIRONMENT
    assert "problem p: the image is damaged" in trajectory.failure.message or "no image" in trajectory.failure.message
    assert reward is None


async def test_a_placeholder_that_was_sampled_ends_its_chain(seeing):
    trajectory, _, reward = await played(seeing, ["see <|image_pad|>"], [], problem(answer="x"))
    assert trajectory.failure is not None
    assert "tokens that stand for pictures" in trajectory.failure.message
    assert (trajectory.failure.kind, reward) == (FailureKind.POLICY, None)
    assert not np.isin(trajectory.segments[0].token_ids, ChatFormat.from_pretrained(seeing).banned_token_ids).any()
