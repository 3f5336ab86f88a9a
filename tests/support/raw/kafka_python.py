"""kafka-python as an oracle: its protocol classes and its builder of record batches.

Import it from here first: it reads its message definitions with a function that Python 3.11
deprecates, and warnings are errors in the tests.
"""

from __future__ import annotations

import importlib
import pkgutil
import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", r"\w+_text is deprecated", DeprecationWarning)
    import kafka.protocol
    from kafka.protocol.api_message import ApiMessage
    from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder

    for _module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if not _module.name.startswith(("kafka.protocol.old", "kafka.protocol.generate_stubs")):
            importlib.import_module(_module.name)

__all__ = ["PROTOCOL", "DefaultRecordBatch", "DefaultRecordBatchBuilder"]


def _message_classes() -> dict[tuple[int, str], Any]:
    found: dict[tuple[int, str], Any] = {}
    waiting = list(ApiMessage.__subclasses__())
    while waiting:
        message = waiting.pop()
        waiting += message.__subclasses__()
        if message._class_version is None:  # not the wrapper for one version
            found[message.API_KEY, message.type] = message
    return found


# (API key, "request" or "response") -> message class
PROTOCOL = _message_classes()
