"""Pictures among tokens, against the families' own processors."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from threading import Barrier, BrokenBarrierError

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize as reference_resize

from agentfly_lib.chat import ChatFormat, PictureBook
from agentfly_lib.chat.image_reader import ImageReader
from agentfly_lib.chat.images import load_picture
from agentfly_lib.chat.pictures import with_files
from agentfly_lib.chat.vision import expand, smart_resize
from agentfly_lib.errors import ImageError, ModelError
from tests.chat.vision_models import FAMILIES, model_directory, png, processor_of

KINDS = tuple(FAMILIES)
GRIDS = tuple(kind for kind in KINDS if kind.startswith("qwen"))


@cache
def directory(kind: str) -> Path:
    return model_directory(kind, Path(mkdtemp(prefix="vision-")))


@cache
def chat_of(kind: str) -> ChatFormat:
    return ChatFormat.from_pretrained(directory(kind))


@cache
def reference(kind: str):
    return processor_of(kind)


def by_reference(kind: str, messages) -> list[int]:
    """Ids that the family's own processor gives, from the template's text and decoded pictures."""
    text = reference(kind).apply_chat_template(_plain(messages), tokenize=False, add_generation_prompt=True)
    pictures = [
        Image.open(io.BytesIO(load_picture(part["image"]).data))
        for message in messages
        if isinstance(message["content"], list)
        for part in message["content"]
        if part["type"] == "image"
    ]
    # Idefics-like tokenizers may add a beginning of their own, which the template's text has already.
    made = reference(kind)(text=[text], images=pictures or None, add_special_tokens=False)
    return list(made["input_ids"][0])


def _plain(messages):
    return [
        message
        if isinstance(message["content"], str)
        else {
            **message,
            "content": [{"type": "image"} if part["type"] == "image" else part for part in message["content"]],
        }
        for message in messages
    ]


sizes = st.tuples(st.integers(1, 150), st.integers(1, 150))
parts = st.one_of(
    sizes.map(lambda size: {"type": "image", "image": png(*size)}),
    st.text("ab 1?\n.", min_size=1, max_size=8).map(lambda text: {"type": "text", "text": text}),
)
contents = st.one_of(st.text("ab 1?\n.", max_size=8), st.lists(parts, min_size=1, max_size=4))
users = contents.map(lambda content: {"role": "user", "content": content})
results = st.lists(contents.map(lambda content: {"role": "tool", "content": content}), min_size=1, max_size=2)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=30, deadline=None)
@given(first=users, replies=st.lists(st.tuples(st.text("ab 1", min_size=1, max_size=6), results), max_size=2))
def test_prompt_and_bridges_are_what_the_familys_processor_makes_of_the_whole(kind, first, replies):
    chat, book = chat_of(kind), PictureBook()
    raw = [first]
    history, _ = book.take([first])
    prompt = chat.prompt(history, pictures=book)
    assert prompt.ids == by_reference(kind, raw)
    ids, spans = list(prompt.ids), list(prompt.images)
    for reply, answers in replies:
        said = reply.strip() or "a"
        sampled = [*chat.encode(said), chat.stop_token_ids[0]]
        additions, _ = book.take(answers)
        bridge = chat.bridge(history, said, sampled, additions, pictures=book)
        assert not bridge.rewritten
        ids += sampled
        spans += [(len(ids) + image.start, len(ids) + image.end) for image in bridge.images]
        ids += bridge.ids
        history = [*history, {"role": "assistant", "content": said}, *additions]
        raw = [*raw, {"role": "assistant", "content": said}, *answers]
        assert ids == by_reference(kind, raw)
    assert len(spans) == len([1 for m in raw if isinstance(m["content"], list) for p in m["content"] if "image" in p])


def test_a_template_that_rewrites_history_gives_all_pictures_anew(tmp_path):
    path = model_directory("qwen2_vl", tmp_path)
    template = path / "chat_template.jinja"
    said, forgotten = (
        "m.role + '\\n' + content(m.content)",
        "m.role + '\\n' + ('...' if m.role == 'assistant' else content(m.content))",
    )
    assert said in template.read_text()
    template.write_text(template.read_text().replace(said, forgotten))
    chat, book = ChatFormat.from_pretrained(path), PictureBook()
    history, _ = book.take([{"role": "user", "content": [{"type": "image", "image": png(16, 16)}]}])
    more, _ = book.take([{"role": "user", "content": [{"type": "image", "image": png(32, 16)}]}])
    bridge = chat.bridge(history, "red", [*chat.encode("red"), chat.stop_token_ids[0]], more, pictures=book)
    assert bridge.rewritten
    places = [place for place, token in enumerate(bridge.ids) if token == chat.vision.image_token_id]
    assert places == [place for image in bridge.images for place in range(image.start, image.end)]
    assert [image.digest for image in bridge.images] == list(book)


@pytest.mark.parametrize("kind", GRIDS)
@pytest.mark.parametrize("size", [(1, 1), (17, 90), (150, 150), (199, 1), (150, 3), (3, 150), (8, 8)])
def test_a_picture_has_as_many_placeholders_as_features_and_the_processors_grid(kind, size):
    picture = load_picture(png(*size))
    layout = chat_of(kind).vision.of(picture)
    reader = ImageReader.of(directory(kind))
    inputs = reader.read(picture.data)
    assert layout.grid == inputs.grid
    assert len(layout.ids) == reader.tokens_of(inputs.grid) == len(inputs.pixel_values) // 4


def test_a_picture_that_many_threads_ask_for_is_decoded_once():
    both, decoded = Barrier(2, timeout=0.3), list[int]()

    def processor(images, **_):
        decoded.append(len(images))
        with suppress(BrokenBarrierError):
            both.wait()  # for another thread that decodes, of which there is none
        return {"pixel_values": np.zeros((4, 2)), "image_grid_thw": np.array([[1, 2, 2]])}

    reader = ImageReader(image_token_id=7, merge=2, processor=processor)
    with ThreadPoolExecutor(2) as threads:
        seen = list(threads.map(reader.read, [png(8, 8)] * 2))
    assert decoded == [1]
    assert seen[0] is seen[1]


@pytest.mark.parametrize("kind", ["idefics3", "smolvlm"])
@pytest.mark.parametrize("size", [(1, 1), (17, 90), (150, 150), (32, 32), (33, 31), (90, 3)])
def test_a_picture_in_tiles_has_the_features_of_each(kind, size):
    picture, processor = load_picture(png(*size)), FAMILIES[kind]
    layout = chat_of(kind).vision.of(picture)
    made = processor(images=[[Image.open(io.BytesIO(picture.data))]], return_tensors="np")
    assert layout.grid[0] == made["pixel_values"].shape[1]
    assert list(layout.ids).count(chat_of(kind).vision.image_token_id) == 4 * layout.grid[0]


@settings(max_examples=200, deadline=None)
@given(height=st.integers(1, 5000), width=st.integers(1, 5000), factor=st.sampled_from([16, 28, 32]))
@example(height=1, width=1, factor=28)
@example(height=1, width=200, factor=28)
def test_sizes_are_those_of_the_installed_processor(height, width, factor):
    bounds = {"min_pixels": 56 * 56, "max_pixels": 28 * 28 * 1280}
    if max(height, width) > 200 * min(height, width):
        with pytest.raises(ImageError, match="200 to 1"):
            smart_resize(height, width, factor=factor, **bounds)
        return
    found = smart_resize(height, width, factor=factor, **bounds)
    assert found == reference_resize(height, width, factor=factor, **bounds)


class TestPlaceholders:
    def test_what_a_user_writes_is_never_one(self):
        chat, book = chat_of("qwen2_vl"), PictureBook()
        content = [{"type": "text", "text": "<|image_pad|>"}, {"type": "image", "image": png(16, 16)}]
        messages, _ = book.take([{"role": "user", "content": content}])
        prompt = chat.prompt(messages, pictures=book)
        (image,) = prompt.images
        places = [place for place, token in enumerate(prompt.ids) if token == chat.vision.image_token_id]
        assert places == list(range(image.start, image.end))
        assert "<|image_pad|>" in chat.decode([*prompt.ids[: image.start], *prompt.ids[image.end :]])

    def test_as_many_as_pictures_or_the_template_is_to_blame(self):
        chat = chat_of("qwen2_vl")
        ids = [chat.vision.image_token_id] * 2
        with pytest.raises(ModelError, match="writes 2 placeholders for 1 images"):
            expand(ids, [load_picture(png(16, 16))], chat.vision)

    def test_the_same_picture_twice_is_kept_once_and_written_twice(self):
        chat, book = chat_of("qwen2_vl"), PictureBook()
        part = {"type": "image", "image": png(16, 16)}
        messages, _ = book.take([{"role": "user", "content": [part, part]}])
        prompt = chat.prompt(messages, pictures=book)
        assert (len(book), len(prompt.images)) == (1, 2)

    def test_a_picture_that_is_not_there_is_an_error(self):
        messages, _ = PictureBook().take([{"role": "user", "content": [{"type": "image", "image": png(16, 16)}]}])
        with pytest.raises(ModelError, match="which is missing"):
            chat_of("qwen2_vl").prompt(messages)

    def test_a_model_that_does_not_see_has_none(self):
        path = directory("qwen2_vl")
        blind = ChatFormat.from_tokenizer(chat_of("qwen2_vl").tokenizer)
        assert (blind.vision, blind.banned_token_ids) == (None, ())
        assert chat_of("qwen2_vl").banned_token_ids
        assert path.is_dir()

    @pytest.mark.parametrize("kind", KINDS)
    def test_all_ids_that_claim_a_picture_are_banned(self, kind):
        chat, book = chat_of(kind), PictureBook()
        messages, _ = book.take([{"role": "user", "content": [{"type": "image", "image": png(90, 60)}]}])
        prompt = chat.prompt(messages, pictures=book)
        (image,) = prompt.images
        added = set(chat.tokenizer.added_tokens_decoder)
        control = {token for token in prompt.ids[image.start : image.end] if token in added}
        assert control
        assert control <= set(chat.banned_token_ids)
        assert not set(chat.banned_token_ids) & set(chat.stop_token_ids)

    def test_a_model_of_a_family_that_is_not_known_is_used_until_it_is_to_see(self, tmp_path):
        path = model_directory("qwen2_vl", tmp_path)
        config = json.loads((path / "config.json").read_text())
        (path / "config.json").write_text(json.dumps(config | {"model_type": "internvl"}))
        chat, book = ChatFormat.from_pretrained(path), PictureBook()
        assert chat.prompt([{"role": "user", "content": "?"}]).ids
        messages, _ = book.take([{"role": "user", "content": [{"type": "image", "image": png(8, 8)}]}])
        with pytest.raises(ModelError, match=r"is a internvl|writes"):
            chat.prompt(messages, pictures=book)


class TestModels:
    def test_a_template_that_only_the_processor_has_is_found(self, tmp_path):
        path = model_directory("smolvlm", tmp_path)
        template = (path / "chat_template.jinja").read_text()
        (path / "chat_template.jinja").unlink()
        with pytest.raises(ModelError, match="has no chat template"):
            ChatFormat.from_pretrained(path)
        (path / "chat_template.json").write_text(json.dumps({"chat_template": template}))
        assert ChatFormat.from_pretrained(path).source == template

    def test_another_size_of_pictures_is_another_format(self, tmp_path):
        path = model_directory("qwen2_vl", tmp_path)
        before = ChatFormat.from_pretrained(path).fingerprint
        settings = json.loads((path / "preprocessor_config.json").read_text())
        settings["size"]["longest_edge"] //= 2
        (path / "preprocessor_config.json").write_text(json.dumps(settings))
        assert ChatFormat.from_pretrained(path).fingerprint != before
        assert chat_of("qwen2_vl").fingerprint == before

    def test_of_a_model_of_the_hub_the_small_files_are_fetched(self, monkeypatch):
        asked = []

        def snapshot(name, *, allow_patterns):
            asked.append((name, sorted(allow_patterns)))
            return str(directory("qwen2_vl"))

        monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot)
        tokenizer = chat_of("qwen2_vl").tokenizer
        monkeypatch.setattr("transformers.AutoTokenizer.from_pretrained", lambda *_, **__: tokenizer)
        assert ChatFormat.from_pretrained("some/model").vision == chat_of("qwen2_vl").vision
        assert asked[0][0] == "some/model"
        assert not any("safetensors" in pattern or "*" in pattern for pattern in asked[0][1])


class TestPictureBook:
    def test_for_others_messages_hold_their_pictures_again(self):
        book = PictureBook()
        messages, _ = book.take([{"role": "user", "content": [{"type": "image", "image": png(8, 8)}]}])
        (message,) = with_files(messages, book.files)
        assert load_picture(message["content"][0]["image"]).data == png(8, 8)

    def test_frames_of_a_video_are_pictures_with_a_bound(self):
        frames = [np.full((4, 4, 3), value, np.uint8) for value in range(65)]
        book = PictureBook()
        (message,), _ = book.take([{"role": "user", "content": [{"type": "video", "video": frames[:64]}]}])
        assert len(message["content"]) == len(book) == 64
        with pytest.raises(ImageError, match="1 to 64 frames, this one 65"):
            book.take([{"role": "user", "content": [{"type": "video", "video": frames}]}])

    def test_openais_form_is_taken_too(self):
        url = "data:image/png;base64," + __import__("base64").b64encode(png(2, 2)).decode()
        (message,), _ = PictureBook().take(
            [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
        )
        assert message["content"] == [{"type": "image", "digest": load_picture(png(2, 2)).digest}]

    def test_a_digest_of_no_picture_is_an_error(self):
        with pytest.raises(ImageError, match="there is no picture"):
            PictureBook().take([{"role": "user", "content": [{"type": "image", "digest": "0" * 64}]}])
