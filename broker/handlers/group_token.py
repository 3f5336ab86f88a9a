"""What a request to a group leaves there: it is called with the answer, at once or later."""

from __future__ import annotations

from moldau.broker.server.call import Call


class GroupReplyHandle:
    """Those of the single APIs add `answered`."""

    __slots__ = ("_call",)

    def __init__(self, call: Call) -> None:
        self._call = call

    def failed(self) -> None:
        """No reply could be made: the client asks again, on another connection."""
        self._call.connection.abort()
