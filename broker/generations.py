"""Generations and group epochs: all below 2^24.

librdkafka takes the first byte of a member epoch for the end of the member id before it: from 2^24
on that byte is not zero, and its requests become malformed. Kafka counts from 1 and never gets
there. Moldau counts from 1 too, but after a store has lost its tail it continues at a *floor*,
above all numbers that members may have seen.
"""

from __future__ import annotations

LIMIT = 1 << 24
ORIGIN_S = 1_577_836_800  # 2020-01-01; the minutes since then stay below the limit until 2051


def following(generation: int, floor: int, now_ms: int) -> int:
    """The next generation. It is lower than this one only at or above the limit, where earlier
    versions put generations."""
    following = max(generation + 1, floor)
    if following < LIMIT:
        return following
    return lowered(0 if floor <= generation < LIMIT else floor, now_ms)


def lowered(floor: int, now_ms: int) -> int:
    """Where a group at the limit continues: the minutes since 2020, which are above the numbers
    that it counted from 1."""
    minutes = (now_ms // 1000 - ORIGIN_S) // 60
    return max(floor if floor < LIMIT else 0, minutes % LIMIT, 1)
