"""Making the small model: once, whole, reproducible, and good enough to learn from."""

from __future__ import annotations

import json
import math
import multiprocessing
import re
from pathlib import Path

import numpy as np
import pytest

from agentfly_lib.chat.format import ChatFormat
from agentfly_lib.configs.data import ArithmeticDataConfig
from agentfly_lib.configs.model import TinyModelConfig
from agentfly_lib.data.arithmetic import WordProblem, held_out
from agentfly_lib.errors import ModelError
from agentfly_lib.models.demonstrations import CORRECT, demonstrations
from agentfly_lib.models.fingerprint import fingerprint_directory
from agentfly_lib.models.resolve import check_directory, resolve_model
from agentfly_lib.models.tiny import ensure_tiny, tiny_directory
from agentfly_lib.models.warm_start import WarmStage, encode, train
from agentfly_lib.tools.arithmetic import ExpressionError, evaluate, format_number
from agentfly_lib.tools.calculator import calculator

pytestmark = pytest.mark.stack

QUICK = TinyModelConfig(warm_steps=2, spoil_steps=1)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def directory(cache: Path) -> Path:
    return ensure_tiny(QUICK, cache).path


def test_it_is_a_usable_model_directory(directory: Path, cache: Path):
    check_directory(directory)

    ref = resolve_model(QUICK, cache)
    assert ref.path == directory == tiny_directory(QUICK, cache)
    assert ref.fingerprint == fingerprint_directory(directory)
    assert not list(cache.glob("*-making-*")), "no workspace stays"


def test_it_has_the_shape_it_should_have(directory: Path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory)

    assert 0.5e6 < sum(parameter.numel() for parameter in model.parameters()) < 0.6e6
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.config.architectures == ["Qwen2ForCausalLM"]
    assert all(parameter.dtype.is_floating_point and parameter.itemsize == 4 for parameter in model.parameters())


def test_the_second_time_nothing_is_made(directory: Path, cache: Path):
    steps: list[int] = []

    ensure_tiny(QUICK, cache, lambda done, total, loss: steps.append(done))

    assert steps == []


def test_making_it_again_gives_the_same_bytes_and_disturbs_nobody_s_random_numbers(directory: Path, tmp_path: Path):
    import torch

    seen: list[tuple[int, int]] = []
    before, threads = torch.random.get_rng_state(), torch.get_num_threads()

    again = ensure_tiny(QUICK, tmp_path, lambda done, total, loss: seen.append((done, total)))

    assert again.fingerprint == fingerprint_directory(directory)
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.get_num_threads() == threads


def test_another_seed_is_another_model(directory: Path, tmp_path: Path):
    other = ensure_tiny(TinyModelConfig(seed=1, warm_steps=2, spoil_steps=1), tmp_path)

    assert other.path.name != directory.name
    assert other.fingerprint != fingerprint_directory(directory)


@pytest.mark.parametrize("name", ["tokenizer.json", "model.safetensors", "warm_start.json"])
def test_a_directory_that_was_changed_is_made_again(directory: Path, cache: Path, name: str):
    fingerprint = fingerprint_directory(directory)
    (directory / name).write_bytes(b"{}")

    assert ensure_tiny(QUICK, cache).fingerprint == fingerprint


def test_what_a_killed_maker_left_is_cleared_away(cache: Path, directory: Path):
    leftover = cache / f"{directory.name}-making-killed"
    leftover.mkdir()
    (directory / "config.json").unlink()

    ensure_tiny(QUICK, cache)

    assert not leftover.exists()


def test_a_cache_that_cannot_be_written_is_explained(tmp_path: Path):
    (tmp_path / "file").write_text("")

    with pytest.raises(ModelError, match="choose another cache directory"):
        ensure_tiny(QUICK, tmp_path / "file" / "models")


def _make(cache: Path, made) -> None:
    ensure_tiny(QUICK, cache, lambda done, total, loss: made.put(done))


@pytest.mark.slow
def test_two_processes_that_ask_at_once_make_it_once(tmp_path: Path):
    context = multiprocessing.get_context("spawn")
    made = context.Queue()
    processes = [context.Process(target=_make, args=(tmp_path, made)) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(240)

    assert [process.exitcode for process in processes] == [0, 0]
    assert sorted(made.get(timeout=10) for _ in range(3)) == [1, 2, 3]
    assert made.empty()


def test_a_demonstration_is_encoded_as_a_rollout_would_lay_it_out(directory: Path):
    """Prompt, sampled turn, bridge, sampled turn: the same ids, trained on exactly where the policy would sample."""
    chat = ChatFormat.from_pretrained(directory)
    for demonstration in demonstrations(seed=5, count=20, mix=CORRECT):
        question, call, result, answer = demonstration.messages
        (encoded,) = encode([demonstration.messages], chat.tokenizer, [calculator.schema])  # pyright: ignore[reportArgumentType]

        prompt = chat.prompt_ids([question], [calculator.schema])
        said = chat.tokenizer(call["content"] + "<|im_end|>").input_ids
        bridge = chat.bridge([question], call["content"], said, [result], [calculator.schema])
        last = chat.tokenizer(answer["content"] + "<|im_end|>").input_ids

        assert not bridge.rewritten
        assert encoded.token_ids.tolist() == [*prompt, *said, *bridge.ids, *last]
        expected = [0] * len(prompt) + [1] * len(said) + [0] * len(bridge.ids) + [1] * len(last)
        assert encoded.loss_mask.tolist() == expected


def test_the_learning_rate_by_hand():
    stage = WarmStage(steps=100, batch_size=1, learning_rate=1.0, warmup_steps=20)

    assert stage.learning_rate_at(0) == pytest.approx(1 / 20)
    assert stage.learning_rate_at(50) == pytest.approx(0.1 + 0.9 * 0.5)
    assert stage.learning_rate_at(100) == pytest.approx(0.1)


def test_the_loss_is_the_plain_mean_over_the_masked_tokens(directory: Path):
    """Against the model's whole logits, one episode at a time and unpadded."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(directory)
    tokenizer = AutoTokenizer.from_pretrained(directory)
    episodes = encode(
        [demonstration.messages for demonstration in demonstrations(seed=9, count=5, mix=CORRECT)],
        tokenizer,
        [calculator.schema],
    )
    total, count = 0.0, 0
    with torch.no_grad():
        for episode in episodes:
            ids = torch.from_numpy(episode.token_ids.astype(np.int64))[None]
            logprobs = torch.log_softmax(model(ids).logits[0, :-1], -1)
            for position in np.flatnonzero(episode.loss_mask):
                total -= float(logprobs[position - 1, ids[0, position]])
                count += 1

    loss = train(model, episodes, WarmStage(steps=1, batch_size=5, learning_rate=0.0), pad_id=tokenizer.pad_token_id)

    assert loss == pytest.approx(total / count, rel=1e-5)


def test_the_number_of_episodes_must_fit(directory: Path):
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory)
    with pytest.raises(ValueError, match="2 steps of 3 need exactly so many episodes, got 0"):
        train(model, [], WarmStage(steps=2, batch_size=3, learning_rate=0.1), pad_id=0)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_has_much_to_learn_and_can_learn_it():
    """The real recipe, in the user's cache (40 CPU seconds the first time), played by a loop of our own here."""
    ref = ensure_tiny(TinyModelConfig())
    problems = held_out(ArithmeticDataConfig(eval_problems=256))

    answers, called = play(ref.path, problems)

    reward = np.mean([answer == problem.answer for answer, problem in zip(answers, problems, strict=True)])
    assert 0.03 < reward < 0.30, "some reward, and far from all of it"
    assert 0.2 < np.mean(called) < 0.75, "calls the tool about every second time"
    assert np.mean([answer is not None for answer in answers]) > 0.7, "knows the format"
    losses = json.loads((ref.path / "warm_start.json").read_text())["losses"]
    assert losses["correct"] < 0.1 < losses["imperfect"]
    assert math.isfinite(losses["imperfect"])


def play(path: Path, problems: list[WordProblem]) -> tuple[list[str | None], list[bool]]:
    """Sampled episodes of at most three turns, by transformers' own `generate`: final answers, and who called."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path).eval()
    conversations = [[{"role": "user", "content": problem.question}] for problem in problems]
    answers: list[str | None] = [None] * len(problems)
    called = [False] * len(problems)
    live = list(range(len(problems)))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for _ in range(3):
            if not live:
                break
            prompts = [
                tokenizer.apply_chat_template(
                    conversations[index], tools=[calculator.schema], add_generation_prompt=True, tokenize=False
                )
                for index in live
            ]
            inputs = tokenizer(prompts, return_tensors="pt", padding=True, padding_side="left")
            sampled = model.generate(
                input_ids=inputs.input_ids,
                attention_mask=inputs.attention_mask,
                max_new_tokens=48,
                do_sample=True,
                top_k=0,
            )[:, inputs.input_ids.shape[1] :]
            going_on = []
            for index, text in zip(live, tokenizer.batch_decode(sampled, skip_special_tokens=True), strict=True):
                call = re.search(r"<tool_call>\n(.*)\n</tool_call>", text)
                if call is None:
                    answer = re.search(r"\\boxed\{(.*?)\}", text)
                    answers[index] = answer.group(1) if answer else None
                    continue
                called[index] = True
                conversations[index] += [
                    {"role": "assistant", "content": text},
                    {"role": "tool", "content": use(call[1])},
                ]
                going_on.append(index)
            live = going_on
    return answers, called


def use(call: str) -> str:
    try:
        return format_number(evaluate(json.loads(call)["arguments"]["expression"]))
    except (ExpressionError, ValueError, KeyError, TypeError):
        return "error"
