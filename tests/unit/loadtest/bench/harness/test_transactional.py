"""The requests of the transactions benchmark: a batch that is written over stays a valid one."""

from __future__ import annotations

import pytest

from moldau.broker.wire.batch import TRANSACTIONAL, checksum, read_header
from moldau.broker.wire.frame import LENGTH, read_request_header
from moldau.loadtest.bench.harness.transactional import PLAIN, V1, V2, Form, ProducerBatches


@pytest.mark.parametrize("form", [PLAIN, V1, V2], ids=lambda form: form.name)
def test_producer_and_sequence_are_written_over(form: Form) -> None:
    batches = ProducerBatches(form, "an-id", "topic", 3, 100)
    for producer in ((7, 0, 0), (1 << 40, 32_766, 5)):
        frame = batches.frame(*producer)
        assert LENGTH.unpack_from(frame) == (len(frame) - LENGTH.size,)
        header = read_request_header(frame[LENGTH.size :])
        assert header.api is not None
        codec = header.api.request_codec(header.api_version)
        request, _ = codec.decode(frame[LENGTH.size :], header.body_at)
        assert request.transactional_id == ("an-id" if form.is_transactional else None)
        (topic,) = request.topic_data
        (data,) = topic.partition_data
        assert (topic.name, data.index) == ("topic", 3)
        batch = bytes(data.records)
        found = read_header(batch)
        assert (found.producer_id, found.producer_epoch, found.base_sequence) == producer
        assert bool(found.attributes & TRANSACTIONAL) == form.is_transactional
        assert found.crc == checksum(batch)
