"""A file of client settings that log in with a delegation token."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from moldau.ops.client import ClientError, ClientSettings, Cluster
from moldau.ops.client.security import SCRAM
from moldau.ops.command_line import printable
from moldau.ops.operations.configs import broker_configs
from moldau.ops.operations.tokens import TokenInfo

KEYS = ("listener.security.protocol.map", "sasl.enabled.mechanisms", "ssl.keystore.location")
# Of a login or a certificate: who uses a token has neither.
_OF_CLIENT = ("sasl.", "ssl.keystore.", "ssl.key.", "ssl.certificate.")
_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"


def properties_text(token: TokenInfo, settings: Mapping[str, str]) -> str:
    """The file; `settings` say how to connect, without a login."""
    owner = printable(token.owner)
    lines = [
        f"# Delegation token of {owner}. Whoever can read this file can log in with it.",
        *(f"{name}={_escaped(value)}" for name, value in settings.items()),
        f'sasl.jaas.config={_MODULE} required username="{token.token_id}" '
        f'password="{token.password}" tokenauth="true";',
    ]
    return "\n".join(lines) + "\n"


def _escaped(value: str) -> str:
    """Escape a value of Java's properties: certificates have several lines."""
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")


def write_properties(path: str, text: str) -> None:
    """Readable by this user only. Raises ClientError."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise ClientError(f"{path} exists already, and is left as it is: remove it, or choose "
                          "another name") from None  # fmt: skip
    except OSError as error:
        raise ClientError(f"{path}: cannot be written: {error.strerror}") from None


def connection_settings(cluster: Cluster, given: ClientSettings) -> dict[str, str]:
    """The settings of --command-config without its login; else those that the broker of this
    machine needs. Raises ClientError."""
    protocol = given.security.protocol
    if protocol == "PLAINTEXT":
        return _of_broker(cluster)
    sasl = given.security.sasl
    kept = {
        name: value
        for name, value in given.properties.items()
        if not name.startswith(_OF_CLIENT) and name != "security.protocol"
    }
    return {
        "security.protocol": "SASL_SSL" if protocol.endswith("SSL") else "SASL_PLAINTEXT",
        "sasl.mechanism": sasl.mechanism if sasl and sasl.mechanism in SCRAM else SCRAM[-1],
        **kept,
    }


def _of_broker(cluster: Cluster) -> dict[str, str]:
    found = broker_configs(cluster, KEYS)
    protocols = {each.rpartition(":")[2] for each in found[KEYS[0]].split(",")}
    protocol = next((each for each in ("SASL_SSL", "SASL_PLAINTEXT") if each in protocols), None)
    mechanism = next((each for each in SCRAM[::-1] if each in found[KEYS[1]].split(",")), None)
    if protocol is None or mechanism is None:
        raise ClientError(
            "no listener of the broker takes tokens: that needs SASL_SSL or SASL_PLAINTEXT, and "
            "SCRAM-SHA-256 or SCRAM-SHA-512 in sasl.enabled.mechanisms"
        )
    settings = {"security.protocol": protocol, "sasl.mechanism": mechanism}
    authority = Path(found[KEYS[2]]).parent / "ca.pem"  # where --secure has its own
    if protocol == "SASL_SSL" and found[KEYS[2]] and authority.exists():
        settings |= {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(authority)}
    return settings
