"""The table of private APIs: its documentation, its keys, and the bytes of requests and answers."""

from __future__ import annotations

import re
from typing import Any

import pytest

from moldau.broker.metrics.document import Document
from moldau.broker.private import table
from moldau.broker.private.api import PrivateApi, answer_body, private_reply
from moldau.broker.private.stream_views import StreamsWanted, StreamView
from moldau.broker.private.table import (
    CONNECTION_LIMITS,
    ENDED_SESSIONS,
    METRICS,
    PREAMBLE,
    RECORD_COUNTS,
    RECORD_TIMES,
    STREAM_VIEWS,
    TABLE,
    VISIBLE_NAMES,
    WHO_AM_I,
    VisibleNames,
)
from moldau.broker.security.connection_limits import LimitsInForce
from moldau.broker.security.identity import EndedSessions, Identity
from moldau.broker.settings.processes import ConnectionLimits
from moldau.broker.wire.apis import lookup
from moldau.broker.wire.frame import LENGTH_SIZE, read_request_header

ALICE = Identity("User:alice", "10.0.0.7", "SASL_SSL")
LIMITS = LimitsInForce(ConnectionLimits(), {"b": 2.0, "a": 1.0})


def test_the_documented_table_lists_every_api() -> None:
    listed = re.findall(r"^\| (\d+) \| (\w+) \|", table.__doc__ or "", re.MULTILINE)
    assert listed == [
        (str(api.key), next(name for name, found in vars(table).items() if found is api))
        for api in TABLE
    ]


def test_keys_are_not_those_of_kafka() -> None:
    assert len({api.key for api in TABLE}) == len(TABLE)
    assert all(lookup(api.key, 0) is None for api in TABLE)


@pytest.mark.parametrize(
    ("api", "request_", "answer"),
    [
        (PREAMBLE, ALICE, None),
        (WHO_AM_I, None, ALICE),
        (METRICS, None, Document(is_ready=False)),
        (ENDED_SESSIONS, None, EndedSessions({"alice": 3}, frozenset({"id"}))),
        (RECORD_TIMES, [("t", 0, 7)], [1, -1, None]),
        (CONNECTION_LIMITS, None, LIMITS),
        (RECORD_COUNTS, [("t", 0, "g", 7)], [0, None]),
        (STREAM_VIEWS, StreamsWanted([b"k"]), [None, StreamView("stream", 3)]),
        (VISIBLE_NAMES, ALICE, VisibleNames(topics=["t"])),
    ],
    ids=repr,
)
def test_requests_and_answers_are_read_as_they_were_written(
    api: PrivateApi[Any, Any], request_: Any, answer: Any
) -> None:
    frame = api.request(request_)[LENGTH_SIZE:]
    header = read_request_header(frame)
    assert (header.api_key, header.api_version, header.client_id) == (api.key, 0, None)
    body = frame[header.body_at :]
    assert api.read_request(body) == request_
    assert bool(body) is (request_ is not None)
    assert api.answers == ("never" if answer is None else api.answers)
    if answer is not None:
        assert api.read_answer(answer_body(api.answer(answer))) == answer


def test_equal_limits_have_equal_bytes() -> None:
    """Routers are told of limits only when they change."""
    other = LimitsInForce(ConnectionLimits(), {"a": 1.0, "b": 2.0})
    assert CONNECTION_LIMITS.answer(LIMITS) == CONNECTION_LIMITS.answer(other)


def test_an_answer_that_is_news_carries_the_key_of_its_api() -> None:
    ended = EndedSessions({"alice": 3})
    body = answer_body(ENDED_SESSIONS.answer(ended))
    assert ENDED_SESSIONS.answer(ended) == private_reply(ENDED_SESSIONS.key, body)
    assert ENDED_SESSIONS.answer(ended, 9) == private_reply(9, body)
