"""What is deployed is what the schemas, the command lines and the other files say: checked without a cluster."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2] / "deployments"
KUBERNETES = ROOT / "kubernetes"
VERSION = "1.34"
FOREIGN = ("Kustomization", "RayCluster")
"""Kinds that are no part of Kubernetes itself."""

kubernetes_validate = pytest.importorskip("kubernetes_validate")


def documents() -> list[tuple[str, dict[str, Any]]]:
    found = []
    for file in sorted(KUBERNETES.glob("*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            found.append((f"{file.name}:{document['kind']}:{document.get('metadata', {}).get('name')}", document))
    return found


def pod(template: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "checked"}, "spec": template["spec"]}


@pytest.mark.parametrize("manifest", [pytest.param(d, id=n) for n, d in documents() if d["kind"] not in FOREIGN])
def test_manifests_are_valid(manifest):
    kubernetes_validate.validate(manifest, VERSION, strict=True)


def test_the_schemas_refuse_what_is_wrong():
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}, "spec": {"ports": [{"prot": 1}]}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(service, VERSION, strict=True)


def test_the_pods_of_the_ray_cluster_are_valid():
    (cluster,) = [document for name, document in documents() if document["kind"] == "RayCluster"]
    spec = cluster["spec"]
    for template in (spec["headGroupSpec"]["template"], *(group["template"] for group in spec["workerGroupSpecs"])):
        kubernetes_validate.validate(pod(template), VERSION, strict=True)
    locked = (ROOT.parent / "requirements" / "cpu.lock").read_text()
    assert f"ray=={spec['rayVersion']}" in re.sub(r"\[.*?\]", "", locked)


def test_the_job_of_a_flow_run_is_valid():
    template = json.loads((KUBERNETES / "job-template.json").read_text())
    properties = template["variables"]["properties"]
    values: dict[str, Any] = {name: entry["default"] for name, entry in properties.items() if "default" in entry}
    values |= {
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


class TestCompose:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text())

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

    def test_no_password_is_written_down(self):
        assert re.findall(r"PASSWORD: [^$]", (ROOT / "compose.yaml").read_text()) == []


@pytest.mark.parametrize("file", sorted((ROOT / "images").glob("*.Dockerfile")), ids=lambda file: file.name)
def test_images_are_pinned_and_not_root(file):
    text = file.read_text()
    bases = re.findall(r"^FROM (?:--\S+ )?(\S+)", text, re.MULTILINE)
    stages = set(re.findall(r"^FROM .* AS (\S+)", text, re.MULTILINE))
    for base in bases:
        name, _, tag = base.partition(":")
        assert name in stages or name == "scratch" or name.startswith(("agentfly/", "${")) or re.search(r"\d", tag), (
            base
        )
    users = re.findall(r"^USER (\S+)", text, re.MULTILINE)
    assert users, f"{file.name} runs as root"
    assert users[-1] not in ("root", "0")
    for sources in re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", text, re.MULTILINE):
        for source in sources.split():
            assert (ROOT.parent / source).exists(), source
