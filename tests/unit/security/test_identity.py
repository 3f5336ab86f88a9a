"""Who speaks on a connection, as routers and workers introduce it to workers."""

from __future__ import annotations

import pytest

from moldau.broker.private.api import private_frame
from moldau.broker.private.table import PREAMBLE
from moldau.broker.security.identity import ANONYMOUS, OPERATOR, Identity, Role, worker_identity
from moldau.broker.wire.frame import LENGTH_SIZE, read_request_header

ALICE = Identity("User:alice", "10.0.0.7", "SASL_SSL", expires_at=1_800_000_000_000)


@pytest.mark.parametrize("identity", [Identity(), ALICE, OPERATOR, worker_identity(3)])
def test_a_preamble_carries_all_of_it(identity: Identity) -> None:
    frame = PREAMBLE.request(identity)[LENGTH_SIZE:]
    header = read_request_header(frame)
    assert (header.api_key, header.api) == (PREAMBLE.key, None)
    assert PREAMBLE.read_request(frame[header.body_at :]) == identity


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x81\xa4role\xa4king", b"\x93\x01\x02\x03"])
def test_a_preamble_that_cannot_be_read_is_an_error(body: bytes) -> None:
    frame = private_frame(PREAMBLE.key, body)[LENGTH_SIZE:]
    with pytest.raises(ValueError):
        PREAMBLE.read_request(frame[read_request_header(frame).body_at :])


def test_clients_are_not_trusted_and_without_a_name_until_they_authenticate() -> None:
    assert (Identity().principal, Identity().is_trusted) == (ANONYMOUS, False)
    assert not ALICE.is_trusted
    assert OPERATOR.is_trusted
    assert worker_identity(0).is_trusted
    assert worker_identity(0).role is Role.WORKER
