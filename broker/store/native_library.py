"""The function library of native topics (`native_library.lua`): loading it and calling it.

Every worker loads the library of its own version when it first needs it. If the functions vanish
(FUNCTION FLUSH, a store that was replaced), the call that found them missing fails or is repeated,
and they are loaded again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from importlib.resources import files
from typing import Any

from moldau.broker.errors import StoreFault, StoreRefused
from moldau.broker.store.pipe import Pipe

logger = logging.getLogger("moldau.store")


def _is_unknown_function(fault: object) -> bool:
    return isinstance(fault, StoreRefused) and "Function not found" in str(fault)


class NativeLibrary:
    def __init__(self, control: Pipe) -> None:
        self._control = control
        self._reloading: asyncio.Task[None] | None = None  # a reference keeps the task alive
        self.is_loaded = False  # as far as is known

    async def ensure_loaded(self) -> None:
        """Load the functions, unless this worker has done so."""
        if not self.is_loaded:
            text = files("moldau.broker.store").joinpath("native_library.lua").read_text()
            await self._control.ask("FUNCTION", "LOAD", "REPLACE", text)
            self.is_loaded = True

    async def call(self, name: str, keys: Sequence[bytes], *words: bytes | str | int) -> Any:
        """Call a function (FCALL). If the functions are missing, load them and repeat once."""
        await self.ensure_loaded()
        try:
            return await self._control.ask("FCALL", name, len(keys), *keys, *words)
        except StoreRefused as fault:
            self.check(fault)
            if self.is_loaded:
                raise
        await self.ensure_loaded()
        return await self._control.ask("FCALL", name, len(keys), *keys, *words)

    def check(self, reply: Any) -> Any:
        """Pass on the reply of a function that was called over another pipe.

        If it says that the functions are missing, they are loaded for the calls that follow.
        """
        if _is_unknown_function(reply) and self.is_loaded:
            self.is_loaded = False
            self._reloading = asyncio.get_running_loop().create_task(self._reload())
        return reply

    async def _reload(self) -> None:
        try:
            await self.ensure_loaded()
        except StoreFault as fault:
            logger.warning("the functions of native topics cannot be loaded: %s", fault)
