"""`uniform` gives every member as many partitions as the others and moves as few as possible.

If all subscriptions are equal, the numbers of partitions differ by one at most. Otherwise no
partition is left that could move to a subscriber that has two fewer than its holder.
"""

from __future__ import annotations

from collections.abc import Generator

from moldau.broker.group.assign.job import SLICE, Steps, Table

FREE = -1


def uniform(table: Table) -> Steps:
    if table.is_uniform:
        return (yield from _equal(table))
    return (yield from _different(table))


def _equal(table: Table) -> Steps:
    seats = len(table.seats)
    if not seats:
        return []
    quota, extra = divmod(table.size, seats)
    taken = bytearray(table.size)
    result: list[list[int]] = []
    done = 0
    for seat in table.seats:
        mine = [number for number in table.numbers(seat.target) if not taken[number]]
        keep = quota
        if len(mine) > quota and extra:
            keep, extra = quota + 1, extra - 1
        del mine[keep:]
        for number in mine:
            taken[number] = 1
        result.append(mine)
        done += len(mine) + 4
        if done > SLICE:
            done = 0
            yield
    free = (number for number in range(table.size) if not taken[number])
    for mine in result:
        want = quota - len(mine)
        if want <= 0 and extra and len(mine) == quota:
            want, extra = 1, extra - 1
        elif want > 0 and extra:
            want, extra = want + 1, extra - 1
        for _ in range(want):
            mine.append(next(free))
        done += max(want, 0) + 1
        if done > SLICE:
            done = 0
            yield
    return result


def _different(table: Table) -> Steps:
    owner = [FREE] * table.size
    load = [0] * len(table.seats)
    subscribers: list[list[int]] = [[] for _ in table.topics]
    done = 0
    for at, seat in enumerate(table.seats):
        for topic in table.subscription(seat):
            subscribers[topic].append(at)
        mine = set(table.subscription(seat))
        for number in table.numbers(seat.target):
            if owner[number] == FREE and _topic_of(table, number) in mine:
                owner[number] = at
                load[at] += 1
        done += len(seat.target) + len(mine)
        if done > SLICE:
            done = 0
            yield
    # Start with the topics that have the fewest subscribers: the others can compensate.
    order = sorted(range(len(table.topics)), key=lambda topic: len(subscribers[topic]))
    for topic in order:
        yield from _place_free(table, topic, subscribers[topic], owner, load)
    moved = True
    while moved:
        moved = False
        for topic in order:
            if subscribers[topic] and _balance(table, topic, subscribers[topic], owner, load):
                moved = True
            yield
    result: list[list[int]] = [[] for _ in table.seats]
    for number, at in enumerate(owner):
        if at != FREE:
            result[at].append(number)
        if number % (4 * SLICE) == 0:
            yield
    return result


def _topic_of(table: Table, number: int) -> int:
    """Find the topic whose numbers include this one, by bisection."""
    low, high = 0, len(table.first) - 1
    while low < high:
        middle = (low + high + 1) // 2
        if table.first[middle] <= number:
            low = middle
        else:
            high = middle - 1
    return low


def _place_free(
    table: Table, topic: int, subscribers: list[int], owner: list[int], load: list[int]
) -> Generator[None, None, None]:
    first = table.first[topic]
    free = [n for n in range(first, first + table.topics[topic].partitions) if owner[n] == FREE]
    if not subscribers or not free:
        return
    # Fill up by levels: everyone with the fewest partitions gets one, then the next level.
    ranked = sorted(subscribers, key=load.__getitem__)
    yield
    at = 0
    while at < len(free):
        lowest = load[ranked[0]]
        level = [one for one in ranked if load[one] == lowest]
        for one in level[: len(free) - at]:
            owner[free[at]] = one
            load[one] += 1
            at += 1
        ranked.sort(key=load.__getitem__)  # nearly sorted: cheap
        yield


def _balance(
    table: Table, topic: int, subscribers: list[int], owner: list[int], load: list[int]
) -> bool:
    """Move partitions of this topic to subscribers that have two fewer. This terminates, since each
    move lowers the sum of squares."""
    first = table.first[topic]
    moved = False
    lowest = min(subscribers, key=load.__getitem__)
    for number in range(first, first + table.topics[topic].partitions):
        holder = owner[number]
        if holder != FREE and load[holder] >= load[lowest] + 2:
            owner[number] = lowest
            load[holder] -= 1
            load[lowest] += 1
            moved = True
            lowest = min(subscribers, key=load.__getitem__)
    return moved
