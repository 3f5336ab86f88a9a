"""What programs import of Moldau: `from moldau import MoldauSource`.

The names are the interface; where they are defined is not. Each is imported when it is asked for,
so that `import moldau` needs neither Spark nor Arrow. The classes are pickled by the names of their
own modules, below `ops`: a Spark executor needs the same installation, and never this module.

This directory is installed as the top-level package `moldau` (see `packages.find` in
pyproject.toml): the repository's rooms keep their names, users do not have to know them.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ops.pipeline.lake.query import register_views
    from ops.pipeline.lake.tables import Lake
    from ops.pipeline.session import spark_session
    from ops.pipeline.source.data_source import MoldauSource

__all__ = ["Lake", "MoldauSource", "register_views", "spark_session"]

_MODULES = {
    "Lake": "ops.pipeline.lake.tables",
    "MoldauSource": "ops.pipeline.source.data_source",
    "register_views": "ops.pipeline.lake.query",
    "spark_session": "ops.pipeline.session",
}


if not TYPE_CHECKING:  # type checkers refuse a name that is not imported above

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
