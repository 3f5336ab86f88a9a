"""The states of groups by Kafka's names, as DescribeGroups and ListGroups send them."""

from __future__ import annotations

from enum import StrEnum


class GroupState(StrEnum):
    """`classic/states.py` says what each means for a classic group.

    A group of the consumer protocol is Empty; Assigning, while its target is behind its epoch;
    Reconciling, while a member is not there yet; or Stable.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


REBALANCING = frozenset(
    {GroupState.PREPARING_REBALANCE, GroupState.ASSIGNING, GroupState.RECONCILING}
)
"""In which members wait for something, or have not got all of it yet; of either protocol."""
