"""The keys that sign tokens, read from a file and over HTTP."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from pathlib import Path

import pytest

from moldau.broker.access import signing_keys
from moldau.broker.access.signing_keys import KeySet
from moldau.broker.settings.sasl import TokenSettings
from tests.support.brokers.tokens import key_set, public_fields, rsa_key


def names(keys: KeySet) -> set[str | None]:
    return {key.key_id for key in keys.named(None)}


async def until(keys: KeySet, expected: set[str]) -> None:
    async with asyncio.timeout(20):
        while names(keys) != expected:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def test_keys_come_from_a_file_and_are_read_again(tmp_path: Path) -> None:
    file = tmp_path / "the keys.json"

    async def run() -> None:
        keys = KeySet(TokenSettings(keys_url=file.as_uri(), refresh_ms=20, retry_max_ms=20))
        following = asyncio.ensure_future(keys.run())
        await asyncio.sleep(0.05)
        assert names(keys) == set()  # there is no such file yet
        file.write_text(json.dumps(key_set()))
        await until(keys, {"rsa", "ec"})
        file.write_text("{}")  # what cannot be read replaces nothing
        await asyncio.sleep(0.1)
        assert names(keys) == {"rsa", "ec"}
        file.write_text(json.dumps({"keys": [public_fields(rsa_key(), "new")]}))
        await until(keys, {"new"})
        following.cancel()

    asyncio.run(run())


def test_a_key_that_is_not_known_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing_keys, "LOOK_AGAIN_S", 0.05)
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(key_set()))

    async def run() -> None:
        keys = KeySet(TokenSettings(keys_url=file.as_uri()))
        following = asyncio.ensure_future(keys.run())
        await until(keys, {"rsa", "ec"})
        file.write_text(json.dumps({"keys": [public_fields(rsa_key(), "new")]}))
        await asyncio.sleep(0.1)
        assert names(keys) == {"rsa", "ec"}  # the hour is not over
        assert keys.named("new") == []
        await until(keys, {"new"})
        following.cancel()

    asyncio.run(run())


def test_keys_come_over_http() -> None:
    body = json.dumps(key_set()).encode()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/keys" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"

        async def run() -> None:
            keys = KeySet(TokenSettings(keys_url=f"{address}/keys"))
            await keys.load()
            assert names(keys) == {"rsa", "ec"}
            with pytest.raises(OSError, match="404"):
                await KeySet(TokenSettings(keys_url=f"{address}/other")).load()

        asyncio.run(run())
        server.shutdown()


def test_a_document_without_end_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signing_keys, "MAX_BYTES", 1000)
    file = tmp_path / "keys.json"
    file.write_text(json.dumps(key_set()) + " " * 1000)
    with pytest.raises(ValueError, match="more than 1000 bytes"):
        asyncio.run(KeySet(TokenSettings(keys_url=file.as_uri())).load())
