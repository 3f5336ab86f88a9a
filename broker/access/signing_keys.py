"""The keys that sign tokens (OAUTHBEARER), read from a file or over HTTP in a thread.

They are read at start, regularly, and soon after a token names an unknown key. While they cannot be
read, the last keys remain in force.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import unquote, urlsplit

from moldau.broker.security.oauthbearer import SigningKey, read_key_set
from moldau.broker.settings.sasl import TokenSettings

logger = logging.getLogger("moldau.access")

MAX_BYTES = 1 << 20
TIMEOUT_S = 10.0
LOOK_AGAIN_S = 10.0  # for a key that is not known, at most once in this time


class KeySet:
    """Call `run` to read the keys."""

    def __init__(self, settings: TokenSettings) -> None:
        self._settings = settings
        self._keys: list[SigningKey] = []
        self._missing = asyncio.Event()

    def named(self, key_id: str | None) -> Sequence[SigningKey]:
        if key_id is None:
            return self._keys
        found = [key for key in self._keys if key.key_id == key_id]
        if not found:
            self._missing.set()
        return found

    async def load(self) -> None:
        """Raises OSError, ValueError."""
        document = await asyncio.to_thread(_read, self._settings.keys_url)
        self._keys = read_key_set(document)

    async def run(self) -> None:
        settings = self._settings
        failures = 0
        while True:
            try:
                await self.load()
            except (OSError, ValueError, RecursionError) as fault:
                failures += 1
                logger.critical(
                    "the keys that sign tokens cannot be read from %s: %s",
                    settings.keys_url,
                    fault,
                )
                wait_ms = min(settings.retry_ms << min(failures - 1, 20), settings.retry_max_ms)
                await asyncio.sleep(max(wait_ms, 10) / 1000)
                continue
            failures = 0
            self._missing.clear()
            before = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(settings.refresh_ms / 1000):
                    await self._missing.wait()
            except TimeoutError:
                continue
            waited = asyncio.get_running_loop().time() - before
            await asyncio.sleep(max(0.0, LOOK_AGAIN_S - waited))


def _read(url: str) -> object:
    parts = urlsplit(url)
    if parts.scheme == "file":
        with Path(unquote(parts.path)).open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    else:
        import urllib.request  # it takes long, and most brokers have no such keys

        with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
            data = response.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"more than {MAX_BYTES} bytes")
    return json.loads(data)
