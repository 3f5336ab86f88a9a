"""ops/compose.yaml: its brokers' options are those of `serve`, its parts know each other."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from moldau.broker.settings.loading import load_settings
from moldau.broker.settings.processes import ServeSettings
from moldau.ops.cli import build_parser
from moldau.ops.serve.exposure import check_exposure
from moldau.ops.serve.http_child import console_access
from tests.support.brokers.container import Image
from tests.support.brokers.running import ROOT

FILE = ROOT / "ops/compose.yaml"
COMPOSE: dict[str, Any] = yaml.safe_load(
    re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", FILE.read_text())  # variables have their defaults
)
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
BROKERS = {name: each for name, each in SERVICES.items() if "build" in each}


def settings_of(service: dict[str, Any], volume: Path) -> ServeSettings:
    """Settings as `moldau serve` has them in the container."""
    image = Image(Path("/opt/moldau"), volume)
    environment = image.environment | {
        name: str(value) for name, value in service["environment"].items()
    }
    flags = build_parser(("serve",)).parse_args(service["command"])
    settings = load_settings(vars(flags), environment)
    check_exposure(settings.listening, insecure=settings.insecure)
    return settings


def published(service: dict[str, Any]) -> dict[int, str]:
    """The addresses at which its ports are reached."""
    found = [str(each).rsplit(":", 2) for each in service["ports"]]
    return {int(each[-1]): each[0] if len(each) == 3 else "" for each in found}


@pytest.mark.parametrize("name", BROKERS)
def test_each_broker_can_be_reached(name: str, tmp_path: Path) -> None:
    service = BROKERS[name]
    settings = settings_of(service, tmp_path)
    outside, inside = settings.listening
    assert (outside.advertised_host, outside.advertised_port) == ("localhost", 9092)
    assert (inside.advertised_host, inside.advertised_port) == (name, 19092)
    assert settings.advertise == "router"  # so that one port is enough
    assert set(published(service)) == {9092, 8092}
    assert outside.protocol == inside.protocol
    address = settings.http_address()
    assert address is not None
    assert address[1] == 8092
    assert console_access(settings).mode == "on"


def test_the_profiles(tmp_path: Path) -> None:
    assert {name: each["profiles"] for name, each in BROKERS.items()} == {
        "moldau": ["secure"],
        "moldau-dev": ["dev"],
    }
    assert settings_of(BROKERS["moldau"], tmp_path).secure
    assert set(published(BROKERS["moldau-dev"]).values()) == {"127.0.0.1"}
    for each in BROKERS.values():
        assert each["read_only"]
        assert each["cap_drop"] == ["ALL"]


def test_the_image_is_of_this_version() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert {each["image"] for each in BROKERS.values()} == {f"moldau:{version}"}
    assert f"ARG VERSION={version}\n" in (ROOT / "ops/Containerfile").read_text()


def test_what_is_mounted_exists() -> None:
    for name, service in SERVICES.items():
        for volume in service["volumes"]:
            source = volume.split(":")[0]
            if source.startswith("."):
                assert (FILE.parent / source).is_file(), f"{name}: {volume}"
            else:
                assert source in COMPOSE["volumes"]


def test_prometheus_and_grafana_find_what_they_show() -> None:
    monitoring = ROOT / "ops/monitoring"
    scraped = yaml.safe_load((monitoring / "prometheus.yml").read_text())["scrape_configs"]
    found = {each["dns_sd_configs"][0]["names"][0]: each.get("scheme", "http") for each in scraped}
    assert found == {"moldau": "https", "moldau-dev": "http"}
    (source,) = yaml.safe_load((monitoring / "grafana/datasource.yml").read_text())["datasources"]
    assert source["url"] == "http://prometheus:9090"
    assert "prometheus" in SERVICES
    dashboard = json.loads((monitoring / "dashboard.json").read_text())
    (variable,) = dashboard["templating"]["list"]
    assert (variable["type"], variable["query"]) == ("datasource", source["type"])
