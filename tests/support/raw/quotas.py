"""Quotas of a running broker, and clients that are anyone: over a worker's unix socket, whose
connections say for whom they speak."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any

from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import Identity
from moldau.broker.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    EntityData,
    EntryRequest,
    OpData,
)
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from moldau.ops.serve.runtime import worker_socket
from tests.support.brokers.running import Broker
from tests.support.raw.client import NAMED_PRODUCE, RawClient, make_batch

Entity = Mapping[str, str | None]
BATCH = bytes(make_batch([(None, bytes(10_000), 1)]))


class Anyone(RawClient):
    """A client of any name and any user, at one worker."""

    def __init__(
        self,
        broker: Broker,
        *,
        client_id: str = "raw",
        user: str | None = None,
        worker: int = 0,
        router: bool = False,
        is_operator: bool = False,
    ) -> None:
        port = broker.port if router else broker.processes("worker")[worker]["port"]
        super().__init__(port)
        self._client_id = client_id
        if user is not None or is_operator:
            self._socket.close()
            self._socket = socket.socket(socket.AF_UNIX)
            self._socket.settimeout(30)
            self._socket.connect(str(worker_socket(broker.directory / "run", broker.port, worker)))
        if user is not None:
            self._socket.sendall(PREAMBLE.request(Identity(f"User:{user}", host="10.1.2.3")))

    def produce_batch(
        self, topic: str, *, acks: int = 1, version: int = NAMED_PRODUCE, batch: bytes = BATCH
    ) -> ProduceResponse:
        response: ProduceResponse = self.call(produce_request(topic, batch, acks), version)
        assert response.responses[0].partition_responses[0].error_code == 0
        return response

    def hang_up(self) -> None:
        self._socket.close()


def produce_request(topic: str, batch: bytes = BATCH, acks: int = 1) -> ProduceRequest:
    data = [PartitionProduceData(0, memoryview(batch))]
    return ProduceRequest(
        acks=acks, timeout_ms=10_000, topic_data=[TopicProduceData(topic, partition_data=data)]
    )


def alter_quotas(
    client: RawClient,
    entity: Entity,
    values: Mapping[str, float | None],
    *,
    validate_only: bool = False,
    version: int = 1,
) -> Any:
    """None removes a value. The answer for the entity, whatever it is."""
    entry = EntryRequest(
        [EntityData(kind, name) for kind, name in entity.items()],
        [OpData(key, value or 0, value is None) for key, value in values.items()],
    )
    request = AlterClientQuotasRequest([entry], validate_only)
    (answer,) = client.call(request, version).entries
    return answer


def set_quota(client: RawClient, entity: Entity, **values: float | None) -> None:
    answer = alter_quotas(client, entity, values)
    assert answer.error_code == 0, answer
