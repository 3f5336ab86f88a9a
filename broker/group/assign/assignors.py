"""The assignors by the names that clients and `group.consumer.assignors` use."""

from __future__ import annotations

from typing import Final

from moldau.broker.group.assign.job import Assignor
from moldau.broker.group.assign.ranges import ranges
from moldau.broker.group.assign.uniform import uniform

ASSIGNORS: Final[dict[str, Assignor]] = {"uniform": uniform, "range": ranges}
