"""`range` gives each topic's partitions out in contiguous runs, static members first.

Members with the same subscription get the same partition numbers of topics that have equally many
partitions, which joining such topics requires. Earlier assignments play no part.
"""

from __future__ import annotations

from moldau.broker.group.assign.job import SLICE, Steps, Table


def ranges(table: Table) -> Steps:
    seats = table.seats
    # Static members are sorted by instance id, so they keep their runs when they restart.
    order = sorted(
        range(len(seats)),
        key=lambda at: (
            seats[at].instance_id is None,
            seats[at].instance_id or "",
            seats[at].member_id,
        ),
    )
    subscribers: list[list[int]] = [[] for _ in table.topics]
    done = 0
    for at in order:
        for topic in table.subscription(seats[at]):
            subscribers[topic].append(at)
            done += 1
        if done > SLICE:
            done = 0
            yield
    result: list[list[int]] = [[] for _ in seats]
    for topic, facts in enumerate(table.topics):
        if not subscribers[topic]:
            continue
        number = table.first[topic]
        quota, extra = divmod(facts.partitions, len(subscribers[topic]))
        for rank, at in enumerate(subscribers[topic]):
            size = quota + (rank < extra)
            result[at].extend(range(number, number + size))
            number += size
            done += 1
            if done > SLICE:
                done = 0
                yield
    return result
