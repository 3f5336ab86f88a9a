"""The states of a classic group: its answers in each (action) and what ends it (transition).

EMPTY: no members; kept until its offsets have expired. A group that only stores offsets (simple
consumers) is always Empty and has no protocol type.

    action:     Join of a new member: added, or pending with MEMBER_ID_REQUIRED
                Join with an id that is not pending, Sync, Heartbeat: UNKNOWN_MEMBER_ID
                Leave: UNKNOWN_MEMBER_ID per member, unless the member is pending
                OffsetCommit: accepted with generation < 0, else UNKNOWN_MEMBER_ID
                OffsetFetch, OffsetDelete: allowed
                DeleteGroups: removed from the store, then answered
    transition: a member was added            -> PreparingRebalance
                DeleteGroups, expiry, unload  -> Dead

PREPARING_REBALANCE: collects the Joins of all members.

    action:     Join: parked, of new and known members
                Sync: REBALANCE_IN_PROGRESS
                Heartbeat: REBALANCE_IN_PROGRESS, and the session is renewed
                Leave: the member is removed
                OffsetCommit of the old generation: accepted, and the session is renewed
                OffsetFetch: allowed. DeleteGroups: NON_EMPTY_GROUP
    transition: all members joined and none is pending, or a timer fired (the initial delay
                of a group that was Empty, else the rebalance timeout); then
                at least one joined           -> CompletingRebalance, generation + 1
                no member left                -> Empty, generation + 1, stored
                unload                        -> Dead

COMPLETING_REBALANCE: waits for the leader's assignments.

    action:     Join with unchanged protocols: the current generation, at once
                Sync: parked; the leader's assignments are stored first
                Heartbeat: NONE
                OffsetCommit: REBALANCE_IN_PROGRESS. TxnOffsetCommit: accepted
                OffsetFetch: allowed. DeleteGroups: NON_EMPTY_GROUP
    transition: the assignments are stored    -> Stable, parked Syncs get theirs
                storing them failed           -> PreparingRebalance, parked Syncs get the error
                Join of a new member, of a new process of a static member, or with changed
                protocols; Leave; session expiry; members that do not Sync within the
                rebalance timeout             -> PreparingRebalance, parked Syncs get
                                                 REBALANCE_IN_PROGRESS
                unload                        -> Dead

STABLE: every member has an assignment.

    action:     Join of a follower with unchanged protocols: the current generation, at once
                Join of a new process of a static member, chosen protocol unchanged: its new
                member id is stored, then the current generation
                Sync: the assignment, at once. Heartbeat: NONE
                OffsetCommit of the current generation: accepted. OffsetFetch: allowed
                DeleteGroups: NON_EMPTY_GROUP
    transition: Join of a new member, of the leader, or with changed protocols; Leave;
                session expiry; members that did not Sync within the rebalance timeout
                                              -> PreparingRebalance
                unload                        -> Dead

DEAD: deleted, being deleted, or unloaded.

    action:     every request: COORDINATOR_NOT_AVAILABLE, so that the client looks for its
                coordinator again
    transition: none; a deletion that failed is tried again
"""

from __future__ import annotations

from moldau.broker.group.states import GroupState

PREVIOUS: dict[GroupState, frozenset[GroupState]] = {
    GroupState.EMPTY: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.PREPARING_REBALANCE: frozenset(
        {GroupState.EMPTY, GroupState.COMPLETING_REBALANCE, GroupState.STABLE}
    ),
    GroupState.COMPLETING_REBALANCE: frozenset({GroupState.PREPARING_REBALANCE}),
    GroupState.STABLE: frozenset({GroupState.COMPLETING_REBALANCE}),
    GroupState.DEAD: frozenset(GroupState) - {GroupState.DEAD},
}
"""The states from which a state can be reached. Any other transition is a defect."""
