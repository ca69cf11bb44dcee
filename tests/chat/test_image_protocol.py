"""Pictures as OpenAI's protocol has them."""

from __future__ import annotations

import base64

import pytest

from agentfly_lib.chat import PictureBook
from agentfly_lib.chat.image_protocol import with_images
from tests.chat.vision_models import png

RED, BLUE = png(8, 8), png(8, 8, "blue")


def url(data: bytes) -> dict:
    text = f"data:image/png;base64,{base64.b64encode(data).decode()}"
    return {"type": "image_url", "image_url": {"url": text}}


def taken(*messages):
    return PictureBook().take(messages)[0]


def test_a_users_pictures_stay_where_they_are():
    messages = taken({"role": "user", "content": [{"type": "image", "image": RED}, {"type": "text", "text": "?"}]})
    (message,) = with_images(messages, [BLUE, RED])
    assert message == {"role": "user", "content": [url(RED), {"type": "text", "text": "?"}]}


def test_those_of_results_follow_all_results_of_the_turn():
    look = [{"type": "image", "image": RED}, {"type": "text", "text": "seen"}]
    messages = taken(
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": "", "tool_calls": []},
        {"role": "tool", "tool_call_id": "1", "content": look},
        {"role": "tool", "tool_call_id": "2", "content": [{"type": "image", "image": BLUE}]},
        {"role": "assistant", "content": "red"},
    )
    found = with_images(messages, [RED, BLUE])
    assert [message["role"] for message in found] == ["user", "assistant", "tool", "tool", "user", "assistant"]
    assert found[2]["content"] == [{"type": "text", "text": "[image 1, shown below]"}, look[1]]
    assert found[4]["content"] == [{"type": "text", "text": "The 2 images of the results:"}, url(RED), url(BLUE)]


def test_pictures_that_messages_hold_themselves():
    (message,) = with_images(
        [{"role": "user", "content": [{"type": "image", "image": url(RED)["image_url"]["url"]}]}], []
    )
    assert message["content"] == [url(RED)]


def test_a_picture_that_is_not_there_is_an_error():
    messages = taken({"role": "user", "content": [{"type": "image", "image": RED}]})
    with pytest.raises(ValueError, match="which the request does not have"):
        with_images(messages, [BLUE])


def test_text_alone_is_passed_through():
    messages = [{"role": "user", "content": "hi"}, {"role": "tool", "content": "ok"}]
    assert with_images(messages, []) == messages
