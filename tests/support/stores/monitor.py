"""What a Redis server is asked to do, as MONITOR tells it.

with Monitor(url) as monitor:
    ...
monitor.commands("moldau:t:0")   # those that name the key, not what functions do inside
"""

import threading
import uuid
from typing import Any, Self

import redis


class Monitor:
    def __init__(self, url: str) -> None:
        self._url = url
        self._end = f"end-{uuid.uuid4().hex}"
        self._seen: list[str] = []
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        with redis.Redis.from_url(self._url) as client:
            client.echo(self._end)  # behind all that was done before
        self._thread.join(10)
        assert not self._thread.is_alive()

    def _listen(self) -> None:
        with redis.Redis.from_url(self._url) as client, client.monitor() as monitor:
            self._ready.set()
            for received in monitor.listen():
                command: Any = received
                if self._end in command["command"]:
                    return
                if command["client_type"] != "lua":
                    self._seen.append(command["command"])

    def commands(self, key: str) -> list[str]:
        """Those that name a key, in their order."""
        return [command for command in self._seen if key in command.split(" ")]
