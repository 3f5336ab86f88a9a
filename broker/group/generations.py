"""The numbers of generations and group epochs: all below 2^24.

librdkafka takes the first byte of a member epoch for the end of the member id before it: from 2^24
on that byte is not zero, and its requests become malformed. Kafka counts from 1 and never gets
there. Moldau counts from 1 as well. After the store has lost its tail it continues at the `lowest`
generation of the slot, which is above all numbers that members may have seen.
"""

from __future__ import annotations

LIMIT = 1 << 24
ORIGIN_S = 1_577_836_800  # 2020-01-01; the minutes since then stay below the limit until 2051


def following(generation: int, lowest: int, now_ms: int) -> int:
    """The number of the next generation, `lowest` or above. It is lower than this one only at and
    above the limit; earlier versions put generations there."""
    following = max(generation + 1, lowest)
    if following < LIMIT:
        return following
    return lowered(0 if lowest <= generation < LIMIT else lowest, now_ms)


def lowered(lowest: int, now_ms: int) -> int:
    """Where a group above the limit continues: the minutes since 2020 are above the numbers that it
    had before it got there, because it counted those from 1."""
    minutes = (now_ms // 1000 - ORIGIN_S) // 60
    return max(lowest if lowest < LIMIT else 0, minutes % LIMIT, 1)
