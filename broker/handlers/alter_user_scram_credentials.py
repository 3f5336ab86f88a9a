"""AlterUserScramCredentials (key 51, KIP-554): the client sends the salted password, so that the
broker never sees the password.

One request can set both mechanisms of a user, and both change at the same moment. Kafka 4 refuses
that, although KIP-554 and earlier versions did not. A mechanism that is named twice is refused here
too. Clients of a user whose credentials have changed are disconnected.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from moldau.broker.access.users import NoSuchCredential
from moldau.broker.broker import Broker
from moldau.broker.errors import ErrorCode, KafkaError, StoreFault, code_for, message_for
from moldau.broker.handlers.details.authorization import CLUSTER, denial, is_cluster_denied
from moldau.broker.security.accounts import Alteration
from moldau.broker.security.resources import Operation
from moldau.broker.security.sasl import MAX_NAME, Mechanism
from moldau.broker.security.scram import (
    MAX_ITERATIONS,
    MECHANISMS,
    MIN_ITERATIONS,
    ScramCredential,
    credential_from,
)
from moldau.broker.server.call import Call
from moldau.broker.wire.messages.alter_user_scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)

MAX_SALT = 1024


async def handle(
    broker: Broker, request: AlterUserScramCredentialsRequest, call: Call
) -> AlterUserScramCredentialsResponse:
    changes: list[ScramCredentialDeletion | ScramCredentialUpsertion]
    changes = [*request.deletions, *request.upsertions]
    twice = {
        name
        for (name, _), times in Counter((each.name, each.mechanism) for each in changes).items()
        if times > 1
    }
    denied = is_cluster_denied(broker, call, Operation.ALTER)
    results = []
    for name in dict.fromkeys(each.name for each in changes):  # in their order, once each
        result = AlterUserScramCredentialsResult(name, error_message=None)
        results.append(result)
        try:
            if denied:
                raise denial(CLUSTER)
            if name in twice:
                text = "A user credential cannot be altered twice in the same request"
                raise KafkaError(ErrorCode.DUPLICATE_RESOURCE, text)
            alteration = _alteration(name, request.deletions, request.upsertions)
            await broker.users.alter(name, alteration)
            broker.audit.changed(
                call.identity,
                "user",
                "altered" if alteration.set else "deleted",
                name,
                set=sorted(alteration.set),
                removed=sorted(alteration.remove),
            )
        except NoSuchCredential:
            result.error_code = ErrorCode.RESOURCE_NOT_FOUND
            result.error_message = "Attempt to delete a user credential that does not exist"
        except (KafkaError, StoreFault) as fault:
            result.error_code = code_for(fault)
            result.error_message = message_for(fault)
    await broker.changes_applied()
    return AlterUserScramCredentialsResponse(results=results)


def _alteration(
    name: str,
    deletions: Iterable[ScramCredentialDeletion],
    upsertions: Iterable[ScramCredentialUpsertion],
) -> Alteration:
    if not name:
        raise _unacceptable("Username must not be empty")
    if len(name) > MAX_NAME or "\0" in name:
        raise _unacceptable(f"Username must have at most {MAX_NAME} characters, none of them zero")
    return Alteration(
        {_mechanism(each.mechanism): _credential(each) for each in upsertions if each.name == name},
        frozenset(_mechanism(each.mechanism) for each in deletions if each.name == name),
    )


def _credential(upsertion: ScramCredentialUpsertion) -> ScramCredential:
    mechanism = _mechanism(upsertion.mechanism)
    if upsertion.iterations < MIN_ITERATIONS:
        raise _unacceptable("Too few iterations")
    if upsertion.iterations > MAX_ITERATIONS:
        raise _unacceptable("Too many iterations")
    if not 0 < len(upsertion.salt) <= MAX_SALT or not upsertion.salted_password:
        raise _unacceptable("Salt and salted password must not be empty")
    return credential_from(
        mechanism, bytes(upsertion.salt), upsertion.iterations, bytes(upsertion.salted_password)
    )


def _mechanism(number: int) -> Mechanism:
    if number not in MECHANISMS:
        raise KafkaError(ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism")
    return MECHANISMS[number]


def _unacceptable(text: str) -> KafkaError:
    return KafkaError(ErrorCode.UNACCEPTABLE_CREDENTIAL, text)
