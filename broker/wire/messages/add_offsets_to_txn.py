"""AddOffsetsToTxn: API key 25, versions 0 to 4."""

from __future__ import annotations

from moldau.broker.wire.schema import Int16, Int32, Int64, Message, String


class AddOffsetsToTxnRequest(Message):
    transactional_id: String = ""
    producer_id: Int64 = 0
    producer_epoch: Int16 = 0
    group_id: String = ""


class AddOffsetsToTxnResponse(Message):
    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
