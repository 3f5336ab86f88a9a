"""UnregisterBroker (key 64, KIP-500): forget a broker that will not come back.

Brokers are the workers of one `moldau serve`, which restarts each of them when it dies, so no dead
broker stays registered. Kafka removes a running broker from the cluster until it is restarted; here
that is refused, because a rule assigns partitions and groups to workers.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode
from moldau.broker.handlers.details.authorization import (
    CLUSTER_DENIED,
    CLUSTER_DENIED_TEXT,
    is_cluster_denied,
)
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.unregister_broker import (
    UnregisterBrokerRequest,
    UnregisterBrokerResponse,
)


async def handle(
    broker: Broker, request: UnregisterBrokerRequest, call: Call
) -> UnregisterBrokerResponse:
    node = request.broker_id
    if is_cluster_denied(broker, call, Operation.ALTER):
        error, text = CLUSTER_DENIED, CLUSTER_DENIED_TEXT
    elif node not in broker.nodes:
        error = ErrorCode.BROKER_ID_NOT_REGISTERED
        text = f"Broker ID {node} is not currently registered"
    else:
        error = ErrorCode.INVALID_REQUEST
        text = (
            f"Broker ID {node} is a worker that is in use; restart `moldau serve` with another "
            "number of --workers to have fewer"
        )
    return UnregisterBrokerResponse(error_code=error, error_message=text)
