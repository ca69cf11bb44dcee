"""What is deployed is what the schemas, the command lines and the other files say: checked without a cluster."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2] / "deployments"
KUBERNETES = ROOT / "kubernetes"
VERSION = "1.34"

KUBECTL = Path(sys.executable).parent / "kubectl"

kubernetes_validate = pytest.importorskip("kubernetes_validate")


def documents() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for file in sorted(KUBERNETES.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            found.append((f"{file.name}:{document['kind']}:{document.get('metadata', {}).get('name')}", document))
    return found


@pytest.mark.parametrize("manifest", [pytest.param(d, id=n) for n, d in documents() if d["kind"] != "Kustomization"])
def test_manifests_are_valid(manifest):
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_schemas_refuse_what_is_wrong():
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": [{"prot": 1}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, VERSION, strict=True)


def deployments() -> list[dict[str, Any]]:
    return yaml.safe_load((ROOT.parent / "prefect.yaml").read_text())["deployments"]


@pytest.mark.parametrize(
    ("deployment", "image", "gpus"),
    [("recipe", "worker-gpu", 8), ("gsm8k-8gpu", "worker-gpu", 8), ("checkpoint", "worker-gpu", 8)]
    + [(name, "worker-cpu", 0) for name in ("demo", "nightly", "collect-demo", "prepare-gsm8k")],
)
def test_the_job_of_a_flow_run_is_valid_and_has_the_gpus_of_its_recipe(deployment: str, image: str, gpus: int):
    template = json.loads((KUBERNETES / "job-template.json").read_text())
    properties = template["variables"]["properties"]
    (entry,) = [entry for entry in deployments() if entry["name"] == deployment]
    values: dict[str, Any] = {name: entry["default"] for name, entry in properties.items() if "default" in entry}
    values |= entry["work_pool"]["job_variables"] | {
        "name": "train-demo",
        "command": ["prefect", "flow-run", "execute"],
        "env": [{"name": "A", "value": "b"}],
    }
    used: set[str] = set()

    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: fill(value) for key, value in node.items()}
        if isinstance(node, list):
            return [fill(value) for value in node]
        if not isinstance(node, str):
            return node
        names = re.findall(r"\{\{ (\w+) \}\}", node)
        used.update(names)
        if names and node == f"{{{{ {names[0]} }}}}":
            return values.get(names[0])
        return re.sub(r"\{\{ (\w+) \}\}", lambda match: str(values[match[1]]), node)

    job = fill(template["job_configuration"]["job_manifest"])
    kubernetes_validate.validate(job, VERSION, strict=True)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"].removeprefix("registry.example/") == f"agentfly/{image}:0.1.0"
    assert container["resources"]["limits"]["nvidia.com/gpu"] == gpus
    fill(template["job_configuration"])
    assert used == set(properties)  # nothing is offered that changes nothing, and nothing is used that is not offered


def test_kustomize_finds_everything():
    (kustomization,) = [document for name, document in documents() if document["kind"] == "Kustomization"]
    named = set(kustomization["resources"])
    for generator in kustomization["configMapGenerator"]:
        named |= set(generator["files"])
    assert {name for name in named if not (KUBERNETES / name).exists()} == set()
    left_out = {file.name for file in KUBERNETES.iterdir()} - named
    assert left_out == {"kustomization.yaml", "secrets.example.yaml"}
    assert (KUBERNETES / "mlflow.sql").read_text() == (ROOT / "postgres" / "mlflow.sql").read_text()


def test_the_deployment_of_ones_own_fits_into_the_registry():
    (block,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    registry = (ROOT.parent / "prefect.yaml").read_text()
    added = yaml.safe_load(f"{registry}\n{block}")["deployments"][-1]
    known = {key for entry in deployments() for key in entry}
    assert set(added) <= known
    assert added["work_pool"]["work_queue_name"] == "device"
    assert added["parameters"]["config"]["recipe"].endswith(".toml")


def test_make_check_installs_what_checks_these_files():
    command = ["make", "--dry-run", "--what-if=requirements/tools.lock", "check"]
    done = subprocess.run(command, cwd=ROOT.parent, capture_output=True, text=True, timeout=120, check=True)
    assert "-r requirements/tools.lock" in done.stdout


@pytest.mark.skipif(not KUBECTL.exists(), reason="kubectl is not installed (make check)")
def test_kustomize_makes_valid_manifests():
    done = subprocess.run([KUBECTL, "kustomize", KUBERNETES], capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    made = list(yaml.safe_load_all(done.stdout))
    for manifest in made:
        kubernetes_validate.validate(manifest, VERSION, strict=True)
        assert manifest["kind"] == "Namespace" or manifest["metadata"]["namespace"] == "agentfly"
    images = set(re.findall(r"image: (\S+)", done.stdout))
    assert all(re.search(r":.*\d", image) for image in images), images
    kinds = {manifest["kind"] for manifest in made}
    assert {"NetworkPolicy", "PersistentVolumeClaim", "Deployment", "StatefulSet", "Job"} <= kinds


def test_the_worker_takes_what_is_registered():
    """The pool of prefect.yaml, with the template of jobs, and the servers by the names of their services."""
    by_name = dict(documents())
    (worker,) = by_name["worker.yaml:Deployment:prefect-worker"]["spec"]["template"]["spec"]["containers"]
    (register,) = by_name["worker.yaml:Job:register"]["spec"]["template"]["spec"]["containers"]
    registry = yaml.safe_load((ROOT.parent / "prefect.yaml").read_text())
    (pool,) = {entry["work_pool"]["name"] for entry in registry["deployments"]}
    assert f"--pool={pool}" in worker["args"]
    assert "--base-job-template=/pool/job-template.json" in worker["args"]
    for queue, limit in registry["definitions"]["queues"].items():
        assert f"work-queue create {queue} --pool {pool} --limit {limit}" in register["args"][-1]
        assert f"set-concurrency-limit {queue} {limit} --pool {pool}" in register["args"][-1]
    policies = (KUBERNETES / "networkpolicies.yaml").read_text()
    for label in ("prefect-worker", "flow-run", "register"):
        assert label in policies


def test_flow_runs_take_their_images_from_the_registry(tmp_path):
    """The job registers prefect.yaml of its image, which cannot know where a cluster takes its images from."""
    job = dict(documents())["worker.yaml:Job:register"]
    (container,) = job["spec"]["template"]["spec"]["containers"]
    registry = next(each["value"] for each in container["env"] if each["name"] == "REGISTRY")
    (rewrite,) = (part for part in container["args"][-1].split("; ") if part.startswith("sed "))
    assert container["args"][-1].endswith("--prefect-file /tmp/prefect.yaml")
    written = tmp_path / "prefect.yaml"
    command = rewrite.replace("/tmp/prefect.yaml", str(written))
    subprocess.run(["sh", "-c", command], cwd=ROOT.parent, env=os.environ | {"REGISTRY": registry}, check=True)
    ours, there = deployments(), yaml.safe_load(written.read_text())["deployments"]
    images = [entry["work_pool"]["job_variables"].get("image") for entry in ours]
    assert any(images)
    wanted = [image and f"registry.example/{image}" for image in images]
    assert [entry["work_pool"]["job_variables"].get("image") for entry in there] == wanted


def test_what_pods_refer_to_is_there():
    by_kind: dict[str, set[str]] = {}
    for _, document in documents():
        if document["kind"] != "Kustomization":
            by_kind.setdefault(document["kind"], set()).add(document["metadata"]["name"])
    text = "\n".join(file.read_text() for file in KUBERNETES.glob("*.*"))
    claims = set(re.findall(r"claimName\W+([a-z-]+)", text))
    secrets = set(re.findall(r"secret(?:KeyRef|Ref)\W+name\W+([a-z-]+)", text))
    assert claims == by_kind["PersistentVolumeClaim"]
    assert secrets == by_kind["Secret"]
    assert set(re.findall(r"configMapRef\W+name\W+([a-z-]+)", text)) == by_kind["ConfigMap"]


class TestCompose:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())

    def asked_for(self) -> set[str]:
        """Variables without which it refuses."""
        return set(re.findall(r"\$\{(\w+):\?", (ROOT / "compose.yaml").read_text()))

    @pytest.mark.parametrize("text", ["README.md", "compose.yaml"])
    def test_the_commands_that_are_told_name_what_it_asks_for(self, text):
        lines = (ROOT / text).read_text().splitlines()
        commands = [line.strip("# ") for line in lines if "docker compose -f deployments/compose.yaml up" in line]
        assert commands
        for command in commands:
            given = {word.partition("=")[0] for word in command.split("docker")[0].split()}
            assert given == self.asked_for() == {"POSTGRES_PASSWORD"}

    def test_nothing_listens_beyond_this_machine(self):
        ports = [port for service in self.compose["services"].values() for port in service.get("ports", [])]
        assert ports
        assert all(port.startswith("127.0.0.1:") for port in ports)

    def test_services_wait_for_healthy_ones_and_know_their_volumes(self):
        services = self.compose["services"]
        for service in services.values():
            assert service["restart"] == "unless-stopped"
            for other, condition in service.get("depends_on", {}).items():
                assert condition == {"condition": "service_healthy"}
                assert "healthcheck" in services[other]
            for volume in service.get("volumes", []):
                source = volume.split(":")[0]
                assert source in self.compose["volumes"] or (ROOT / source).is_dir()

    def test_it_is_what_compose_understands(self):
        compose_spec = pytest.importorskip("compose_spec", reason="compose-spec is not installed (make check)")
        understood = compose_spec.PyCompose.from_json(json.dumps(self.compose))
        understood.validate()
        assert set(understood.service_names()) == {"postgres", "prefect", "mlflow", "worker"}
        wrong = json.loads(json.dumps(self.compose))
        wrong["services"]["worker"]["helthcheck"] = {}
        with pytest.raises(ValueError, match="helthcheck"):
            compose_spec.PyCompose.from_json(json.dumps(wrong))

    def test_docker_compose_itself_is_content(self):
        program = ["docker", "compose"]
        try:
            subprocess.run([*program, "version"], capture_output=True, timeout=240, check=True)
        except (OSError, subprocess.CalledProcessError):
            pytest.skip("Docker Compose is not installed")
        done = subprocess.run(
            [*program, "-f", ROOT / "compose.yaml", "config", "--quiet"],
            env=os.environ | dict.fromkeys(self.asked_for(), "x"),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def test_each_service_says_whether_it_is_well(self):
        assert all("healthcheck" in service for service in self.compose["services"].values())

    def test_the_worker_starts_no_servers_of_its_own(self):
        worker = self.compose["services"]["worker"]
        assert worker["command"][:2] == ["agentfly", "serve"]
        assert {"PREFECT_API_URL", "MLFLOW_TRACKING_URI"} <= set(worker["environment"])

    def test_sandboxes_can_be_made_in_the_worker_and_nobody_gains_anything(self):
        """What bubblewrap needs, and only where flows run."""
        needed = {"seccomp=unconfined", "systempaths=unconfined", "apparmor=unconfined"}
        for name, service in self.compose["services"].items():
            options = set(service.get("security_opt", ()))
            assert needed & options == (needed if name == "worker" else set())
            assert "no-new-privileges:true" in options or name == "postgres"
            assert "privileged" not in service

    def test_no_password_is_written_down(self):
        assert re.findall(r"PASSWORD: [^$]", (ROOT / "compose.yaml").read_text()) == []


def test_no_image_of_ours_is_taken_from_where_strangers_publish():
    """Docker Hub has no `agentfly/...` of ours: without a registry's name, whoever takes the name runs here."""
    for name, service in TestCompose.compose["services"].items():
        assert service["image"].startswith("agentfly/") == (service.get("pull_policy") == "never"), name
    pool = json.loads((ROOT / "pools" / "docker.json").read_text())["variables"]["properties"]
    assert pool["image_pull_policy"]["default"] == "Never"
    job = json.loads((KUBERNETES / "job-template.json").read_text())["variables"]["properties"]
    (kustomization,) = [document for _, document in documents() if document["kind"] == "Kustomization"]
    for image in (job["image"]["default"], *(each["newName"] for each in kustomization["images"])):
        assert image.startswith("registry.example/agentfly/")


def test_no_page_of_the_web_may_ask_a_prefect_server_that_is_started_here():
    """Its default lets any: wherever one is started, the origins are named."""
    compose = TestCompose.compose["services"]["prefect"]["environment"]
    manifest = dict(documents())["prefect.yaml:Deployment:prefect"]
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    for origins in (
        compose["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"],
        {each["name"]: each.get("value") for each in container["env"]}["PREFECT_SERVER_CORS_ALLOWED_ORIGINS"],
    ):
        assert set(origins.split(",")) == {"http://127.0.0.1:4200", "http://localhost:4200"}
    for page in (ROOT / "README.md", *(ROOT.parent / "docs").rglob("*.md")):
        for line in page.read_text().splitlines():
            assert "prefect server start" not in line or "PREFECT_SERVER_CORS_ALLOWED_ORIGINS=" in line, page
