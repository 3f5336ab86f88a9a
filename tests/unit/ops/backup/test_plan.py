"""What backups are called, which are removed, where restored logs go on."""

from __future__ import annotations

from moldau.ops.backup.plan import (
    backup_name,
    is_backup_name,
    native_time,
    offsets_margin,
    superfluous,
)

DAY_MS = 86_400_000


def test_names_sort_by_time_and_are_not_taken_twice() -> None:
    first = backup_name(1_795_000_000.9)
    assert first == "20261118T110640Z"
    assert backup_name(1_795_000_000.0, [first]) == f"{first}-2"
    assert backup_name(1_795_000_000.0, [first, f"{first}-2"]) == f"{first}-3"
    assert all(is_backup_name(name) for name in (first, f"{first}-2"))
    assert not any(is_backup_name(name) for name in ("monday", ".lock", f"{first}.old", ""))


def test_the_newest_stay() -> None:
    names = [f"2026111{day}T000000Z" for day in range(5)]
    assert superfluous([*reversed(names), "monday"], 2) == names[:3]
    assert superfluous(names, 5) == []
    same = ["20261118T000000Z", "20261118T000000Z-2", "20261118T000000Z-10"]
    assert superfluous(same, 1) == same[:2]


def test_the_margin_grows_with_the_age_of_the_backup() -> None:
    fresh = offsets_margin(DAY_MS, DAY_MS)
    assert fresh == 7 * 86_400 * 1_000_000
    assert offsets_margin(0, DAY_MS) == fresh + 86_400 * 1_000_000
    assert offsets_margin(DAY_MS, 0) == fresh, "a clock that went back takes nothing away"
    a_century = offsets_margin(0, 100 * 365 * DAY_MS)
    assert a_century < 1 << 53


def test_native_ids_go_on_above_both_clocks() -> None:
    assert native_time(1_000, 500_000) == 560_000
    assert native_time(500_000, 1_000) == 560_000
