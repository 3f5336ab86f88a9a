"""What can become of a store, each as a stage that a broker's store lives on.

    with STAGES["cut"](directory, program) as stage:
        broker = start_moldau(redis=stage.url)
        stage.prepare()               # what is written from here on can be lost
        stage.strike()                # it is gone, and the store is back, at the same address

"killed" and the planned failovers lose nothing.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar, Self

from tests.support.stores.lossy import LossyStore, StorePair

# Answers that were on their way when the store died reach their clients within this time.
DRAIN_S = 1.5


class Stage(ABC):
    loses: ClassVar[bool] = True

    @property
    @abstractmethod
    def url(self) -> str: ...

    @abstractmethod
    def __enter__(self) -> Self: ...

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...

    @abstractmethod
    def prepare(self) -> None:
        """What is written after this may be lost."""

    @abstractmethod
    def strike(self, while_down: Callable[[], None] = lambda: None) -> None:
        """The store goes down, `while_down` is called, the store comes back."""

    def recover(self) -> None:  # noqa: B027
        """Whatever it takes to strike again."""


class Killed(Stage):
    """kill -9, and a restart with the file as it was."""

    loses = False

    def __init__(self, directory: Path, program: str) -> None:
        self.store = LossyStore(directory / "store", program)

    @property
    def url(self) -> str:
        return self.store.url

    def __enter__(self) -> Self:
        self.store.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.store.kill()

    def prepare(self) -> None:
        pass

    def strike(self, while_down: Callable[[], None] = lambda: None) -> None:
        self.store.kill()
        time.sleep(DRAIN_S)
        while_down()
        self.spoil()
        self.store.start()

    def spoil(self) -> None:
        """What happens to its files."""


class Cut(Killed):
    """Its file is cut back to an earlier size."""

    loses = True
    _size = 0

    def prepare(self) -> None:
        self._size = self.store.size()

    def spoil(self) -> None:
        self.store.cut_to(self._size)


class Torn(Cut):
    """The same, in the middle of a command."""

    def spoil(self) -> None:
        self.store.cut_to(self._size + 7)


class Older(Killed):
    """An older copy of its files is put back."""

    loses = True
    _copy: Path

    def prepare(self) -> None:
        self._copy = self.store.copy()

    def spoil(self) -> None:
        self.store.put_back(self._copy)


class Paired(Stage):
    def __init__(self, directory: Path, program: str) -> None:
        self.pair = StorePair(directory, program)

    @property
    def url(self) -> str:
        return self.pair.url

    def __enter__(self) -> Self:
        self.pair.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.pair.__exit__()


class Lagging(Paired):
    """The master dies after its replica was cut off; the replica is promoted."""

    def prepare(self) -> None:
        self.pair.stop_replica(unlink=True)

    def strike(self, while_down: Callable[[], None] = lambda: None) -> None:
        self.pair.kill_master()
        time.sleep(DRAIN_S)
        while_down()
        self.pair.promote()

    def recover(self) -> None:
        self.pair.rejoin()


class Planned(Paired):
    """FAILOVER: the two change places; connections are cut, as by a change of address."""

    loses = False
    cut: ClassVar[bool] = True

    def prepare(self) -> None:
        pass

    def strike(self, while_down: Callable[[], None] = lambda: None) -> None:
        while_down()
        self.pair.fail_over(cut=self.cut)


class PlannedUncut(Planned):
    """The same, but connections stay with the former master, which is read-only now."""

    cut = False


STAGES: dict[str, Callable[[Path, str], Stage]] = {
    "killed": Killed,
    "cut": Cut,
    "torn": Torn,
    "older": Older,
    "lagging": Lagging,
    "planned": Planned,
    "planned-uncut": PlannedUncut,
}
LOSSY = ["cut", "torn", "older", "lagging"]
