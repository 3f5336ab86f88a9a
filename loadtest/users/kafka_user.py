"""The base class of all users: a session, a schedule, and how results are reported."""

from __future__ import annotations

import itertools
import os
import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

from locust import User, task
from locust.env import Environment

from moldau.loadtest.users.client.schedule import Schedule
from moldau.loadtest.users.client.session import REQUEST_ERRORS, RETRY_S, Session
from moldau.loadtest.users.options import DEFAULT_HOST, bootstrap_of, security_of
from moldau.loadtest.users.violations import add_violation

CHECK = "check"  # the request type of violations in locust's statistics
PID_STRIDE = 7919  # so that the users of several processes do not all begin with partition 0

# Of each class by itself: users are started class by class in turn, and would all get the same
# partition if there were as many classes as partitions.
_numbers: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


class KafkaUser(User):
    abstract = True
    host = os.environ.get("MOLDAU_BOOTSTRAP", DEFAULT_HOST)

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "." not in cls.__module__:  # locust executes modules under their bare names as well
            cls.abstract = True

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self.options = self._options(environment)
        self.number = next(_numbers[type(self).__name__]) + os.getpid() * PID_STRIDE
        client_id = f"load-{type(self).__name__}"
        security = security_of(self.options.command_config)
        self.session = Session(bootstrap_of(environment), client_id, self.report, security)
        self.schedule = Schedule(self.options.rate)
        self.partitions: list[int] = []

    @staticmethod
    def _options(environment: Environment) -> Any:
        return environment.parsed_options

    @property
    def topic(self) -> str:
        name: str = self.options.topic
        return name

    # --- life of a user ---

    def on_start(self) -> None:
        """Wait until the topic exists."""
        while not self.partitions:
            try:
                self.partitions = self.session.partitions(self.topic)
            except REQUEST_ERRORS:
                time.sleep(RETRY_S)

    @task
    def turn(self) -> None:
        """One step. A request that failed is in the statistics already."""
        try:
            self.step()
        except REQUEST_ERRORS:
            self.session.forget_brokers()
            time.sleep(RETRY_S)

    def step(self) -> None:
        raise NotImplementedError

    def on_stop(self) -> None:
        self.session.close()

    def next_partition(self) -> int:
        """The partitions in turn, beginning with another one for each user."""
        self.number += 1
        return self.partitions[self.number % len(self.partitions)]

    # --- reporting ---

    def report(self, api: str, seconds: float, size: int, error: Exception | None) -> None:
        """One request, for locust's statistics."""
        self.environment.events.request.fire(
            request_type=type(self).__name__,
            name=api,
            response_time=seconds * 1000,
            response_length=size,
            exception=error,
            context={},
        )

    def report_violations(self, violations: list[str]) -> None:
        for violation in violations:
            if not add_violation(violation):
                return
            self.environment.events.request.fire(
                request_type=CHECK,
                name=type(self).__name__,
                response_time=0,
                response_length=0,
                exception=AssertionError(violation),
                context={},
            )
