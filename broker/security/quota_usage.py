"""How much clients have used of their quotas, and how long they have to wait.

A worker has one `Usages`. It returns a `ClientUsage` for each user and client id; all connections
of the quota's entity share its rates. Times are in milliseconds.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from moldau.broker.security.quota_entities import (
    FETCH,
    MUTATION,
    PRODUCE,
    REQUEST,
    QuotaTable,
    Shared,
)
from moldau.broker.security.quota_rates import Rate, TokenBucket, Windows, in_reply

MAX_CLIENTS = 10_000  # clients whose limits are cached: any number of names can be made up
MAX_RATES = 20_000  # entities counted at a time: further ones under a default quota share one count
REST = Shared(None, None)

M = TypeVar("M", Rate, TokenBucket)


class Limited(Generic[M]):
    """A limit, and the rate that measures it."""

    __slots__ = ("limit", "meter")

    def __init__(self, meter: M, limit: float) -> None:
        self.meter: M = meter
        self.limit = limit


class ClientUsage:
    """The limits of one user with one client id. None means unlimited."""

    __slots__ = ("fetch", "mutations", "produce", "request")

    def __init__(
        self,
        produce: Limited[Rate] | None,
        fetch: Limited[Rate] | None,
        request: Limited[Rate] | None,
        mutations: Limited[TokenBucket] | None,
    ) -> None:
        self.produce = produce
        self.fetch = fetch
        self.request = request
        self.mutations = mutations

    # --- bytes ---

    def produced(self, size: int, now: float) -> int:
        """Count `size` received bytes. Returns how long to mute the client."""
        if self.produce is not None:
            self.produce.meter.record(size, now)
        return self.produce_wait(now)

    def produce_wait(self, now: float) -> int:
        produce = self.produce
        return 0 if produce is None else in_reply(produce.meter.throttle_ms(produce.limit, now))

    @property
    def fetch_room(self) -> int | None:
        """Return the maximum size of a reply, as a larger one could never be sent. None means no
        limit."""
        if self.fetch is None:
            return None
        windows = self.fetch.meter.windows
        return int(self.fetch.limit * max(windows.num - 1, 1) * windows.size_ms / 1000)

    def fetching(self, size: int, now: float) -> int:
        """Return how long the client would have to wait for a reply of `size` bytes. 0 means that
        it is sent, and counted. A single batch may exceed the windows: it is sent if nothing else
        was, or it could never be read."""
        fetch = self.fetch
        if fetch is None:
            return 0
        rate = fetch.meter
        is_first = rate.is_unused(now)
        rate.record(size, now)
        wait = in_reply(rate.throttle_ms(fetch.limit, now))
        if wait == 0 or is_first:
            return 0
        rate.record(-size, now)
        return wait

    def not_fetched(self, size: int, now: float) -> None:
        """Discount a reply that is not sent after all."""
        if self.fetch is not None:
            self.fetch.meter.record(-size, now)

    # --- time ---

    def was_busy(self, seconds: float, now: float) -> None:
        """Count time that the event loop spent on the client after its reply was made."""
        if self.request is not None:
            self.request.meter.record(seconds * 100, now)

    def busy(self, seconds: float, now: float) -> int:
        """Count time that the event loop spent on the client. Returns how long to mute it, one
        window at most."""
        request = self.request
        if request is None:
            return 0
        rate = request.meter
        rate.record(seconds * 100, now)
        return in_reply(min(rate.throttle_ms(request.limit, now), rate.windows.size_ms))

    # --- topics and partitions created and deleted ---

    def mutations_wait(self, now: float) -> int:
        """Return for how long no further partition may be created or deleted."""
        mutations = self.mutations
        if mutations is None:
            return 0
        return in_reply(mutations.meter.throttle_ms(mutations.limit, now))

    def mutated(self, partitions: int, now: float) -> int:
        mutations = self.mutations
        if mutations is None:
            return 0
        mutations.meter.record(partitions, mutations.limit, now)
        return in_reply(mutations.meter.throttle_ms(mutations.limit, now))


class Usages:
    def __init__(self, table: QuotaTable, windows: Windows, mutation_windows: Windows) -> None:
        self.table = table
        self._windows = windows
        self._mutation_windows = mutation_windows
        self._clients: dict[tuple[str, str], ClientUsage | None] = {}
        self.rates: dict[tuple[str, Shared], Rate] = {}
        self.buckets: dict[Shared, TokenBucket] = {}
        self.throttled_ms: dict[str, int] = {}  # by key, for as long as the process lives

    def throttled(self, key: str, wait: int) -> None:
        """Count a client that has to wait because of this quota."""
        self.throttled_ms[key] = self.throttled_ms.get(key, 0) + wait

    def use(self, table: QuotaTable) -> None:
        """Use other quotas. Earlier usage still counts."""
        self.table = table
        self._clients.clear()

    def of(self, user: str, client_id: str, now: float) -> ClientUsage | None:
        """Return the usage of this client, or None if no quota limits it."""
        client = (user, client_id)
        try:
            return self._clients[client]
        except KeyError:
            pass
        if len(self._clients) >= MAX_CLIENTS:
            self._clients.clear()
        found = self._clients[client] = self._look_up(user, client_id, now)
        return found

    def _look_up(self, user: str, client_id: str, now: float) -> ClientUsage | None:
        produce = self._limited(PRODUCE, user, client_id, now)
        fetch = self._limited(FETCH, user, client_id, now)
        request = self._limited(REQUEST, user, client_id, now)
        mutations = None
        limit = self.table.limit(MUTATION, user, client_id)
        if limit is not None:
            mutations = Limited(self._bucket(limit[1]), limit[0])
        if produce is None and fetch is None and request is None and mutations is None:
            return None
        return ClientUsage(produce, fetch, request, mutations)

    def _limited(self, key: str, user: str, client_id: str, now: float) -> Limited[Rate] | None:
        limit = self.table.limit(key, user, client_id)
        return None if limit is None else Limited(self.rate(key, limit[1], now), limit[0])

    def rate(self, key: str, shared: Shared, now: float) -> Rate:
        rate = self.rates.get((key, shared))
        if rate is None:
            if len(self.rates) >= MAX_RATES:
                self.forget_unused(now)
            if len(self.rates) >= MAX_RATES:
                shared = REST
            rate = self.rates.setdefault((key, shared), Rate(self._windows))
        return rate

    def _bucket(self, shared: Shared) -> TokenBucket:
        bucket = self.buckets.get(shared)
        if bucket is None:
            if len(self.buckets) >= MAX_RATES:
                shared = REST
            bucket = self.buckets.setdefault(shared, TokenBucket(self._mutation_windows))
        return bucket

    def forget_unused(self, now: float) -> None:
        """Drop entries that no longer count anything."""
        self._clients.clear()  # they refer to the rates
        self.rates = {key: rate for key, rate in self.rates.items() if not rate.is_unused(now)}
        self.buckets = {
            shared: bucket for shared, bucket in self.buckets.items() if not bucket.is_full(now)
        }
