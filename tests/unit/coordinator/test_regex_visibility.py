"""Expressions stand for topics that their clients may describe."""

from moldau.broker.coordinator.groups.assignment_jobs import RegexVisibility
from moldau.broker.expressions import match_steps
from tests.support.drivers.consumer_driver import ConsumerDriver
from tests.support.drivers.group_world import completed


def test_8_24_an_expression_stands_for_what_its_client_may_see() -> None:
    sights = RegexVisibility()
    sights.note("g", "t.*", lambda name: name != "t2")
    may_see = sights.of_group("g", None)
    assert completed(match_steps(["t.*"], ["t1", "t2", "u"], may_see)) == {"t.*": {"t1"}}


def test_8_24_after_a_restart_it_stands_for_what_it_stood_for() -> None:
    g = ConsumerDriver(t1=1, u=1)
    g.heartbeat("a", pattern="t.*")
    may_see = RegexVisibility().of_group("g", g.consumers)
    assert completed(match_steps(["t.*"], ["t1", "t2"], may_see)) == {"t.*": {"t1"}}
