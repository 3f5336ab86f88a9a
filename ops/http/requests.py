"""How many requests may be in the console at once: in all, and from an address.

Metrics and health are not counted: they are answered however busy the console is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MAX_REQUESTS = 192
MAX_REQUESTS_OF_ADDRESS = 128


class TooManyRequests(Exception):
    """So many are being answered that no further one is begun."""


class Requests:
    def __init__(
        self, most: int = MAX_REQUESTS, most_of_address: int = MAX_REQUESTS_OF_ADDRESS
    ) -> None:
        self._most = most
        self._most_of_address = most_of_address
        self._by_address: Counter[str] = Counter()

    @contextmanager
    def one(self, address: str) -> Iterator[None]:
        """Raises TooManyRequests."""
        own = self._by_address[address]
        if own >= self._most_of_address or self._by_address.total() >= self._most:
            raise TooManyRequests
        self._by_address[address] = own + 1
        try:
            yield
        finally:
            self._by_address[address] -= 1
            if not self._by_address[address]:
                del self._by_address[address]
