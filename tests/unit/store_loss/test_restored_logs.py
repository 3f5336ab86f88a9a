"""Where a restored log goes on."""

from __future__ import annotations

import msgspec
import pytest

from moldau.broker.store.streams import CleanPart
from moldau.broker.store_loss.restored_logs import next_epoch


@pytest.mark.parametrize(
    ("state", "end", "epochs"),
    [
        ({b"start": b"0"}, 0, b"10:100:0"),
        ({b"start": b"0"}, 30, b"10:130:30"),
        ({b"start": b"0", b"r:0": b"50", b"c:0": b"40", b"r:1": b"70"}, 30, b"10:170:30"),
        ({b"start": b"0", b"floor": b"90", b"floor_epoch": b"4", b"r:1": b"70"}, 30, b"14:190:30"),
        ({b"start": b"45"}, 0, b"10:145:45"),
        ({b"start": b"0", b"epochs": b"1:60:30"}, 80, b"1:60:30 11:180:80"),
        ({b"start": b"0", b"epochs": b"1:60:30"}, 30, b"1:60:30 11:160:60"),
        ({b"start": b"70", b"epochs": b"1:60:30 2:65:62"}, 80, b"2:65:62 12:180:80"),
    ],
)
def test_it_goes_on_above_all_that_is_known(
    state: dict[bytes, bytes], end: int, epochs: bytes
) -> None:
    assert next_epoch(state, end, offsets=100, epochs=10).text == epochs


def test_the_cleaned_part_counts() -> None:
    clean = msgspec.msgpack.encode(CleanPart(generation=1, end=55))
    found = next_epoch({b"start": b"0", b"clean": clean}, 0, offsets=100, epochs=10)
    assert found.text == b"10:155:55"
