"""How clients connect to a broker: each client library has its own names for the same settings."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moldau.ops.client.properties import parse_properties


class ClientSettings:
    """Settings of clients that may do everything. `security`: the directory that `serve --secure`
    writes; None for a broker that takes everybody."""

    def __init__(self, bootstrap: str, security: Path | None) -> None:
        self._bootstrap = bootstrap
        self._security = security

    def librdkafka(self) -> dict[str, Any]:
        """confluent-kafka, and every other client that uses librdkafka."""
        return {"bootstrap.servers": self._bootstrap, **self._properties("librdkafka.properties")}

    def java(self) -> dict[str, str]:
        return {"bootstrap.servers": self._bootstrap, **self._properties("client.properties")}

    def kafka_python(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap_servers": self._bootstrap}
        if self._security is not None:
            settings |= self._login()
            settings["ssl_cafile"] = str(self._security / "ca.pem")
        return settings

    def aiokafka(self) -> dict[str, Any]:
        settings: dict[str, Any] = {"bootstrap_servers": self._bootstrap}
        if self._security is not None:
            settings |= self._login()
            settings["ssl_context"] = ssl.create_default_context(cafile=self._security / "ca.pem")
        return settings

    def _login(self) -> dict[str, str]:
        given = self._properties("librdkafka.properties")
        return {
            "security_protocol": given["security.protocol"],
            "sasl_mechanism": given["sasl.mechanism"],
            "sasl_plain_username": given["sasl.username"],
            "sasl_plain_password": given["sasl.password"],
        }

    def _properties(self, file: str) -> Mapping[str, str]:
        if self._security is None:
            return {}
        return parse_properties((self._security / file).read_text("utf-8"))
