"""prefect.yaml and the work pools, as Prefect itself reads them."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import jsonschema
import pytest
import yaml
from pydantic import TypeAdapter

from agentfly_lib.configs.load import FlowConfig
from tasks.options import RETRIED

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOYMENTS = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())["deployments"]
BY_NAME = {entry["name"]: entry for entry in DEPLOYMENTS}
TEMPLATES = {
    "docker": REPOSITORY / "deployments" / "pools" / "docker.json",
    "kubernetes": REPOSITORY / "deployments" / "kubernetes" / "job-template.json",
}


def flow_of(entry: dict[str, Any]) -> Any:
    file, _, name = entry["entrypoint"].partition(":")
    return getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)


def test_every_flow_that_is_run_by_itself_is_deployed() -> None:
    assert {flow_of(entry).name for entry in DEPLOYMENTS} == {"train", "evaluate", "collect", "prepare"}


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry["name"]) for entry in DEPLOYMENTS])
def test_a_deployment_fits_its_flow(entry: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    flow = flow_of(entry)
    known = inspect.signature(flow.fn).parameters
    parameters = entry.get("parameters", {}) | {
        key: value for trigger in entry.get("triggers", []) for key, value in trigger["parameters"].items()
    }
    assert set(parameters) <= set(known)
    needed = {name for name, each in known.items() if each.default is inspect.Parameter.empty}
    assert needed <= set(parameters), "a schedule or an automation would start it without"
    assert entry["tags"][0] == flow.name
    assert entry["description"]
    recipe = parameters.get("config", {}).get("recipe", "")
    if recipe.startswith("recipes/"):
        TypeAdapter(FlowConfig).validate_python(parameters["config"])


def test_whatever_starts_engines_takes_turns() -> None:
    """A flow run's Ray counts all GPUs as its own, so two at once would share their memory and not know of it."""
    registry = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())
    assert registry["definitions"]["queues"] == {"device": 1}
    for entry in DEPLOYMENTS:
        flow = flow_of(entry).name
        assert entry["work_pool"]["work_queue_name"] == ("default" if flow == "prepare" else "device")
        if flow == "train":
            assert entry["concurrency_limit"] == {"limit": 1, "collision_strategy": "ENQUEUE"}


def test_a_flow_run_decides_itself_whether_to_reach_a_hub() -> None:
    for entry in DEPLOYMENTS:
        assert not {name for name in entry["work_pool"]["job_variables"]["env"] if name.startswith("HF_")}
    for image in (REPOSITORY / "deployments" / "images").glob("worker-*.Dockerfile"):
        assert "OFFLINE" not in image.read_text()


def test_schedules_of_both_kinds_say_when() -> None:
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule

    (nightly,) = BY_NAME["nightly"]["schedules"]
    (daily,) = BY_NAME["prepare-gsm8k"]["schedules"]
    assert CronSchedule(cron=nightly["cron"], timezone=nightly["timezone"]).cron == "0 3 * * *"
    assert IntervalSchedule(interval=daily["interval"]).interval == timedelta(days=1)
    assert (nightly["active"], daily["active"]) == (False, False), "a clone must not begin to work by itself"


async def test_the_nightly_evaluation_is_at_three() -> None:
    from prefect.server.schemas.schedules import CronSchedule

    cron = CronSchedule(cron=BY_NAME["nightly"]["schedules"][0]["cron"], timezone="UTC")
    dates = await cron.get_dates(2, start=datetime(2030, 1, 1, 12, tzinfo=UTC))
    assert [(date.day, date.hour) for date in dates] == [(2, 3), (3, 3)]


def test_a_saved_checkpoint_is_evaluated_if_one_switches_that_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect's own reading of the automation finds the checkpoint in the event that `tasks.update` sends."""
    from prefect.server.events.schemas.automations import EventTrigger
    from prefect.server.events.schemas.events import ReceivedEvent
    from prefect.server.utilities.user_templates import render_user_template_sync

    from agentfly_lib.refs import CheckpointRef

    subject = importlib.import_module("tasks.update")
    (trigger,) = BY_NAME["checkpoint"]["triggers"]
    assert trigger["enabled"] is False, "a run evaluates itself, and has the device"
    assert set(trigger["parameters"]) == {"checkpoint"}, "whoever reaches the server sends events: they name no recipe"

    sent: list[dict[str, Any]] = []
    monkeypatch.setattr(subject, "emit_event", lambda **event: sent.append(event))
    monkeypatch.setattr(subject.PREFECT_API_URL, "value", lambda: "http://127.0.0.1:4200/api", raising=False)
    session = SimpleNamespace(config=SimpleNamespace(run=SimpleNamespace(name="mine")))
    subject._announce(session, CheckpointRef(path=Path("/runs/mine/checkpoints/000002"), policy_version=2, digest="d"))

    event = ReceivedEvent(id=uuid4(), occurred=datetime.now(UTC), **sent[0])
    asked = EventTrigger(expect=set(trigger["expect"]), match=trigger["match"], posture="Reactive", threshold=1)
    assert asked.covers(event)
    read = render_user_template_sync(trigger["parameters"]["checkpoint"], {"event": event})
    assert read == "/runs/mine/checkpoints/000002"


def test_stages_are_tried_again() -> None:
    assert RETRIED["retries"] > 0
    assert RETRIED["retry_condition_fn"] is not None


@pytest.mark.parametrize("kind", sorted(TEMPLATES))
class TestPools:
    def test_prefect_takes_the_template(self, kind: str) -> None:
        from prefect.server.schemas.actions import WorkPoolCreate

        template = json.loads(TEMPLATES[kind].read_text())
        WorkPoolCreate(name="agentfly", type=kind, base_job_template=template)
        with pytest.raises(ValueError, match="nowhere"):
            WorkPoolCreate(
                name="agentfly",
                type=kind,
                base_job_template=template | {"job_configuration": {"image": "{{ nowhere }}"}},
            )

    def test_its_variables_are_a_schema_that_their_defaults_keep_to(self, kind: str) -> None:
        schema = json.loads(TEMPLATES[kind].read_text())["variables"]
        jsonschema.Draft202012Validator.check_schema(schema)
        defaults = {name: each["default"] for name, each in schema["properties"].items() if "default" in each}
        jsonschema.validate(defaults, schema)

    def test_nothing_is_offered_that_changes_nothing(self, kind: str) -> None:
        template = json.loads(TEMPLATES[kind].read_text())
        used = set(re.findall(r"\{\{ (\w+) \}\}", json.dumps(template["job_configuration"])))
        assert used == set(template["variables"]["properties"])

    def test_what_a_deployment_sets_can_be_set(self, kind: str) -> None:
        schema = json.loads(TEMPLATES[kind].read_text())["variables"]
        for entry in DEPLOYMENTS:
            set_here = entry["work_pool"]["job_variables"]
            if kind == "kubernetes":  # a pool of containers has no use for some of it, and leaves that aside
                assert set(set_here) <= set(schema["properties"])
            jsonschema.validate(set_here, schema)

    def test_a_flow_run_is_not_root_and_gains_nothing(self, kind: str) -> None:
        text = TEMPLATES[kind].read_text()
        if kind == "docker":
            template = json.loads(text)
            kwargs = template["variables"]["properties"]["container_create_kwargs"]["default"]
            assert kwargs["cap_drop"] == ["ALL"]
            assert "no-new-privileges" in kwargs["security_opt"]
            assert template["job_configuration"]["privileged"] is False
        else:
            assert '"runAsNonRoot": true' in text
            assert '"allowPrivilegeEscalation": false' in text


def test_a_container_of_a_flow_run_knows_both_servers_of_compose() -> None:
    """A deployment's own variables are laid over those of the pool."""
    template = json.loads(TEMPLATES["docker"].read_text())
    compose = yaml.safe_load((REPOSITORY / "deployments" / "compose.yaml").read_text())
    servers = compose["services"]["worker"]["environment"]
    assert template["variables"]["properties"]["env"]["default"] == servers
    for entry in DEPLOYMENTS:
        assert not set(servers) & set(entry["work_pool"]["job_variables"]["env"])
