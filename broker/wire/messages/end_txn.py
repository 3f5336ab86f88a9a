"""EndTxn: API key 26, versions 0 to 5."""

from __future__ import annotations

from typing import Annotated

from moldau.broker.wire.schema import Bool, F, Int16, Int32, Int64, Message, String


class EndTxnRequest(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    committed: Bool = False


class EndTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Annotated[Int64, F(since=5)] = -1
    producer_epoch: Annotated[Int16, F(since=5)] = -1
