"""Records what a broker answers: `python -m tests.golden.record --bootstrap HOST:PORT`."""

from __future__ import annotations

import argparse

from tests.golden.cases import CASES
from tests.golden.harness import run, store
from tests.support.raw.client import RawClient


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bootstrap", required=True, help="a fresh Apache Kafka 4.3 broker")
    parser.add_argument("cases", nargs="*", default=list(CASES), help="all unless given")
    arguments = parser.parse_args()
    host, _, port = arguments.bootstrap.rpartition(":")
    for name in arguments.cases:
        store(name, run(CASES[name], lambda: RawClient(int(port), host, timeout=5)))
        print(name)


if __name__ == "__main__":
    main()
