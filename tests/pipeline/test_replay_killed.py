"""A replay is killed in the middle: the same command sends the rest, no record twice."""

import pytest

from moldau.ops.client import LATEST, Cluster, TopicPartition, parse_address
from moldau.ops.pipeline.lake.tables import Lake
from tests.support.brokers.running import Broker, wait_until
from tests.support.pipeline.lake_rows import Row, add_rows
from tests.support.pipeline.process import PATIENCE_S, PipelineProcess
from tests.support.pipeline.spark import create_topic
from tests.support.pipeline.topic_rows import rows_in


def size_of(broker: Broker, topic: str, partitions: int) -> int:
    with Cluster([parse_address(broker.bootstrap)]) as cluster:
        ends = cluster.list_offsets({TopicPartition(topic, p): LATEST for p in range(partitions)})
    return sum(ends.values())


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["keep", pytest.param("hash", marks=pytest.mark.slow)])
def test_killed_in_the_middle(moldau: Broker, lake: Lake, mode: str) -> None:
    per_partition = 60_000
    rows = [
        Row(p, i, b"%d" % (i % 500), b"%d/%d" % (p, i) + b"." * 100, 1_750_000_000_000 + i, [])
        for p in range(3)
        for i in range(per_partition)
    ]
    add_rows(lake, "a", rows)
    total = len(rows)
    for attempt in range(3):  # it may be done before it is killed, if this process has to wait
        topic = f"replay-killed-{mode}-{attempt}"
        create_topic(moldau.bootstrap, topic, 3)
        words = ("--topic", "a", "--to", topic, "--partitions", mode)
        running = PipelineProcess(moldau, lake, "replay", *words)
        try:
            running.start()
            wait_until(
                lambda topic=topic: size_of(moldau, topic, 3) > 0,  # type: ignore[misc]
                PATIENCE_S,
                "the first records",
            )
            running.kill(workers=True)
            if size_of(moldau, topic, 3) == total:
                continue
            running.start()
            running.wait_done()
            break
        finally:
            running.end()
    else:
        pytest.fail("it was too quick to be killed in the middle, three times")
    found = rows_in(moldau, topic)
    values = [row.value for row in found]
    assert len(values) == total
    assert len(set(values)) == total
    if mode == "keep":
        assert [row[2:] for row in found] == [row[2:] for row in rows]
    else:
        for target in range(3):
            for partition in range(3):
                mine = [row for row in found if row.partition == target
                        and (row.value or b"").startswith(b"%d/" % partition)]  # fmt: skip
                stamps = [row.timestamp_ms for row in mine]
                assert stamps == sorted(stamps)
