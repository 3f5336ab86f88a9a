"""What went wrong inside of Spark, in our words."""

from __future__ import annotations

import re

from ops.pipeline.errors import PipelineError

_OUR_ERROR = re.compile(r"^(?:\S+: )?ops\.(?:pipeline\.\w+|client)\.\w+: (.+)", re.MULTILINE)


def explained(error: Exception) -> PipelineError:
    """Errors of ours that tasks raised come back inside Spark's."""
    found = _OUR_ERROR.search(str(error))
    if found is not None:
        return PipelineError(found[1].strip())
    first_line = next(iter(str(error).strip().splitlines()), "")
    return PipelineError(f"Spark gave up: {first_line}; run it again, it goes on where it was")
