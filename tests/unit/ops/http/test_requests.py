"""How many requests may be in the console at once."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from moldau.ops.http.app import Requests, TooManyRequests


def test_requests_are_limited_in_all_and_of_an_address() -> None:
    requests = Requests(most=3, most_of_address=2)
    with ExitStack() as first:
        first.enter_context(requests.one("a"))
        first.enter_context(requests.one("a"))
        with pytest.raises(TooManyRequests), requests.one("a"):
            pass
        with requests.one("b"), pytest.raises(TooManyRequests), requests.one("c"):
            pass
        with requests.one("c"):
            pass
    with requests.one("a"), requests.one("a"):
        pass
