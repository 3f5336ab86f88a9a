"""AlterClientQuotas (key 49, KIP-546): set and remove quotas of users, client ids and addresses.

Entities are changed independently. The reply is sent when all workers have applied the changes.
"""

from __future__ import annotations

from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, MoldauError, code_for, message_for
from moldau.broker.handlers.details.authorization import CLUSTER, denial, is_cluster_denied
from moldau.broker.security.quota_entities import Entity
from moldau.broker.security.quota_requests import checked_changes, checked_entity
from moldau.broker.security.resources import Operation
from moldau.broker.server.call import Call
from moldau.broker.store.topics import Change
from moldau.broker.wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    EntryRequest,
    EntryResponse,
)


async def handle(
    broker: Broker, request: AlterClientQuotasRequest, call: Call
) -> AlterClientQuotasResponse:
    denied = is_cluster_denied(broker, call, Operation.ALTER_CONFIGS)
    done: set[Entity] = set()
    answers = []
    for entry in request.entries:
        answer = EntryResponse(error_message=None, entity=entry.entity)
        answers.append(answer)
        try:
            if denied:
                raise denial(CLUSTER)
            await _alter(broker, entry, call, done, validate_only=request.validate_only)
        except MoldauError as fault:
            answer.error_code, answer.error_message = code_for(fault), message_for(fault)
    await broker.changes_applied()
    return AlterClientQuotasResponse(entries=answers)


async def _alter(
    broker: Broker, entry: EntryRequest, call: Call, done: set[Entity], *, validate_only: bool
) -> None:
    entity = checked_entity((part.entity_type, part.entity_name) for part in entry.entity)
    if entity in done:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"Ignoring duplicate entity {entity}")
    done.add(entity)
    changes = checked_changes(entity, ((op.key, op.value, op.remove) for op in entry.ops))
    if validate_only or not await broker.quotas.alter(entity, changes):
        return
    await broker.quotas.load()
    broker.audit.changed(call.identity, "quota", "altered", str(entity), values=changes)
    await broker.store.topics.announce(Change("quota", entity.canonical()))
