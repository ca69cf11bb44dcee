"""Making the small model that sees: whole, reproducible, and taught on what a rollout would lay out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentfly_lib.chat.format import ChatFormat
from agentfly_lib.chat.image_reader import ImageReader, sees, vision_token_ids
from agentfly_lib.chat.pictures import PictureBook
from agentfly_lib.configs.data import ColoursDataConfig
from agentfly_lib.configs.model import TinyVisionModelConfig
from agentfly_lib.data.colours import train_and_held_out
from agentfly_lib.models.fingerprint import fingerprint_directory
from agentfly_lib.models.resolve import check_directory, resolve_model
from agentfly_lib.models.tiny_vision import encode_demonstrations, ensure_tiny_vision
from agentfly_lib.models.vision_demonstrations import HELD_OUT_DATA_SEEDS, Kind, demonstrations
from agentfly_lib.planning.shape import ModelShape
from agentfly_lib.tools.look import look

pytestmark = pytest.mark.stack

QUICK = TinyVisionModelConfig(warm_steps=2)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def directory(cache: Path) -> Path:
    return ensure_tiny_vision(QUICK, cache).path


def test_it_is_a_usable_model_directory_with_eyes(directory: Path, cache: Path) -> None:
    from transformers import AutoModelForImageTextToText

    check_directory(directory)
    assert resolve_model(QUICK, cache).path == directory
    assert sees(directory)
    vocabulary = json.loads((directory / "tokenizer.json").read_text())["model"]["vocab"]
    names = {token: name for name, token in vocabulary.items()}
    assert {names[token] for token in vision_token_ids(directory)} == {
        "<|image_pad|>",
        "<|video_pad|>",
        "<|vision_start|>",
        "<|vision_end|>",
    }
    model = AutoModelForImageTextToText.from_pretrained(directory)
    count = sum(parameter.numel() for parameter in model.parameters())
    assert 0.3e6 < count < 0.4e6
    assert ModelShape.of(QUICK).parameters == count
    assert model.lm_head.weight is model.model.language_model.embed_tokens.weight


def test_making_it_again_gives_the_same_bytes(directory: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []

    again = ensure_tiny_vision(QUICK, tmp_path, lambda done, total, loss: seen.append((done, total)))

    assert again.fingerprint == fingerprint_directory(directory)
    assert seen == [(1, 2), (2, 2)]


def test_no_held_out_picture_stands_in_a_demonstration() -> None:
    taught = {lesson.picture for lesson in demonstrations(seed=0, count=600)}
    assert len(taught) > 400
    for seed in HELD_OUT_DATA_SEEDS:
        _, held_out = train_and_held_out(ColoursDataConfig(seed=seed, eval_problems=512, train_problems=1))
        assert not taught & {problem.picture for problem in held_out}


def test_a_demonstration_is_encoded_as_a_rollout_would_lay_it_out(directory: Path) -> None:
    """Prompt, sampled call, bridge with the picture's placeholders, sampled answer: the same ids, the same mask."""
    chat = ChatFormat.from_pretrained(directory)
    lessons = demonstrations(seed=5, count=24)
    assert {lesson.kind for lesson in lessons} == set(Kind)
    encoded = encode_demonstrations(lessons, chat.tokenizer, ImageReader.of(directory))  # pyright: ignore[reportArgumentType]
    for lesson, episode in zip(lessons, encoded, strict=True):
        question, *rest = lesson.messages
        prompt = chat.prompt_ids([question], [look.schema])
        ids, mask = list(prompt), [0] * len(prompt)
        if lesson.picture is not None:
            book = PictureBook()
            shown = {
                "role": "tool",
                "content": [{"type": "image", "image": lesson.picture}, {"type": "text", "text": ""}],
            }
            (result,), failed = book.take([shown])
            assert not failed
            said = chat.tokenizer(rest[0]["content"] + "<|im_end|>").input_ids
            bridge = chat.bridge([question], rest[0]["content"], said, [result], [look.schema], pictures=book)
            assert not bridge.rewritten
            assert len(bridge.images) == 1
            ids += [*said, *bridge.ids]
            mask += [1] * len(said) + [0] * len(bridge.ids)
        last = chat.tokenizer(rest[-1]["content"] + "<|im_end|>").input_ids
        assert episode.token_ids.tolist() == [*ids, *last]
        assert episode.loss_mask.tolist() == [*mask, *[1] * len(last)]
