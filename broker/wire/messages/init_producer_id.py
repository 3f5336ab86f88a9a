"""InitProducerId: API key 22, versions 0 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, F, Int16, Int32, Int64, Message, String


class InitProducerIdRequest(Message):
    transactional_id: String | None = ""
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, F(since=3)] = -1
    producer_epoch: Annotated[Int16, F(since=3)] = -1
    enable2_pc: Annotated[Bool, F(since=6)] = False
    keep_prepared_txn: Annotated[Bool, F(since=6)] = False


class InitProducerIdResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
    ongoing_txn_producer_id: Annotated[Int64, F(since=6)] = -1
    ongoing_txn_producer_epoch: Annotated[Int16, F(since=6)] = -1
