"""Reading forms, with the same limits wherever that is done."""

from __future__ import annotations

from starlette.datastructures import FormData
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request

MAX_FORM_BYTES = 8 << 20
MAX_FIELDS = 1_000


async def read_form(request: Request) -> FormData:
    """A field may take up the whole form. Raises HTTPException."""
    try:
        return await request.form(max_files=0, max_fields=MAX_FIELDS, max_part_size=MAX_FORM_BYTES)
    except ClientDisconnect:
        raise HTTPException(400, "the form did not arrive") from None
    except HTTPException as fault:
        raise HTTPException(400, f"the form cannot be read: {fault.detail}") from None
