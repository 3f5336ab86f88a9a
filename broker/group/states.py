"""The states of a classic group: what each answers (action) and what ends it (transition)."""

from __future__ import annotations

from enum import StrEnum


class GroupState(StrEnum):
    """By Kafka's names, as DescribeGroups and ListGroups send them.

    EMPTY: no members; lingers until its offsets have expired. Groups that only store offsets
    (simple consumers) are always Empty, and have no protocol type.

        action:     Join of a new member: it is added, or made pending [79]
                    Join with a member id that is not pending, Sync, Heartbeat: [25]
                    Leave: [25] per member, unless the member is pending
                    OffsetCommit: accepted with generation < 0, else [25]
                    OffsetFetch, OffsetDelete: allowed
                    DeleteGroups: removed from the store, then answered
        transition: a member was added            -> PreparingRebalance
                    DeleteGroups, expiry, unload  -> Dead

    PREPARING_REBALANCE: collects the Joins of all members.

        action:     Join: parked, of new and known members
                    Sync: [27]. Heartbeat: [27], and the session is renewed
                    Leave: the member is removed
                    OffsetCommit of the old generation: accepted, and the session is renewed
                    OffsetFetch: allowed. DeleteGroups: [68]
        transition: everyone waits and nobody is pending, or a timer fires (the initial delay of a
                    group that was Empty, else the rebalance timeout), and somebody joined
                                                  -> CompletingRebalance, generation + 1
                    the same, and nobody is left  -> Empty, generation + 1, stored
                    unload                        -> Dead

    COMPLETING_REBALANCE: waits for the leader's assignment.

        action:     Join with unchanged protocols: the current generation, at once
                    Sync: parked; the leader's assignments are stored first
                    Heartbeat: 0
                    OffsetCommit: [27]. OffsetFetch: allowed. DeleteGroups: [68]
        transition: the assignments are stored    -> Stable, parked Syncs get theirs
                    storing them failed           -> PreparingRebalance, parked Syncs get its error
                    Join of a new member, of a static member's new process, or with changed
                    protocols; Leave; session expiry; members that do not Sync within the
                    rebalance timeout             -> PreparingRebalance, parked Syncs get [27]
                    unload                        -> Dead

    STABLE: everybody has an assignment.

        action:     Join of a follower with unchanged protocols: the current generation, at once
                    Join of a static member's new process, voted protocol unchanged: its new
                    member id is stored, then the current generation
                    Sync: the assignment, at once. Heartbeat: 0
                    OffsetCommit of the current generation: accepted. OffsetFetch: allowed
                    DeleteGroups: [68]
        transition: Join of a new member, of the leader, or with changed protocols; Leave;
                    session expiry; members that did not Sync within the rebalance timeout
                                                  -> PreparingRebalance
                    unload                        -> Dead

    DEAD: deleted, being deleted, or given up.

        action:     everything: [15], so that the client looks for its coordinator again
        transition: none; a deletion that failed is tried again
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState) - {GroupState.DEAD},
}
"""From which states a state can be reached. Any other transition is a defect."""
