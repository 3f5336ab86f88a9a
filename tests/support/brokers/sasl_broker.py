"""A broker whose clients log in, over the operator's unix socket given its users."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moldau.ops.client.connection import Connection
from tests.support.brokers.running import Broker, running_broker, short_temp_dir
from tests.support.brokers.tokens import claims, key_set, signed
from tests.support.raw.sasl import SaslClient
from tests.support.raw.scram_users import remove_user, set_password

PLAIN, SHA_256, SHA_512 = "PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"
TOKENS = "OAUTHBEARER"
MECHANISMS = [PLAIN, SHA_256, SHA_512, TOKENS]


class SaslBroker:
    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.listener = next(iter(broker.bootstraps))

    def port(self, where: str, listener: str | None = None) -> int:
        """`where`: router, or the number of a worker."""
        port = int(self.broker.bootstraps[listener or self.listener].rpartition(":")[2])
        return port if where == "router" else port + 1 + int(where)

    @contextlib.contextmanager
    def operator(self, worker: int = 0) -> Iterator[Any]:
        (path,) = self.broker.directory.glob(f"run/*-worker-{worker}.sock")
        with Connection(str(path)) as connection:
            yield connection

    def set_password(self, user: str, password: str, worker: int = 0) -> None:
        with self.operator(worker) as operator:
            set_password(operator, user, password)

    def remove(self, user: str) -> None:
        with self.operator() as operator:
            remove_user(operator, user)

    def log_in(self, where: str, mechanism: str = SHA_256, user: str = "alice") -> SaslClient:
        """A client that has logged in, with the password of all users."""
        client = SaslClient(self.port(where))
        token = signed(claims(time.time_ns() // 1_000_000, sub=user))
        client.log_in(mechanism, user, "secret", token)
        return client


@contextlib.contextmanager
def sasl_broker(broker: dict[str, object] | None = None, **options: Any) -> Iterator[SaslBroker]:
    directory = short_temp_dir()
    keys = Path(directory) / "keys.json"
    keys.write_text(json.dumps(key_set()))
    configs = {
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        "sasl.oauthbearer.jwks.endpoint.url": keys.as_uri(),
        **(broker or {}),
    }
    options = {"listeners": ["SASL_PLAINTEXT"], "workers": 2, **options}
    with running_broker(broker=configs, **options) as running:
        made = SaslBroker(running)
        made.set_password("alice", "secret")
        yield made
