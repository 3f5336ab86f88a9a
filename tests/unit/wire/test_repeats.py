"""What a request cache finds is a pattern that the request really matches; it stays bounded."""

import struct

from hypothesis import given
from hypothesis import strategies as st

from moldau.broker.wire.repeats import (
    MAX_PATTERNS,
    MAX_PREFIX,
    MAX_PREFIX_LENGTHS,
    RequestCache,
    RequestPattern,
)

apis = st.sampled_from([struct.pack(">hh", 0, 9), struct.pack(">hh", 12, 4)])
texts = st.sampled_from([b"", b"a", b"ab", b"abc", b"b", b"ba"])
patterns = st.builds(RequestPattern, apis, texts, texts)


def frame(api: bytes, body: bytes, correlation_id: int = 7) -> bytes:
    return api + struct.pack(">i", correlation_id) + body


@given(patterns, apis, texts, texts, texts, st.integers(0, 1 << 30))
def test_a_pattern_matches_by_api_prefix_and_suffix(
    pattern: RequestPattern,
    api: bytes,
    start: bytes,
    middle: bytes,
    end: bytes,
    correlation_id: int,
) -> None:
    body = start + middle + end
    request = frame(api, body, correlation_id)
    expected = (
        api == pattern.api
        and len(body) >= len(pattern.prefix + pattern.suffix)
        and body.startswith(pattern.prefix)
        and body.endswith(pattern.suffix)
    )
    assert pattern.matches(request, 0, len(request)) == expected
    assert pattern.matches(bytearray(b"...." + request), 4, len(request)) == expected


@given(apis, texts, apis, texts, texts)
def test_a_prefix_is_not_looked_for_in_the_request_behind(
    api: bytes, prefix: bytes, sent: bytes, body: bytes, behind: bytes
) -> None:
    request = frame(sent, body)
    matches = RequestPattern(api, prefix).matches(b"...." + request + behind, 4, len(request))
    assert matches == (api == sent and body.startswith(prefix))


@given(st.lists(patterns, max_size=12), apis, texts, texts)
def test_what_is_found_matches_and_what_matches_is_found(
    added: list[RequestPattern], api: bytes, start: bytes, end: bytes
) -> None:
    cache: RequestCache[RequestPattern] = RequestCache()
    for pattern in added:
        cache.add(pattern)
    request = frame(api, start + end)
    for _ in range(2):  # found among all, then as the one found last
        found = cache.find(request, 0, len(request))
        kept = {(pattern.api, pattern.prefix): pattern for pattern in added}.values()
        matching = [each for each in kept if each.matches(request, 0, len(request))]
        assert found in matching if matching else found is None


def test_a_pattern_replaces_another_with_the_same_prefix() -> None:
    cache: RequestCache[RequestPattern] = RequestCache()
    first, second = RequestPattern(b"api.", b"abc", b"1"), RequestPattern(b"api.", b"abc", b"2")
    cache.add(first)
    cache.add(second)
    assert cache.find(b"api.7777abc 2", 0, 13) is second
    assert cache.find(b"api.7777abc 1", 0, 13) is None
    cache.clear()
    assert cache.find(b"api.7777abc 2", 0, 13) is None


def test_patterns_of_several_apis_with_the_same_prefix_are_kept() -> None:
    """Requests of one client about one group begin alike whatever their API is."""
    cache: RequestCache[RequestPattern] = RequestCache()
    heartbeat, commit = RequestPattern(b"beat", b"group"), RequestPattern(b"comm", b"group")
    cache.add(heartbeat)
    cache.add(commit)
    for data in (bytes, bytearray):
        assert cache.find(data(frame(b"beat", b"group 1")), 0, 15) is heartbeat
        assert cache.find(data(frame(b"comm", b"group 2")), 0, 15) is commit


def test_a_full_cache_keeps_what_it_has_and_finds_the_newest() -> None:
    cache: RequestCache[RequestPattern] = RequestCache()

    def add_and_find(prefix: bytes) -> None:
        cache.add(RequestPattern(b"api.", prefix))
        request = frame(b"api.", prefix)
        assert cache.find(request, 0, len(request)) is not None
        assert len(cache) <= MAX_PATTERNS

    for length in range(1, 2 * MAX_PREFIX_LENGTHS):
        add_and_find(b"x" * length)
        assert len(cache._prefix_ends) <= MAX_PREFIX_LENGTHS
    for number in range(2 * MAX_PATTERNS):
        add_and_find(b"%06d" % number)
    assert len(cache) == MAX_PATTERNS
    for number in range(MAX_PATTERNS - MAX_PREFIX_LENGTHS):
        assert cache.find(frame(b"api.", b"%06d" % number), 0, 14) is not None
    assert cache.find(frame(b"api.", b"%06d" % (2 * MAX_PATTERNS - 1)), 0, 14) is None
    cache.add(RequestPattern(b"api.", b"y" * (MAX_PREFIX + 1)))
    assert cache.find(frame(b"api.", b"y" * (MAX_PREFIX + 1)), 0, 8 + MAX_PREFIX + 1) is None
