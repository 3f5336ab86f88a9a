"""Raw requests at the edges of the protocol: Moldau answers what Apache Kafka 4.3 answered."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.golden.cases import CASES
from tests.golden.harness import run, stored, without
from tests.support.brokers.running import Broker, running_broker
from tests.support.raw.client import RawClient


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with running_broker() as started:
        yield started


@pytest.mark.parametrize("name", CASES)
def test_the_answers_are_kafkas(name: str, broker: Broker) -> None:
    case = CASES[name]
    expected, answers = stored(name), run(case, lambda: RawClient(broker.port))
    assert len(answers) == len(expected) == len(case.steps)
    for step, (kafkas, ours) in enumerate(zip(expected, answers, strict=True)):
        if step in case.differs:
            assert ours != kafkas, f"step {step} does not differ any more"
        elif step in case.differs_in:
            assert ours != kafkas, f"step {step} does not differ any more"
            field, _ = case.differs_in[step]
            assert without(field, ours) == without(field, kafkas), f"step {step}"
        else:
            assert ours == kafkas, f"step {step}: {case.steps[step].request}"
