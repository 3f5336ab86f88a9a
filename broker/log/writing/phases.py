"""The phases of a partition's writer, and which may follow which. Pure."""

from __future__ import annotations

from enum import Enum, auto


class Phase(Enum):
    """What the writer of a log is doing. Only one thing at a time touches the state of the log."""

    UNLOADED = auto()  # nothing is known; the first use loads the log
    LOADING = auto()  # the snapshot and the entries after it are being read
    IDLE = auto()  # nothing to do
    GATHERING = auto()  # batches arrive until the event loop's turn ends
    RESERVING = auto()  # an entry waits until its offsets are reserved
    APPENDING = auto()  # an entry has been sent to the store
    RESOLVING = auto()  # its connection was lost: is it in the log?
    RECOVERING = auto()  # the same, and the store may have lost entries: the log is loaded first
    CATCHING_UP = auto()  # entries that other workers appended are being read
    GONE = auto()  # the topic was deleted

    successors: tuple[Phase, ...]


# What follows once nothing is in flight: catch up, append what is queued, or rest.
_GO_ON = (Phase.CATCHING_UP, Phase.APPENDING, Phase.IDLE)

TRANSITIONS: dict[Phase, tuple[Phase, ...]] = {
    Phase.UNLOADED: (Phase.LOADING,),
    Phase.LOADING: (*_GO_ON, Phase.UNLOADED),
    Phase.IDLE: (Phase.GATHERING, Phase.CATCHING_UP, Phase.LOADING, Phase.UNLOADED),
    Phase.GATHERING: (Phase.APPENDING, Phase.CATCHING_UP, Phase.LOADING),
    Phase.RESERVING: (*_GO_ON, Phase.LOADING, Phase.RECOVERING),
    Phase.APPENDING: (*_GO_ON, Phase.RESERVING, Phase.RESOLVING, Phase.RECOVERING),
    Phase.RESOLVING: (*_GO_ON, Phase.RECOVERING),
    Phase.RECOVERING: _GO_ON,
    Phase.CATCHING_UP: (*_GO_ON, Phase.LOADING, Phase.UNLOADED),
    Phase.GONE: (),
}
# A topic can be deleted at any time. A tuple on the phase itself: an append makes three moves, and
# hashing a member of an Enum costs more than the comparisons.
for _phase, _successors in TRANSITIONS.items():
    _phase.successors = _successors if _phase is Phase.GONE else (*_successors, Phase.GONE)

NOT_LOADED = (Phase.UNLOADED, Phase.LOADING, Phase.RECOVERING, Phase.GONE)
