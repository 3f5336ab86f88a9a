"""How many live views may be open: in all, as each has a thread, and by one browser."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

MAX_LIVE = 32
MAX_LIVE_OF_BROWSER = 4  # browsers open six connections to a host: two are left for pages


class TooManyLiveViews(Exception):
    """The text says what to do."""


class LiveViews:
    def __init__(self, most: int = MAX_LIVE, most_of_browser: int = MAX_LIVE_OF_BROWSER) -> None:
        self._most = most
        self._most_of_browser = most_of_browser
        self._by_browser: Counter[str] = Counter()

    def check(self, browser: str) -> None:
        """Raises TooManyLiveViews."""
        if self._by_browser[browser] >= self._most_of_browser:
            raise TooManyLiveViews(
                f"this browser has {self._most_of_browser} live views already: stop one of them"
            )
        if self._by_browser.total() >= self._most:
            raise TooManyLiveViews(
                f"there are {self._most} live views already: try again when others have stopped"
            )

    @contextmanager
    def one(self, browser: str) -> Iterator[None]:
        """Raises TooManyLiveViews."""
        self.check(browser)
        self._by_browser[browser] += 1
        try:
            yield
        finally:
            self._by_browser[browser] -= 1
            if not self._by_browser[browser]:
                del self._by_browser[browser]
