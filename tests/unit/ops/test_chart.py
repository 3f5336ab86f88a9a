"""ops/chart: what it renders is a broker that `serve` starts; its values are the declared ones."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.processes import ServeSettings
from moldau.ops.serve.exposure import check_exposure
from moldau.ops.serve.http_child import console_access
from tests.support.brokers.container import Image
from tests.support.brokers.running import ROOT

CHART = ROOT / "ops/chart"
VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
HELM = shutil.which("helm")
needs_helm = pytest.mark.skipif(HELM is None, reason="helm is not installed")


def test_the_chart_is_for_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version


def test_templates_use_values_that_there_are() -> None:
    for template in (CHART / "templates").rglob("*.*"):
        for path in re.findall(r"\.Values\.([\w.]+)", template.read_text()):
            found: Any = VALUES
            for name in path.split("."):
                assert name in found, f"{template.name}: .Values.{path}"
                found = found[name]


def test_the_schema_declares_every_value() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())

    def compare(declared: dict[str, Any], values: dict[str, Any], path: str) -> None:
        if "properties" not in declared:
            return
        assert declared["additionalProperties"] is False
        names = set(declared["properties"]) - {"global"}  # helm's own
        assert names == set(values), path
        for name, value in values.items():
            if isinstance(value, dict):
                compare(declared["properties"][name], value, f"{path}.{name}")

    compare(schema, VALUES, "")


def helm(*settings: str) -> subprocess.CompletedProcess[str]:
    assert HELM is not None
    words = [word for setting in settings for word in ("--set", setting)]
    return subprocess.run(
        [HELM, "template", "shop", str(CHART), "--kube-version", "1.31.0", "-n", "ns", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def render(*settings: str) -> dict[str, dict[str, Any]]:
    """Render the chart; documents by kind and name."""
    done = helm(*settings)
    assert done.returncode == 0, done.stderr
    documents = [each for each in yaml.safe_load_all(done.stdout) if each]
    return {f"{each['kind']}/{each['metadata']['name']}": each for each in documents}


def container_of(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return dict(found)


def settings_of(rendered: dict[str, dict[str, Any]], tmp_path: Path, kind: str) -> ServeSettings:
    """Settings as `moldau serve` has them in the pod."""
    container = container_of(rendered[f"{kind}/shop-moldau"])
    image = Image(Path("/opt/moldau"), Path("/data"))
    variables = {each["name"]: each.get("value", "redis://secret") for each in container["env"]}
    config = tmp_path / "moldau.toml"
    config.write_text(rendered["ConfigMap/shop-moldau"]["data"]["moldau.toml"])
    variables["MOLDAU_CONFIG"] = str(config)
    assert container["args"] == ["serve"]
    settings = load_settings({}, image.environment | variables)
    check_exposure(settings.listening, insecure=settings.insecure)
    return settings


@needs_helm
def test_by_default_it_is_secure_behind_one_port(tmp_path: Path) -> None:
    rendered = render("config.num\\.partitions=3", "options.log-level=debug")
    settings = settings_of(rendered, tmp_path, "StatefulSet")
    assert settings.secure
    assert settings.advertise == "router"
    assert settings.log_level == "debug"
    assert settings.broker["num.partitions"] == "3"
    (listener,) = settings.listening
    assert listener.advertised_host == "shop-moldau.ns.svc.cluster.local"
    assert console_access(settings).mode == "on"
    container = container_of(rendered["StatefulSet/shop-moldau"])
    assert container["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert container["securityContext"]["readOnlyRootFilesystem"]
    ports = {
        each["name"]: each["port"] for each in rendered["Service/shop-moldau"]["spec"]["ports"]
    }
    assert ports == {"kafka": listener.advertised_port}


@needs_helm
def test_exposed_workers_have_ports_of_the_service(tmp_path: Path) -> None:
    rendered = render("workers.expose=true", "workers.count=3")
    settings = settings_of(rendered, tmp_path, "StatefulSet")
    assert settings.advertise == "workers"
    served = {settings.port, *(settings.worker_port(index) for index in range(3))}
    ports = {each["port"] for each in rendered["Service/shop-moldau"]["spec"]["ports"]}
    assert ports == served
    named = {
        each["containerPort"] for each in container_of(rendered["StatefulSet/shop-moldau"])["ports"]
    }
    assert named == served | {8092}


@needs_helm
def test_with_a_redis_it_is_a_deployment_that_never_runs_twice(tmp_path: Path) -> None:
    rendered = render("redis.existingSecret=redis")
    assert settings_of(rendered, tmp_path, "Deployment").redis is not None
    spec = rendered["Deployment/shop-moldau"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    # What clients log in with outlives the pod.
    assert "PersistentVolumeClaim/shop-moldau" in rendered


@needs_helm
def test_without_security_there_is_no_console_and_it_is_meant(tmp_path: Path) -> None:
    rendered = render("secure=false", "persistence.enabled=false")
    settings = settings_of(rendered, tmp_path, "StatefulSet")
    assert settings.insecure
    assert console_access(settings).mode == "off"
    container = container_of(rendered["StatefulSet/shop-moldau"])
    assert container["livenessProbe"]["httpGet"]["scheme"] == "HTTP"


@needs_helm
@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (["persistence.enabled=false"], "secure needs a volume"),
        (["redis.url=redis://:password@host:6379"], "everybody could read"),
        (["redis.url=redis://host:6379", "redis.existingSecret=a"], "both set"),
        (["tls.secretName=tls", "secure=false"], "tls.secretName needs secure"),
        (["workers.cuont=3"], "'cuont' not allowed"),
    ],
)
def test_what_cannot_work_is_refused(settings: list[str], why: str) -> None:
    done = helm(*settings)
    assert done.returncode != 0
    assert why in done.stderr
