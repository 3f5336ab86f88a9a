"""One step of a member towards its target. A pure function; everything else follows from it.

    the member                                            becomes      epoch         is assigned
    has what it shall not have, and its owned list
      does not prove that it gave it up                   UNREVOKED    as it was     has ∩ target
    else waits for partitions that others have            UNRELEASED   target's      target - those
    else                                                  STABLE       target's      target

A partition has one holder at most: the member it is assigned to, or that has not given it back.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct

from broker.group.modern.members import Member, MemberState
from broker.group.topics import Place


class Step(Struct, frozen=True):
    state: MemberState
    epoch: int
    assigned: Mapping[Place, int]
    revoking: Mapping[Place, int]


def reconcile(
    member: Member,
    target_epoch: int,
    owned: AbstractSet[Place] | None,
    holder_of: Callable[[Place], Member | None],
    is_subscribed: Callable[[bytes], bool],
    *,
    unsubscribed: bool = False,
) -> Step | None:
    """The next step, or None: it stays as it is.

    `owned`: what the member says it has; None proves nothing. `unsubscribed`: the member has just
    changed its subscription, so it may have to give back what no target has taken from it yet.
    """
    if member.state is MemberState.STABLE and member.epoch == target_epoch and not unsubscribed:
        return None
    if member.state is MemberState.UNREVOKED and not _gave_up(owned, member.revoking):
        kept, lost = _split(member.assigned, lambda place: is_subscribed(place[0]))
        if not lost:
            return None
        return Step(MemberState.UNREVOKED, member.epoch, kept, {**member.revoking, **lost})
    wanted = [place for place in member.target if is_subscribed(place[0])]
    kept, lost = _split(member.assigned, frozenset(wanted).__contains__)
    if lost and not _gave_up(owned, lost):
        return Step(MemberState.UNREVOKED, member.epoch, kept, lost)
    assigned = dict(kept)
    state = MemberState.STABLE
    for place in wanted:
        if place in assigned:
            continue
        holder = holder_of(place)
        if holder is None or holder is member:
            assigned[place] = target_epoch
        else:
            state = MemberState.UNRELEASED
    return Step(state, target_epoch, assigned, {})


def _gave_up(owned: AbstractSet[Place] | None, lost: Mapping[Place, int]) -> bool:
    return owned is not None and owned.isdisjoint(lost)


def _split(
    assigned: Mapping[Place, int], keeps: Callable[[Place], bool]
) -> tuple[dict[Place, int], dict[Place, int]]:
    kept: dict[Place, int] = {}
    lost: dict[Place, int] = {}
    for place, epoch in assigned.items():
        (kept if keeps(place) else lost)[place] = epoch
    return kept, lost
