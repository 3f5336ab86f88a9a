"""Whatever a client sends, a worker stays alive, its memory bounded, and others are served.

Each test does its worst to one worker while a witness, a client that behaves, goes on producing and
fetching through the same worker. Behaviours of section 1 carry its number.
"""

import contextlib
import random
import socket
import ssl
import struct

import pytest

from moldau.broker.errors import ErrorCode
from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import request_frame
from moldau.broker.wire.messages.api_versions import ApiVersionsRequest
from moldau.broker.wire.messages.metadata import MetadataRequest
from moldau.broker.wire.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from tests.chaos.clients.victim import Victim, framed, header
from tests.support.raw.client import RawClient, make_batch

MIB = 1 << 20
LIMIT = 100 * MIB


# --- what is no request ---


@pytest.mark.parametrize("length", [-1, -(1 << 31), 0, 3, LIMIT + 1, (1 << 31) - 1])
def test_1_absurd_lengths(victim: Victim, length: int) -> None:
    victim.closes(struct.pack(">i", length) + b"x" * 100)
    victim.must_say(f"a frame of {length} bytes")


def test_1_http(victim: Victim) -> None:
    victim.closes(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    victim.must_say("an HTTP client")


def test_1_tls(victim: Victim) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with victim.connect() as raw, pytest.raises((ssl.SSLError, ConnectionError)):
        context.wrap_socket(raw).close()
    victim.must_say("a TLS client on a plaintext port")


# Before the random ones: malformed requests of one API are logged ten times a minute.
@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("Produce", header(0, 8) + b"\xff\xff\0\1\0\0\0\0" + struct.pack(">i", (1 << 31) - 1)),
        ("Produce", header(0, 9, flexible=True) + b"\0\0\1\0\0\0\0" + b"\xff\xff\xff\xff\x0f"),
        ("Metadata", header(3, 4) + struct.pack(">i", 1 << 30)),
        ("Metadata", header(3, 9, flexible=True) + b"\xff\xff\xff\xff\x0f"),
        ("Metadata", header(3, 4) + struct.pack(">ih", 1, 32_000) + b"short"),
        ("ListOffsets", header(2, 1) + struct.pack(">ii", -1, -2)),
    ],
)
def test_1_counts_and_lengths_beyond_the_frame(victim: Victim, name: str, body: bytes) -> None:
    victim.closes(framed(body))
    victim.must_say(f"malformed {name}")
    assert victim.grown() < 20 * MIB


def test_1_a_hundred_megabytes_of_tiny_elements(victim: Victim) -> None:
    """Each takes forty times its bytes once decoded: they are counted first."""
    topics = 30 * MIB
    body = header(3, 4) + struct.pack(">i", topics) + b"\0\1a" * topics
    with victim.connect() as client, contextlib.suppress(ConnectionError):
        client.sendall(framed(body))
        assert client.recv(1) == b""
    victim.must_say("malformed Metadata")
    assert victim.grown() < 300 * MIB


def test_1_random_bytes(victim: Victim) -> None:
    chance = random.Random(1)
    for _ in range(200):
        with victim.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(chance.randbytes(chance.randint(1, 2_000)))
            client.shutdown(socket.SHUT_WR)
            client.settimeout(5)
            while client.recv(65536):
                pass


def test_1_frames_of_random_bytes_and_mutated_requests(victim: Victim) -> None:
    """Well framed, so that every decoder gets its share. An answer is fine too."""
    chance = random.Random(2)
    requests = [
        request_frame(api, version, 1, "mutated", api.request())
        for api in APIS.values()
        for version in range(api.lowest, api.highest + 1)
    ]
    batch = memoryview(make_batch([(b"k", b"v" * 50, 1)]))
    data = [TopicProduceData(name=victim.topic, partition_data=[PartitionProduceData(0, batch)])]
    full = ProduceRequest(acks=1, timeout_ms=100, topic_data=data)
    requests += [
        request_frame(APIS[ApiKey.PRODUCE], version, 1, "m", full) for version in range(3, 13)
    ] * 10
    for _ in range(1_500):
        frame = bytearray(chance.choice(requests)[4:])
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(8, len(frame)) if len(frame) > 8 else 0
            kind = chance.random()
            if kind < 0.6:
                frame[at] = chance.choice([0, 1, 127, 128, 255, chance.randrange(256)])
            elif kind < 0.8:
                del frame[at:]
            else:
                frame[at:at] = chance.randbytes(chance.randint(1, 9))
            if len(frame) <= 8:
                frame += bytes(8)
        # Its answer is not awaited: a fetch may park for weeks.
        with victim.connect() as client, contextlib.suppress(ConnectionError):
            client.sendall(framed(bytes(frame)) + framed(header(18, 0)))
            client.settimeout(0.005)
            with contextlib.suppress(TimeoutError):
                client.recv(65536)
    assert victim.grown() < 100 * MIB


@pytest.mark.parametrize(("key", "version"), [(0, 99), (3, -1), (999, 0), (-5, 0), (73, 0)])
def test_1_unknown_apis_and_versions(victim: Victim, key: int, version: int) -> None:
    victim.closes(framed(header(key, version)))
    victim.must_say("is not served")


def test_telemetry_is_not_served_where_it_is_off(victim: Victim) -> None:
    victim.closes(framed(header(71, 0, flexible=True) + bytes(16) + b"\0"))
    victim.must_say("GetTelemetrySubscriptions v0 is not served")


def test_1_api_versions_in_an_unknown_version_is_answered_in_v0(victim: Victim) -> None:
    with victim.connect() as client:
        client.sendall(framed(header(18, 99, flexible=True)))
        answer = client.recv(1 << 16)
        size, correlation, error, entries = struct.unpack_from(">iihi", answer)
        assert (size, correlation) == (len(answer) - 4, 1)
        assert error == ErrorCode.UNSUPPORTED_VERSION
        named = [struct.unpack_from(">hhh", answer, 14 + 6 * index) for index in range(entries)]
        assert (18, 0, 4) in named
        client.sendall(framed(header(18, 0)))  # the connection lives on
        assert client.recv(1 << 16)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_1_produce_below_v3_is_advertised_and_refused(victim: Victim, version: int) -> None:
    batch = memoryview(make_batch([(None, b"x", 1)]))
    data = [TopicProduceData(name=victim.topic, partition_data=[PartitionProduceData(0, batch)])]
    with RawClient(victim.port) as client:
        keys = {api.api_key: api for api in client.call(ApiVersionsRequest("tests", "1")).api_keys}
        assert keys[0].min_version == 0
        request = ProduceRequest(acks=1, timeout_ms=1_000, topic_data=data)
        (answer,) = client.call(request, version).responses[0].partition_responses
        assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION


def test_1_bytes_behind_a_request_are_ignored(victim: Victim) -> None:
    body = request_frame(APIS[ApiKey.METADATA], 12, 7, "x", MetadataRequest(topics=None))[4:]
    with victim.connect() as client:
        client.sendall(framed(body + b"more than there should be"))
        assert struct.unpack_from(">i", client.recv(1 << 20), 4) == (7,)


def test_1_unknown_tagged_fields_are_skipped(victim: Victim) -> None:
    body = bytearray(
        request_frame(APIS[ApiKey.METADATA], 12, 7, None, MetadataRequest(topics=None))[4:]
    )
    assert body[-1] == 0
    body[-1:] = b"\1\x63\3abc"  # one tagged field, number 99
    with victim.connect() as client:
        client.sendall(framed(bytes(body)))
        assert struct.unpack_from(">i", client.recv(1 << 20), 4) == (7,)
