"""The states of groups, under the names that DescribeGroups and ListGroups send."""

from __future__ import annotations

from enum import StrEnum


class GroupState(StrEnum):
    """`classic/states.py` explains the states of a classic group.

    A group of the consumer protocol is Empty; Assigning while its target is older than its epoch;
    Reconciling while a member has not reached the target; or Stable.
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
"""The states, of either protocol, in which members wait or do not have all their partitions yet."""
