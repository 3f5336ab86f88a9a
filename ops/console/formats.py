"""How values look to people: sizes, durations, bytes of records. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

SHOWN_BYTES = 16 << 10  # of a value; the rest is said to be there


def size_text(size: float) -> str:
    for unit in ("B", "KB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def count_text(count: float) -> str:
    return f"{count:,.0f}"


def rate_text(rate: float) -> str:
    return f"{rate:,.0f}/s" if rate >= 10 or rate == 0 else f"{rate:.1f}/s"


def duration_text(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def time_text(milliseconds: int) -> str:
    """ISO 8601 in UTC; the browser shows it in its own zone (console.js)."""
    try:
        at = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


# --- bytes ---

FORMATS = ("auto", "text", "json", "msgpack", "hex")


def shown_bytes(data: bytes | None, how: str = "auto") -> tuple[str, str]:
    """Bytes as text, and the format that was used; `auto` takes the first that fits."""
    if data is None:
        return "", "null"
    cut = data[:SHOWN_BYTES]
    for name in ("json", "text", "hex") if how == "auto" else (how, "hex"):
        text = _as(name, data if name != "hex" else cut)
        if text is not None:
            more = len(data) - len(cut)
            shown = text[:SHOWN_BYTES]
            if len(text) > len(shown) or (name == "hex" and more):
                shown += f"\n… {size_text(len(data))} in all"
            return shown, name
    return "", "null"


def _as(name: str, data: bytes) -> str | None:
    try:
        if name == "json":
            found = json.loads(data)
            if not isinstance(found, dict | list):
                return None
            return json.dumps(found, indent=2, ensure_ascii=False)
        if name == "msgpack":
            return json.dumps(msgspec.to_builtins(msgspec.msgpack.decode(data)), indent=2,
                              ensure_ascii=False, default=repr)  # fmt: skip
        if name == "text":
            text = data.decode()
            return text if text.isprintable() or all(_is_plain(each) for each in text) else None
    except (ValueError, RecursionError, TypeError):
        return None
    return hex_dump(data)


def _is_plain(character: str) -> bool:
    return character.isprintable() or character in "\n\r\t"


def hex_dump(data: bytes) -> str:
    lines = []
    for at in range(0, len(data), 16):
        row = data[at : at + 16]
        text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        lines.append(f"{at:08x}  {row.hex(' '):<47}  {text}")
    return "\n".join(lines)


# --- charts ---


def sparkline(values: Sequence[float], width: int = 160, height: int = 32) -> str:
    """The points of an SVG polyline, the largest value at the top."""
    if len(values) < 2:
        return ""
    top = max(values) or 1.0
    step = width / (len(values) - 1)
    return " ".join(
        f"{at * step:.1f},{height - 1 - value / top * (height - 2):.1f}"
        for at, value in enumerate(values)
    )
