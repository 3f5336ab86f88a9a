"""The states of groups by Kafka's names, as DescribeGroups and ListGroups send them."""

from __future__ import annotations

from enum import StrEnum


class GroupState(StrEnum):
    """`classic/states.py` says what each means for a classic group."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"
