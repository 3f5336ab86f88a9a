"""A filled template has the bytes that encoding the message would have."""

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.wire.apis import APIS, ApiKey
from moldau.broker.wire.frame import LENGTH_SIZE, request_frame, response_frame
from moldau.broker.wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from moldau.broker.wire.messages.produce import (
    PartitionProduceResponse,
    ProduceResponse,
    TopicProduceResponse,
)
from moldau.broker.wire.repeats import MARKS, ResponseTemplate

PRODUCE, HEARTBEAT = APIS[ApiKey.PRODUCE], APIS[ApiKey.HEARTBEAT]
int64s = st.integers(-(1 << 63), (1 << 63) - 1)
correlation_ids = st.integers(-(1 << 31), (1 << 31) - 1)


def produced(version: int, correlation_id: int, base_offset: int, append_time: int) -> bytes:
    partition = PartitionProduceResponse(3, 0, base_offset, append_time)
    message = ProduceResponse([TopicProduceResponse("orders", bytes(16), [partition])])
    return b"".join(response_frame(PRODUCE, version, correlation_id, message))


@given(st.sampled_from(range(PRODUCE.lowest, PRODUCE.highest + 1)), correlation_ids, int64s, int64s)
def test_values_are_filled_in(version: int, correlation_id: int, first: int, second: int) -> None:
    template = ResponseTemplate(produced(version, 0, MARKS[0], MARKS[1]), 2)
    filled = template.fill(correlation_id, first, second)
    assert filled == produced(version, correlation_id, first, second)


@given(st.sampled_from(range(HEARTBEAT.highest + 1)), correlation_ids, st.integers(0, 100))
def test_the_correlation_id_is_that_of_the_request(
    version: int, correlation_id: int, error: int
) -> None:
    def response(number: int) -> bytes:
        message = HeartbeatResponse(error_code=error)
        return b"".join(response_frame(HEARTBEAT, version, number, message))

    request = request_frame(HEARTBEAT, version, correlation_id, "c", HeartbeatRequest("g"))
    template = ResponseTemplate(response(0))
    assert template.answer(request[LENGTH_SIZE:]) == response(correlation_id)
    assert template.fill(correlation_id) == response(correlation_id)
