"""URLs of stores, with and without Sentinel; and that no secret gets into a text."""

import pytest
from redis.asyncio.connection import SSLConnection, parse_url

from moldau.broker.store.store_url import Credentials, StoreUrl, mask


def test_a_url_of_one_server() -> None:
    url = StoreUrl("rediss://me:s3cret@db:7000/3?ssl_cert_reqs=none")
    assert url.sentinels == ()
    assert (url.address, url.database) == (("db", 7000), 3)
    assert url.credentials == Credentials("me", "s3cret")
    assert url.credentials.words == ("AUTH", "me", "s3cret")
    assert url.uses_tls
    assert url.tls_context() is not None


@pytest.mark.parametrize(
    "text",
    [
        "redis://",
        "redis://db",
        "redis://db:0/",
        "redis://[::1]:7000/12",
        "redis://me@db",
        "redis://:p%40ss%2Fw%25@db/1",
        "redis://me:one@db?password=two&username=three&host=other&port=9&db=4",
        "redis://?host=other&username=three&password=a%2Bb+c",
        "redis://db/0?db=5&db=6",
        "redis://db/three",
        "redis://db/%33",
        "rediss://me:s3cret@db:7000/3?ssl_cert_reqs=none",
        "unix:///tmp/store.sock",
        "unix:///tmp/a%20b.sock?db=2&password=x",
        "unix://me:s3cret@/tmp/store.sock?db=2",
    ],
)
def test_a_url_says_what_redis_py_reads_in_it(text: str) -> None:
    expected, url = parse_url(text), StoreUrl(text)
    host, port = expected.get("host", "localhost"), expected.get("port", 6379)
    assert url.address == (host, int(port))
    assert url.path == expected.get("path")
    assert url.database == expected.get("db", 0)
    assert url.credentials == Credentials(expected.get("username"), expected.get("password"))
    assert url.uses_tls == (expected.get("connection_class") is SSLConnection)


def test_sentinels() -> None:
    url = StoreUrl("redis+sentinel://:s%2Fcret@a:1,b,[::1]:3/main/2?socket_timeout=3")
    assert url.sentinels == (("a", 1), ("b", 26379), ("::1", 3))
    assert (url.master_name, url.database) == ("main", 2)
    assert url.credentials == url.sentinel_credentials == Credentials(None, "s/cret")
    assert url.credentials.words == ("AUTH", "s/cret")
    assert dict(parse_url(url.server_url))["socket_timeout"] == 3
    assert not url.uses_tls
    assert url.tls_context() is None
    secure = StoreUrl("rediss+sentinel://a:1/my%20main")
    assert (secure.master_name, secure.database, secure.uses_tls) == ("my main", 0, True)
    assert secure.credentials.words == ()


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", Credentials("me", "s3cret")),
        ("?sentinel_password=other", Credentials(None, "other")),
        ("?sentinel_username=watch&sentinel_password=other", Credentials("watch", "other")),
        ("?sentinel_password=", Credentials()),
    ],
)
def test_sentinels_have_the_same_password_unless_given(query: str, expected: Credentials) -> None:
    url = StoreUrl(f"redis+sentinel://me:s3cret@a:1/main{query}")
    assert url.sentinel_credentials == expected
    assert url.credentials == Credentials("me", "s3cret")
    assert "sentinel_password" not in url.server_url


@pytest.mark.parametrize(
    "url",
    [
        "redis+sentinel://a:1,b:2",
        "redis+sentinel://:s3cret@a:1/",
        "redis+sentinel:///main",
        "redis+sentinel://:s3cret@a:b/main",
        "redis+sentinel://:s3cret@a:1/main/three",
        "http://:s3cret@a",
    ],
)
def test_what_cannot_be_read(url: str) -> None:
    with pytest.raises(ValueError, match=r"^[^3]*$") as refusal:
        StoreUrl(url)
    assert "s3cret" not in str(refusal.value)


def test_no_secrets_in_texts() -> None:
    text = "redis+sentinel://me:s3cret@a:1,b:2/main/0?sentinel_password=other&x=1"
    assert mask(text) == "redis+sentinel://me:***@a:1,b:2/main/0?sentinel_password=***&x=1"
    url = StoreUrl(text)
    assert url.label == mask(text)
    assert url.without_secrets("AUTH s3cret, AUTH other") == "AUTH ***, AUTH ***"
