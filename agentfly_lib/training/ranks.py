"""The learner's ranks as named Ray actors, and the client that speaks to all of them at once.

Who needs the learner holds its names only (`LearnerRef`). `ensure_learner` finds the actors and asks them what they
hold; if one is missing, silent, half-way through a failed update, or set up for another config, all of them are
replaced and start from the newest checkpoint. Ranks meet in collective operations, so one that died leaves the others
waiting: the client notices the death, ends the rest, and says so; it never waits beyond its time limit. A rank that is
stopped, or that waits for what does not come, dies of nothing: while a call is under way each rank is asked, on a
thread of its own, how far it is (`Pulse`).

The actors are detached: they outlive the task and the process that made them, until `Learner.close`, the end of Ray, or
three hours in which nobody called them.
On a cluster, a run that is started again after a kill finds them where they were. Ray itself is started elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from agentfly_lib.configs import LearnerConfig, RunConfig
from agentfly_lib.errors import AgentFlyError, LearnerError, first_line
from agentfly_lib.orphan import ORPHANED_SECONDS, OrphanTimer
from agentfly_lib.ray_calls import abandoned_calls_end, end_named, living_actor, named_actors, ray_call
from agentfly_lib.refs import CheckpointRef, LearnerRef, ModelRef, StepReport
from agentfly_lib.training.identity import learner_fingerprint, process_environment
from agentfly_lib.training.placement import rank_options
from agentfly_lib.types import Canary

__all__ = ["Learner", "LearnerActor", "LearnerStatus", "ensure_learner", "ranks_alive"]

logger = logging.getLogger(__name__)

T = TypeVar("T")
P = ParamSpec("P")

SendPart = Literal["describe", "open", "broadcast", "share", "release"]

PING_SECONDS = 30.0
"""An idle rank answers in milliseconds; one that does not within this time is replaced."""
GRACE_SECONDS = 5.0
"""After the first failure, how long to look for the failure behind it (a dead rank makes the others fail too)."""
BEAT_SECONDS = 5.0
"""How often a rank at work is asked how far it is."""
SILENT_SECONDS = 120.0
"""A rank at work that does not answer for so long is stopped, or has no memory to run in."""
STALLED_SECONDS = 600.0
"""In an update, all ranks answer and none has done anything for so long: they wait for each other..."""
STALLED_TIMES = 10.0
"""... unless that is less than so many times what took them longest until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LearnerStatus:
    """What a rank answers to a ping."""

    policy_version: int
    clean: bool
    fingerprint: str
    pid: int


def _call(method: Callable[Concatenate[LearnerActor, P], T]) -> Callable[Concatenate[LearnerActor, P], T]:
    """A method that others call: while it runs, and for hours after it, the actor is not orphaned."""

    @wraps(method)
    def called(self: LearnerActor, /, *arguments: P.args, **named: P.kwargs) -> T:
        with self.orphan.call():
            return method(self, *arguments, **named)

    return called


class LearnerActor:
    """A `LearnerRank` in a process of its own. Calls are served one at a time, and beside them `beat` and
    `finish_checkpoint`; without any for hours it ends.
    """

    def __init__(self, fingerprint: str) -> None:
        from agentfly_lib.training.learner import LearnerRank  # torch and DeepSpeed only in the actor

        self.orphan = OrphanTimer("this learner rank")
        self._fingerprint = fingerprint
        self._rank = LearnerRank()

    @_call
    def meeting_point(self) -> tuple[str, int]:
        """Address and free port where the ranks meet; asked of rank 0."""
        address = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return address, probe.getsockname()[1]

    @_call
    def setup(
        self,
        rank: int,
        meeting_point: tuple[str, int],
        config: RunConfig,
        model: ModelRef,
        checkpoint: CheckpointRef | None,
    ) -> int:
        address, port = meeting_point
        # Between two calls lie at most a collection and two evaluations.
        self.orphan.limit(max(ORPHANED_SECONDS, 3 * config.rollout.stage_timeout_seconds))
        return self._rank.setup(
            rank=rank,
            world=config.learner.ranks,
            address=address,
            port=port,
            config=config,
            model=model,
            checkpoint=checkpoint,
        )

    @_call
    def status(self) -> LearnerStatus:
        return LearnerStatus(
            policy_version=self._rank.policy_version,
            clean=self._rank.clean,
            fingerprint=self._fingerprint,
            pid=os.getpid(),
        )

    @ray.method(concurrency_group="beat")
    def beat(self) -> int:
        """How many passes and steps the rank has computed; answered while another call is served."""
        return self._rank.beats

    @_call
    def update(self, directory: Path, step: int) -> StepReport:
        return self._rank.update(directory, step)

    @_call
    def export_weights(self, path: Path, version: int) -> Canary:
        return self._canary(self._rank.export_weights(path, version))

    @_call
    def export_adapter(self, path: Path, version: int) -> Canary:
        return self._canary(self._rank.export_adapter(path, version))

    @_call
    def send(self, version: int, part: SendPart, *arguments: Any) -> Any:
        return getattr(self._rank.sender(version), part)(*arguments)

    @_call
    def begin_checkpoint(self, path: Path) -> None:
        self._rank.begin_checkpoint(path)

    @ray.method(concurrency_group="saves")
    def finish_checkpoint(self, seconds: float) -> tuple[bool, CheckpointRef | None]:
        with self.orphan.call():
            return self._rank.finish_checkpoint(seconds=seconds)

    @_call
    def canary(self) -> Canary:
        return self._canary(self._rank.canary_logprobs(self._rank.canary_token_ids, self._rank.canary_images))

    def _canary(self, logprobs: list[float]) -> Canary:
        """What the learner thinks of the tokens by which its weights are told."""
        ids, images = self._rank.canary_token_ids, self._rank.canary_images
        return Canary(token_ids=tuple(ids), logprobs=tuple(logprobs), images=images)


class Pulse:
    """What the ranks let hear of themselves while they are at work, and when that is too little."""

    def __init__(self, names: Sequence[str], *, computes: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """computes: whether the call is an update, in which something is counted all the time."""
        self._clock = clock
        self._computes = computes
        self._heard = dict.fromkeys(names, clock())
        self._beats: dict[str, int] = {}
        self._moved = clock()
        self._longest = 0.0

    def heard(self, name: str, beats: int) -> None:
        """A rank has answered."""
        now = self._clock()
        self._heard[name] = now
        if self._beats.get(name) != beats:
            self._beats[name] = beats
            self._longest = max(self._longest, now - self._moved)
            self._moved = now

    def fault(self) -> str | None:
        """What is wrong, or None."""
        now = self._clock()
        silent = [name for name, heard in self._heard.items() if now - heard > SILENT_SECONDS]
        if silent:
            return f"{', '.join(silent)} did not answer for {SILENT_SECONDS:.0f} s: stopped, or short of memory"
        patience = max(STALLED_SECONDS, STALLED_TIMES * self._longest)
        if self._computes and now - self._moved > patience:
            return f"no rank has computed anything for {patience:.0f} s: they wait for each other"
        return None


class Learner:
    """All ranks as one. Every method ends within its time limit; failures are `AgentFlyError`s that name the rank.

    After a failure that leaves the ranks in different states (a death, a time limit, an unexpected error) the
    remaining ranks are ended, and `ensure_learner` makes new ones.
    """

    def __init__(self, ref: LearnerRef, learner: LearnerConfig) -> None:
        self._names, self._namespace = ref.names, ref.namespace
        self._seconds = learner.update_timeout_seconds

    async def update(self, directory: Path, step: int) -> StepReport:
        """Trains on the scored rollouts in a step's directory; the report of rank 0.

        Raises `LearnerError` if the ranks do not agree on the new weights, besides what `LearnerRank.update` raises.
        """
        reports: list[StepReport] = await self._all("update", directory, step)
        if len({report.weights_digest for report in reports}) > 1:
            raise LearnerError(
                f"step {step}: the ranks hold different weights after the update "
                f"({', '.join(report.weights_digest[:8] for report in reports)}); restart from the newest checkpoint"
            )
        return reports[0]

    async def begin_save(self, path: Path) -> None:
        """Copies the state of the checkpoint `path`, named after the version, and has it written in the background."""
        await self._all("begin_checkpoint", path)

    async def finish_save(self, *, wait: bool) -> tuple[bool, CheckpointRef | None]:
        """Whether nothing is being written any more, and the checkpoint if it was finished since this was last asked.

        Nothing was begun on ranks that replaced those that began: there is no checkpoint then. Raises what writing
        failed with, once.
        """
        answers = await self._all("finish_checkpoint", self._seconds / 2 if wait else 0.0)
        return all(done for done, _ in answers), answers[0][1]

    async def save(self, path: Path) -> CheckpointRef:
        """Writes the checkpoint `path`, named after the version, and waits for it."""
        await self.begin_save(path)
        done, saved = await self.finish_save(wait=True)
        if not done or saved is None:
            raise LearnerError(
                f"{path} was not written within {self._seconds / 2:.0f} s; raise learner.update_timeout_seconds"
            )
        return saved

    async def export(self, path: Path, version: int) -> Canary:
        """Writes the weights of `version`, the one that is held, as one safetensors file; returns their canary."""
        return (await self._all("export_weights", path, version))[0]

    async def export_adapter(self, path: Path, version: int) -> Canary:
        """Writes the adapters of `version` to the folder `path`, as peft and vLLM load them; returns their canary."""
        return (await self._all("export_adapter", path, version))[0]

    async def send(self, version: int, part: SendPart, *arguments: Any) -> list[Any]:
        """What the `WeightSender` of each rank answers to this method, while it holds this version."""
        return await self._all("send", version, part, *arguments)

    async def meeting_point(self) -> tuple[str, int]:
        """An address of rank 0 and a free port there."""
        return (await self._all("meeting_point"))[0]

    async def canary(self) -> Canary:
        """Log-probs of the token sequence that `weights_digest` is made from."""
        return (await self._all("canary"))[0]

    async def status(self) -> list[LearnerStatus]:
        """What each rank holds."""
        handles = await ray_call(self._handles)
        return await _call_all(handles, "status", (), PING_SECONDS)

    def close(self) -> None:
        """Ends all ranks. Blocks."""
        _end_named(self._names, self._namespace)

    async def _all(self, method: str, *arguments: Any) -> list[Any]:
        handles = await ray_call(self._handles)
        pulse = Pulse(self._names, computes=method == "update")
        return await _call_all(handles, method, arguments, self._seconds, pulse=pulse)

    def _handles(self) -> dict[str, Any]:
        handles = {name: living_actor(name, self._namespace) for name in self._names}
        for name, handle in handles.items():
            if handle is None:
                self.close()
                raise LearnerError(f"the learner's rank {name} is gone; run the same command again to restart it")
        return handles


async def ensure_learner(
    config: RunConfig,
    model: ModelRef,
    checkpoint: CheckpointRef | None = None,
    *,
    run_name: str,
    namespace: str,
) -> LearnerRef:
    """Ranks that are ready, and the version they hold: those already running if they fit, else new ones.

    Running ranks fit if they answer, agree, were set up for the same model, algorithm, optimizer and learner, and
    are not behind the checkpoint. New ones start from the checkpoint, or from the model if there is none.
    Raises `LearnerError` if they cannot be started within `learner.start_timeout_seconds`, `ConfigError` if there are
    too few GPUs, `ModelError` or `ShardError` if model or checkpoint cannot be used.
    """
    names = tuple(f"{run_name}-learner-{rank}" for rank in range(config.learner.ranks))
    fingerprint = learner_fingerprint(config, model)
    await abandoned_calls_end()  # an earlier start, which may be about to make ranks of the same names
    present = await ray_call(named_actors, namespace, prefix=f"{run_name}-learner-")
    if set(present) == set(names):
        version = await _held_version([present[name] for name in names], fingerprint)
        if version is not None and version >= (checkpoint.policy_version if checkpoint else 0):
            return LearnerRef(names=names, namespace=namespace, policy_version=version)
    if present:
        logger.warning("replacing the learner's ranks %s", ", ".join(sorted(present)))
        if left := await ray_call(end_named, present, namespace, seconds=PING_SECONDS):
            raise LearnerError(f"the old ranks {', '.join(left)} do not end; stop Ray (`ray stop`) and try again")

    deadline = time.monotonic() + config.learner.start_timeout_seconds
    handles: dict[str, Any] = {}
    try:
        for rank, name in enumerate(names):
            handles[name] = await ray_call(_start, rank, name, namespace, config, fingerprint)
        first = {names[0]: handles[names[0]]}
        meeting_point = (await _call_all(first, "meeting_point", (), deadline - time.monotonic()))[0]
        versions = await _call_all(
            handles,
            "setup",
            (meeting_point, config, model, checkpoint),
            deadline - time.monotonic(),
            numbered=True,
        )
    except BaseException:
        await ray_call(_end_named, names, namespace)
        raise
    return LearnerRef(names=names, namespace=namespace, policy_version=versions[0])


def _start(rank: int, name: str, namespace: str, config: RunConfig, fingerprint: str) -> Any:
    learner, place = config.learner, rank_options(config, rank, namespace=namespace)
    device = "cuda" if place["num_gpus"] else "cpu"
    options = {
        "name": name,
        "namespace": namespace,
        "num_cpus": learner.threads if device == "cpu" else 1,
        **place,
        "lifetime": "detached",  # held by name alone: without it Ray ends an actor with its last handle
        "max_restarts": 0,
        "runtime_env": {"env_vars": process_environment(device=device, threads=learner.threads)},
    }
    return ray.remote(concurrency_groups={"beat": 1, "saves": 1})(LearnerActor).options(**options).remote(fingerprint)  # type: ignore[attr-defined]


async def _held_version(handles: Sequence[Any], fingerprint: str) -> int | None:
    """Version that all ranks hold cleanly for this config; None if they do not."""
    calls = [asyncio.ensure_future(_answer(handle.status.remote())) for handle in handles]
    done, pending = await asyncio.wait(calls, timeout=PING_SECONDS)
    for call in pending:
        call.cancel()
    failures = [call.exception() for call in done if call.exception()]
    if pending or failures:
        logger.warning("%d of the learner's ranks do not answer: %s", len(pending) + len(failures), failures)
        return None
    states: list[LearnerStatus] = [call.result() for call in calls]
    versions = {state.policy_version for state in states}
    if len(versions) > 1 or not all(state.clean and state.fingerprint == fingerprint for state in states):
        return None
    return versions.pop()


async def _call_all(
    handles: dict[str, Any],
    method: str,
    arguments: tuple[Any, ...],
    seconds: float,
    *,
    numbered: bool = False,
    pulse: Pulse | None = None,
) -> list[Any]:
    """Calls a method on every rank concurrently (`numbered`: with the rank as first argument); results by rank.

    pulse: what judges whether they are still at it; without one only the time limit does.
    """
    calls = {
        name: asyncio.ensure_future(
            _answer(getattr(handle, method).remote(*((rank, *arguments) if numbered else arguments)))
        )
        for rank, (name, handle) in enumerate(handles.items())
    }
    listening = [] if pulse is None else [asyncio.ensure_future(_listen(*each, pulse)) for each in handles.items()]
    deadline, fault = time.monotonic() + seconds, None
    try:
        while True:
            now = time.monotonic()
            left = max(deadline - now, 0.0)
            rest = left if pulse is None else min(left, BEAT_SECONDS)
            done, pending = await asyncio.wait(calls.values(), timeout=rest, return_when=asyncio.FIRST_EXCEPTION)
            failed = any(call.exception() for call in done)
            stood_still = time.monotonic() - now > rest + SILENT_SECONDS / 2  # this process, which heard nobody then
            fault = None if pulse is None or stood_still else pulse.fault()
            if failed or fault or not pending or not left:
                break
        timed_out = bool(pending) and not failed
        if failed and pending:
            _, pending = await asyncio.wait(pending, timeout=GRACE_SECONDS)
        if not pending and not any(call.exception() for call in calls.values()):
            return [call.result() for call in calls.values()]
    finally:
        for task in (*calls.values(), *listening):
            task.cancel()
    errors = {
        name: error
        for name, call in calls.items()
        if call.done() and not call.cancelled() and (error := call.exception())
    }
    if pending or not all(isinstance(error, AgentFlyError) for error in errors.values()):
        await ray_call(_end, list(handles.values()))
    if timed_out and fault:
        raise LearnerError(f"{method}: {fault}. The ranks were ended; run the same command again to go on")
    if timed_out:
        late = [name for name, call in calls.items() if call in pending]
        raise LearnerError(
            f"{method} took longer than {seconds:.0f} s on {', '.join(late)}; the ranks were ended. If the work is "
            f"that long, raise learner.update_timeout_seconds (or learner.start_timeout_seconds for a start)"
        )
    raise _reason(method, errors)


async def _listen(name: str, handle: Any, pulse: Pulse) -> None:
    """Asks one rank again and again. Of a dead one the call itself tells."""
    with suppress(RayError):
        while True:
            pulse.heard(name, await _answer(handle.beat.remote()))
            await asyncio.sleep(BEAT_SECONDS)


async def _answer(ref: Any) -> Any:
    return await ref


def _reason(method: str, errors: dict[str, BaseException]) -> Exception:
    """The error that explains the others: a death before what it caused, our own errors before foreign ones."""

    def weight(item: tuple[str, BaseException]) -> int:
        error = item[1]
        return 0 if isinstance(error, RayActorError) else 1 if isinstance(error, AgentFlyError) else 2

    name, error = min(errors.items(), key=weight)
    if isinstance(error, RayTaskError) and isinstance(error.cause, AgentFlyError):
        return error.cause
    if isinstance(error, RayActorError):
        return LearnerError(
            f"the learner's rank {name} died during {method}: {first_line(error)}. The other ranks were ended; run "
            f"the same command again to go on from the newest checkpoint"
        )
    if isinstance(error, RayError):
        return LearnerError(f"{method} failed on the learner's rank {name}: {error}")
    return LearnerError(f"{method} failed on the learner's rank {name}: {type(error).__name__}: {error}")


def ranks_alive(run_name: str, namespace: str) -> bool:
    """There are ranks of this run, whoever started them. Ray must be running. Blocks."""
    return bool(named_actors(namespace, prefix=f"{run_name}-learner-"))


def _end(handles: Sequence[Any]) -> None:
    for handle in handles:
        ray.kill(handle, no_restart=True)


def _end_named(names: Sequence[str], namespace: str) -> None:
    _end([handle for name in names if (handle := living_actor(name, namespace)) is not None])
