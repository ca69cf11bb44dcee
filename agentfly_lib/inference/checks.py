"""What every engine refuses in a request before it does anything with it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentfly_lib.inference.generate import GenerationRequest

if TYPE_CHECKING:
    from agentfly_lib.chat.image_reader import ImageReader

__all__ = ["check_pictures", "check_request"]


def check_request(request: GenerationRequest, *, context_length: int | None = None) -> None:
    """Raises `ValueError`, naming the request, for a prompt that is empty or fills the context, or no token to sample.

    context_length: of the engine; None where only its server knows.
    """
    prompt = len(request.token_ids)
    if context_length is not None and not 0 < prompt < context_length:
        raise ValueError(
            f"request {request.request_id!r} has a prompt of {prompt} tokens; the engine takes "
            f"1 to {context_length - 1} (its context of {context_length} must leave room for one more)"
        )
    if not prompt:
        raise ValueError(f"request {request.request_id!r} has an empty prompt; a prompt needs at least one token")
    if request.max_tokens < 1:
        raise ValueError(
            f"request {request.request_id!r} asks for max_tokens={request.max_tokens}; it must be at least 1"
        )


def check_pictures(request: GenerationRequest, reader: ImageReader | None) -> None:
    """Reads the pictures of a request, which the engine's thread then need not.

    Raises `ValueError`, naming the request, if they do not fit its tokens, or there is no reader: the model is blind.
    """
    if reader is None:
        raise ValueError(f"request {request.request_id!r} has pictures, but the model is not a vision model")
    try:
        reader.placed(request.token_ids, request.images)
    except ValueError as error:
        raise ValueError(f"request {request.request_id!r}: {error}") from error
