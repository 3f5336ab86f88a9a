"""Reading forms, and the numbers that people write into forms and addresses.

Numbers are ASCII digits: `str.isdigit` accepts others, which `int` does not, and `int` refuses what
has thousands of digits.
"""

from __future__ import annotations

import re

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

from moldau.ops.client import ClientError

MAX_INT32, MAX_INT64 = (1 << 31) - 1, (1 << 63) - 1
MAX_FORM_BYTES = 8 << 20
MAX_FIELDS = 1_000
_DIGITS = re.compile(r"[0-9]{1,19}", re.ASCII)


class InvalidInput(ClientError):
    """A field of a form is invalid. The text says what is wanted."""


def parse_number(text: str, most: int = MAX_INT64) -> int | None:
    """None: not a whole number from 0 to `most`."""
    if not _DIGITS.fullmatch(text):
        return None
    number = int(text)
    return number if number <= most else None


def number_of(text: str, what: str, least: int = 0, most: int = MAX_INT64) -> int:
    """Raises InvalidInput."""
    number = parse_number(text.strip(), most)
    if number is None or number < least:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise InvalidInput(f"{what}: want a whole number from {least} to {most}, got {shown!r}")
    return number


async def read_form(request: Request) -> FormData:
    """A field may take up the whole form. Raises HTTPException."""
    try:
        return await request.form(max_files=0, max_fields=MAX_FIELDS, max_part_size=MAX_FORM_BYTES)
    except ClientDisconnect:
        raise HTTPException(400, "the form did not arrive") from None
    except HTTPException as fault:
        raise HTTPException(400, f"the form cannot be read: {fault.detail}") from None


async def check_confirmed(request: Request, name: str) -> None:
    """Whoever deletes something has to type its name. Raises ClientError."""
    if str((await read_form(request)).get("confirm", "")) != name:
        raise ClientError(f"not deleted: type the name, {name}, to confirm")
