"""`simple` gives every partition to as many members as the others (KIP-932), and every member as
many partitions; it moves as few as possible.

With more members than partitions, a partition is shared: by ⌈members / partitions⌉ of them. With
different subscriptions each topic is divided among its subscribers, as if it were alone.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Final

from moldau.broker.group.assign.job import SLICE, Assignor, Steps, Table


def simple(table: Table) -> Steps:
    result: list[list[int]] = [[] for _ in table.seats]
    if table.is_uniform:
        yield from _divide(table, range(len(table.seats)), range(table.size), result)
        return result
    subscribers: list[list[int]] = [[] for _ in table.topics]
    done = 0
    for at, seat in enumerate(table.seats):
        for topic in table.subscription(seat):
            subscribers[topic].append(at)
            done += 1
        if done > SLICE:
            done = 0
            yield
    for first, facts, members in zip(table.first, table.topics, subscribers, strict=True):
        yield from _divide(table, members, range(first, first + facts.partitions), result)
    return result


def _divide(
    table: Table, members: list[int] | range, numbers: range, result: list[list[int]]
) -> Generator[None, None, None]:
    """Divide these partitions among these members, and add them to what they have."""
    if not members or not numbers:
        return
    sharing = -(-len(members) // len(numbers))
    quota, extra = divmod(sharing * len(numbers), len(members))
    room = dict.fromkeys(numbers, sharing)  # how many more members each partition is given to
    had: list[list[int]] = []
    done = 0
    for at in members:
        mine = [each for each in table.numbers(table.seats[at].target) if room.get(each)]
        size = quota
        if extra and len(mine) > quota:
            size, extra = quota + 1, extra - 1
        del mine[size:]
        for number in mine:
            room[number] -= 1
        had.append(mine)
        done += len(mine) + 4
        if done > SLICE:
            done = 0
            yield
    free = [number for number in numbers if room[number]]
    free.sort(key=room.__getitem__, reverse=True)  # those that nobody has come first
    yield
    # Nobody is given a partition twice: with one partition or none of several that are shared, or
    # with several that are not, a member lacks whatever is free.
    for mine in had:
        while len(mine) < quota:
            number = free[-1]
            mine.append(number)
            room[number] -= 1
            if not room[number]:
                free.pop()
            done += 1
            if done > SLICE:
                done = 0
                yield
    for mine in had:
        if len(mine) == quota and (found := _other(free, mine)) is not None:
            mine.append(found)
            room[found] -= 1
            if not room[found]:
                free.remove(found)
        done += 1
        if done > SLICE:
            done = 0
            yield
    for at, mine in zip(members, had, strict=True):
        result[at] += sorted(mine)


def _other(free: list[int], mine: list[int]) -> int | None:
    """Return a free partition that a member does not have."""
    if not free or free[-1] not in mine:
        return free[-1] if free else None
    return next((number for number in free if number not in mine), None)


SHARE_ASSIGNORS: Final[dict[str, Assignor]] = {"simple": simple}
"""The assignors by the names that `group.share.assignors` uses."""
