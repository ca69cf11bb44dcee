"""Small models, groups and configs for the learner's tests; loaded by `conftest.py` and by `rank_program.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from agentfly_lib.configs import RunConfig
from agentfly_lib.refs import CheckpointRef
from agentfly_lib.types import ImageSpan, Problem, Segment, StopReason, TrainingSample, Trajectory, TrajectoryGroup

VOCABULARY = 128


def write_tiny_model(path: Path, *, tied: bool = True, **changes: Any) -> Path:
    """A random Qwen2 of 2 layers, hidden 32, saved as a model directory."""
    import torch
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.2,
        tie_word_embeddings=tied,
        **changes,
    )
    Qwen2ForCausalLM(config).save_pretrained(path)
    (path / "tokenizer.json").write_text("{}")
    return path


def write_vision_model(path: Path, *, seed: int = 0, family: str = "qwen2_vl") -> Path:
    """A model that sees, as small as `tiny_vision`, with random weights, saved as a model directory."""
    import torch
    from transformers import AutoModelForImageTextToText

    from agentfly_lib.models.made import save_network
    from agentfly_lib.models.tiny_vision import build_vision_tokenizer, image_processor

    torch.manual_seed(seed)
    tokenizer = build_vision_tokenizer()
    path.mkdir(parents=True)
    model = AutoModelForImageTextToText.from_config(_vision_config(family, tokenizer)).float()
    model.config.architectures = [type(model).__name__]
    with torch.no_grad():
        for parameter in model.model.visual.parameters():
            parameter.mul_(4.0)  # so that pictures matter to a network that has learnt nothing
    save_network(model, tokenizer, path)
    image_processor().save_pretrained(path)
    return path


def _vision_config(family: str, tokenizer: Any) -> Any:
    from transformers import Qwen2_5_VLConfig, Qwen3VLConfig

    from agentfly_lib.models.tiny_vision import vision_network_config

    plain = vision_network_config(tokenizer)
    if family == "qwen2_vl":
        return plain
    tokens = {name: value for name, value in plain.to_dict().items() if name.endswith("token_id")}
    left_out = {"model_type", "architectures", "transformers_version"}
    text = {name: value for name, value in plain.text_config.to_dict().items() if name not in left_out}
    tower = {
        "depth": 2,
        "hidden_size": 64,
        "out_hidden_size": text["hidden_size"],
        "intermediate_size": 96,
        "num_heads": 4,
        "patch_size": 8,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "initializer_range": 0.1,
    }
    if family == "qwen2_5_vl":
        tower |= {"window_size": 32, "fullatt_block_indexes": [1]}
        return Qwen2_5_VLConfig(text_config=text, vision_config=tower, tie_word_embeddings=True, **tokens)
    text |= {"head_dim": 32, "rope_parameters": text["rope_parameters"] | {"mrope_interleaved": True}}
    tower |= {"deepstack_visual_indexes": [0], "num_position_embeddings": 64}
    return Qwen3VLConfig(text_config=text, vision_config=tower, tie_word_embeddings=True, **tokens)


def segment(rng: np.random.Generator, length: int, *, sampled: slice | None = None) -> Segment:
    """Random tokens; by default the policy sampled two stretches, as in an episode with one tool call."""
    mask = np.zeros(length, np.bool_)
    if sampled is None:
        mask[length // 4 : length // 2] = True
        mask[-max(1, length // 8) :] = True
    else:
        mask[sampled] = True
    mask[0] = False
    logprobs = rng.normal(-4.5, 0.3, length).astype(np.float32)
    return Segment(
        token_ids=rng.integers(0, VOCABULARY, length).astype(np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, logprobs, np.float32(np.nan)),
        turns=(),
    )


def trajectory(
    group: str, chain: int, segments: tuple[Segment, ...], reward: float | None, **fields: Any
) -> Trajectory:
    values: dict[str, Any] = {"stop": StopReason.FINISHED} | fields
    return Trajectory(
        id=f"{group}/{chain}",
        problem_id=group,
        group_id=group,
        chain=chain,
        segments=segments,
        reward=reward,
        **values,
    )


def group(name: str, trajectories: list[Trajectory]) -> TrajectoryGroup:
    return TrajectoryGroup(id=name, problem=Problem(id=name, messages=()), trajectories=tuple(trajectories))


def saved(learner: Any, path: Path) -> CheckpointRef | None:
    """The checkpoint `path` of a `LearnerRank`, written and waited for; None on other ranks than the first."""
    learner.begin_checkpoint(path)
    done, ref = learner.finish_checkpoint(seconds=120.0)
    assert done
    return ref


def step_groups(step: int, *, groups: int = 4, chains: int = 4) -> list[TrajectoryGroup]:
    """A step's scored rollouts, a pure function of the step: mixed lengths, one trajectory of two segments a group."""
    rng = np.random.default_rng(1000 + step)
    made = []
    for index in range(groups):
        name = f"{step:06d}-{index}"
        members = []
        for chain in range(chains):
            count = 2 if chain == 1 else 1
            segments = tuple(segment(rng, int(rng.integers(8, 40))) for _ in range(count))
            members.append(trajectory(name, chain, segments, float(rng.integers(0, 2))))
        made.append(group(name, members))
    return made


def vision_segment(model: Path, seed: int, words: list[int]) -> tuple[Segment, dict[str, bytes]]:
    """Stretches of words of these lengths, a picture between two of them; the policy sampled every second word."""
    from agentfly_lib.chat.image_reader import ImageReader
    from agentfly_lib.chat.images import digest_of
    from agentfly_lib.data.colours import generate

    reader, rng = ImageReader.of(model), np.random.default_rng(seed)
    ids: list[int] = []
    images: list[ImageSpan] = []
    pictures: dict[str, bytes] = {}
    for number, length in enumerate(words):
        if number:
            picture = generate(seed=100 * seed + number, count=1)[0].picture
            seen, digest = reader.read(picture), digest_of(picture)
            end = len(ids) + reader.tokens_of(seen.grid)
            images.append(ImageSpan(digest=digest, start=len(ids), end=end, grid=seen.grid))
            pictures[digest] = picture
            ids += [reader.image_token_id] * (end - len(ids))
        ids += rng.integers(20, 200, length).tolist()
    mask = np.arange(len(ids)) % 2 == 1
    for image in images:
        mask[image.start : image.end] = False
    logprobs = rng.normal(-5, 0.3, len(ids)).astype(np.float32)
    whole = Segment(
        token_ids=np.array(ids, np.int32),
        loss_mask=mask,
        logprobs=np.where(mask, logprobs, np.float32(np.nan)),
        turns=(),
        images=tuple(images),
    )
    return whole, pictures


def vision_step_groups(step: int, model: Path, *, shapes: list[list[int]]) -> list[TrajectoryGroup]:
    """One group, a chain for each shape (see `vision_segment`); every second one is right."""
    members = []
    for chain, words in enumerate(shapes):
        whole, pictures = vision_segment(model, 10 * step + chain, words)
        members.append(trajectory(f"{step:06d}-0", chain, (whole,), float(chain % 2), pictures=pictures))
    return [group(f"{step:06d}-0", members)]


def samples(seed: int, lengths: list[int]) -> list[TrainingSample]:
    rng = np.random.default_rng(seed)
    made = []
    for index, length in enumerate(lengths):
        part = segment(rng, length)
        advantage = np.float32(rng.normal())
        made.append(
            TrainingSample(
                trajectory_id=f"t{index:03d}",
                token_ids=part.token_ids,
                loss_mask=part.loss_mask,
                rollout_logprobs=part.logprobs,
                advantages=np.where(part.loss_mask, advantage, np.float32(0)),
            )
        )
    return made


def run_config(**sections: dict[str, Any]) -> RunConfig:
    """A config of 10 steps of 4 x 4 trajectories on one CPU rank; sections are merged over it."""
    values: dict[str, Any] = {
        "run": {"name": "test", "steps": 10},
        "model": {"type": "tiny"},
        "data": {"type": "arithmetic"},
        "rollout": {"problems_per_step": 4, "chains": 4},
        "optim": {"lr": 1e-2},
        "learner": {"device": "cpu", "microbatch_tokens": 64},
    }
    for name, section in sections.items():
        values[name] = values.get(name, {}) | section
    return RunConfig.model_validate(values)
