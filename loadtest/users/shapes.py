"""The shapes of a load: how many users there are, as functions of the time.

steady  all of them, all the time (what -u and -r do by themselves)
ramp    from a tenth to all, in ten steps over two thirds of the time, then steady
spike   a fifth; all of them for a sixth of the time, in the middle; a fifth again
churn   alternately all and half of them, every ten seconds: connections come and go
"""

from __future__ import annotations

import math
from collections.abc import Callable

Shape = Callable[[float, float, int], int]  # seconds elapsed, seconds in all, users -> users now
CHURN_S = 10.0
DEFAULT_RUN_S = 60.0


def steady(elapsed: float, total: float, users: int) -> int:
    return users


def ramp(elapsed: float, total: float, users: int) -> int:
    steps = math.floor(elapsed / (total * 2 / 3) * 10) + 1
    return max(round(users * min(steps, 10) / 10), 1)


def spike(elapsed: float, total: float, users: int) -> int:
    at_peak = abs(elapsed - total / 2) < total / 12
    return users if at_peak else max(users // 5, 1)


def churn(elapsed: float, total: float, users: int) -> int:
    return users if int(elapsed // CHURN_S) % 2 == 0 else max(users // 2, 1)


SHAPES: dict[str, Shape] = {"steady": steady, "ramp": ramp, "spike": spike, "churn": churn}


def chosen_shape(arguments: list[str], variable: str | None) -> str | None:
    """The value of --shape, or else of the environment; None: only -u and -r count.

    Parsed by hand: locust has to know whether there is a shape before it reads options.
    """
    for at, word in enumerate(arguments):
        if word.startswith("--shape="):
            return word.partition("=")[2]
        if word == "--shape" and at + 1 < len(arguments):
            return arguments[at + 1]
    return variable or None
