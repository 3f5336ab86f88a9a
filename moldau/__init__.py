"""What programs import of Moldau: `from moldau import MoldauSource`.

The names are the interface; where they are defined is not. Each is imported when it is asked for,
so that `import moldau` needs neither Spark nor Arrow. A Spark executor
needs the same installation: classes are pickled by the names of their own modules.

`moldau/broker`, `moldau/router`, `moldau/ops` and `moldau/loadtest` are links to the folders at the
top of the repository, so that everything has one import name, `moldau`, in a checkout as in an
installation.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from moldau.ops.pipeline.lake.query import register_views
    from moldau.ops.pipeline.lake.tables import Lake
    from moldau.ops.pipeline.session import spark_session
    from moldau.ops.pipeline.source.data_source import MoldauSource

__all__ = ["Lake", "MoldauSource", "register_views", "spark_session"]

_MODULES = {
    "Lake": "moldau.ops.pipeline.lake.tables",
    "MoldauSource": "moldau.ops.pipeline.source.data_source",
    "register_views": "moldau.ops.pipeline.lake.query",
    "spark_session": "moldau.ops.pipeline.session",
}


if not TYPE_CHECKING:  # type checkers refuse a name that is not imported above

    def __getattr__(name: str) -> Any:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(_MODULES[name]), name)
        return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
