"""Consumer groups, the classic protocol: a state machine without I/O, clock or asyncio.

`group.handle(event, now_ms)` returns effects, in the order in which they are to be run; the worker
runs them. Nothing here waits, logs, reads a clock or knows the store.

    events.py       what happens to a group           effects.py      what it wants done, answers
    states.py       the five states                   timers.py       timers are keyed values
    record.py       what is stored                    config.py       limits, and how ids are made
    members.py      who is in it, and their votes     writes.py       one write at a time
    core.py         what all transitions share        group.py        `Group`: dispatch, restore
    rebalance.py  join.py  sync.py  sessions.py  leave.py             the transitions
    coordinator.py  the groups of a worker: unknown, loading and foreign ones
    offsets.py      committed offsets                 commits.py      who may commit, delete, expire
    views.py        describe and list                 subscription.py the topics of a consumer
"""
