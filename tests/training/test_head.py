"""The chunked output head against autograd on full logits, and how much of the logits ever exists at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.stack

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from agentfly_lib.training.head import LogprobHead  # noqa: E402

TOKENS, WIDTH, VOCABULARY = 13, 8, 50
BANNED = torch.tensor([3, 49])


def naive(hidden, head, targets, temperature, banned):
    logits = torch.nn.functional.linear(hidden, head.weight, head.bias).float() / temperature
    if banned is not None:
        logits = logits.index_fill(1, banned, -torch.inf)
    everything = torch.log_softmax(logits, -1)
    entropy = -(everything.exp() * everything.masked_fill(everything.isinf(), 0.0)).sum(-1)
    return everything.gather(-1, targets[:, None])[:, 0], entropy


@pytest.mark.parametrize("chunk", [4, 13, 100])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("entropy_gradient", [False, True])
@pytest.mark.parametrize("banned", [None, BANNED])
def test_values_and_gradients_are_those_of_the_full_logits(chunk, bias, entropy_gradient, banned):
    torch.manual_seed(0)
    plain = torch.nn.Linear(WIDTH, VOCABULARY, bias=bias)
    hidden, targets = torch.randn(TOKENS, WIDTH), torch.randint(4, 48, (TOKENS,))
    by_token, by_entropy = torch.randn(TOKENS), torch.randn(TOKENS)
    results = []
    for chunked in (False, True):
        source = hidden.clone().requires_grad_()
        plain.zero_grad()
        if chunked:
            logprobs, entropy = LogprobHead.of(plain)(
                source,
                targets,
                temperature=0.7,
                chunk_tokens=chunk,
                entropy_gradient=entropy_gradient,
                banned=banned,
            )
            assert entropy.requires_grad == entropy_gradient
        else:
            logprobs, entropy = naive(source, plain, targets, 0.7, banned)
        loss = (logprobs * by_token).sum() + ((entropy * by_entropy).sum() if entropy_gradient else 0.0)
        loss.backward()
        results.append(
            (logprobs.detach(), entropy.detach(), source.grad, *(p.grad.clone() for p in plain.parameters()))
        )
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)


def test_a_frozen_head_in_bfloat16_gives_its_input_a_gradient():
    torch.manual_seed(0)
    head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False, dtype=torch.bfloat16).requires_grad_(False)
    hidden = torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.randint(0, VOCABULARY, (TOKENS,))
    logprobs, _ = LogprobHead.of(head)(hidden, targets, chunk_tokens=4)
    assert logprobs.dtype == torch.float32
    logprobs.sum().backward()
    again = hidden.detach().double().requires_grad_()
    naive(again, head.double(), targets, 1.0, None)[0].sum().backward()
    torch.testing.assert_close(hidden.grad.double(), again.grad, rtol=0, atol=0.02)
    assert head.weight.grad is None


def test_without_targets_it_is_a_linear_layer_with_the_same_parameters():
    plain = torch.nn.Linear(WIDTH, VOCABULARY)
    head = LogprobHead.of(plain)
    hidden = torch.randn(2, WIDTH)
    assert torch.equal(head(hidden), plain(hidden))
    assert head.weight is plain.weight
    assert head.bias is plain.bias


@contextmanager
def largest() -> Iterator[list[int]]:
    """Collects the number of elements of every tensor that any operation makes, the backward pass included."""
    sizes: list[int] = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            for each in made if isinstance(made, tuple | list) else (made,):
                if isinstance(each, torch.Tensor):
                    sizes.append(each.numel())
            return made

    with Watch():
        yield sizes


def test_no_tensor_holds_more_logits_than_a_chunk_s():
    head = LogprobHead(WIDTH, 500)
    hidden, targets = torch.randn(64, WIDTH, requires_grad=True), torch.randint(0, 500, (64,))
    with largest() as sizes:
        logprobs, _ = head(hidden, targets, chunk_tokens=16)
        logprobs.sum().backward()
    assert max(sizes) == 16 * 500
    with largest() as sizes:
        naive(hidden, head, targets, 1.0, None)[0].sum().backward()
    assert max(sizes) == 64 * 500, "the measure sees full logits"
