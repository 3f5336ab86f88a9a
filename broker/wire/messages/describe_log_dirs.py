"""DescribeLogDirs: API key 35, versions 1 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, F, Int16, Int32, Int64, Message, String


class DescribableLogDirTopic(Message):
    topic: String = ""
    partitions: list[Int32] = []


class DescribeLogDirsRequest(Message):
    topics: list[DescribableLogDirTopic] | None = []


class DescribeLogDirsPartition(Message):
    partition_index: Int32 = 0
    partition_size: Int64 = 0
    offset_lag: Int64 = 0
    is_future_key: Bool = False


class DescribeLogDirsTopic(Message):
    name: String = ""
    partitions: list[DescribeLogDirsPartition] = []


class DescribeLogDirsResult(Message):
    error_code: Int16 = 0
    log_dir: String = ""
    topics: list[DescribeLogDirsTopic] = []
    total_bytes: Annotated[Int64, F(since=4)] = -1
    usable_bytes: Annotated[Int64, F(since=4)] = -1
    is_cordoned: Annotated[Bool, F(since=5)] = False


class DescribeLogDirsResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Annotated[Int16, F(since=3)] = 0
    results: list[DescribeLogDirsResult] = []
