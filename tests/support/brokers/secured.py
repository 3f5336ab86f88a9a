"""A broker started with --secure, and what its clients read from the files it wrote."""

from __future__ import annotations

from pathlib import Path

from moldau.ops.client.properties import parse_properties
from tests.support.brokers.running import Broker


def security_dir(broker: Broker) -> Path:
    return broker.data_dir / "security"


def java_settings(broker: Broker) -> str:
    return str(security_dir(broker) / "client.properties")


def librdkafka_settings(broker: Broker, **changes: str) -> dict[str, str]:
    """Settings of confluent-kafka; `changes` have underscores: `sasl_username="alice"`."""
    text = (security_dir(broker) / "librdkafka.properties").read_text()
    own = {name.replace("_", "."): value for name, value in changes.items()}
    return {"bootstrap.servers": broker.bootstrap, **parse_properties(text), **own}


def write_settings(path: Path, broker: Broker, user: str, password: str) -> str:
    """The same for another user, as a file for --command-config."""
    settings = librdkafka_settings(broker, sasl_username=user, sasl_password=password)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return str(path)
