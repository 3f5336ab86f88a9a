"""Defects for a broker under test: Python imports this at the start of processes that have it on
their path.

While the file named by DEFECT exists, what its text names raises an exception in the middle of its
work, for groups whose id begins with "survivors". The product has no such hooks.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Defect(Exception):
    pass


def install(switch: Path) -> None:
    from moldau.broker.coordinator.groups import serialization
    from moldau.broker.group.assign.job import Job
    from moldau.broker.group.modern.group_data import ConsumerGroupData
    from moldau.broker.handlers import consumer_group_heartbeat

    def is_on(name: str) -> bool:
        return switch.exists() and switch.read_text() == name

    def breaks(owner: Any, method: str, name: str, concerns: Callable[..., bool]) -> None:
        whole = getattr(owner, method)

        def broken(*args: Any, **options: Any) -> Any:
            done = whole(*args, **options)  # half of a change is made, then it goes wrong
            if is_on(name) and concerns(*args):
                raise Defect(name)
            return done

        setattr(owner, method, broken)

    def is_survivors(group: Any, *_: Any) -> bool:
        return bool(group.group_id.startswith("survivors"))

    breaks(ConsumerGroupData, "enter", "machine", is_survivors)
    steps = Job.steps

    def broken_steps(job: Job) -> Any:
        found = yield from steps(job)
        if is_on("assignor") and is_survivors(job):
            raise Defect("assignor")
        return found

    setattr(Job, "steps", broken_steps)  # noqa: B010 (for mypy)
    breaks(Job, "steps", "computing", is_survivors)
    # Neither of these knows the group: its members' ids do not tell.
    breaks(serialization, "member_field", "encoding", lambda *_: True)
    breaks(consumer_group_heartbeat, "response", "answer", lambda told: told.assigned is not None)


if "DEFECT" in os.environ:
    install(Path(os.environ["DEFECT"]))
