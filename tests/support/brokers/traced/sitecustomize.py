"""Python imports this at its start when `walks.py` has put its folder on the path.

A process of Moldau then notes which modules run, between one SIGUSR2 and the next: the first time
that a function of each module is called, by the clock that all processes share. Waiting counts as
nothing; what runs at import does not count.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

REPORTS = "WALKS_REPORTS"  # a directory
ROOT = "WALKS_ROOT"  # modules below it are ours

if REPORTS in os.environ:
    _reports, _root = Path(os.environ[REPORTS]), os.environ[ROOT]
    _is_tracing = False
    _touched: dict[str, int] = {}
    _seen: set[CodeType] = set()

    def _on_call(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and _is_tracing and code not in _seen:
            _seen.add(code)
            if code.co_filename.startswith(_root) and code.co_name != "<module>":
                _touched.setdefault(os.path.realpath(code.co_filename), time.monotonic_ns())

    def _toggle(*_: object) -> None:
        global _is_tracing
        _is_tracing = not _is_tracing
        if _is_tracing:
            _touched.clear()
            _seen.clear()
            _seen.add(_toggle.__code__)
            (_reports / f"{os.getpid()}.began").touch()
            sys.setprofile(_on_call)
        else:
            sys.setprofile(None)
            written = _reports / f"{os.getpid()}.part"
            written.write_text(json.dumps(_touched))
            written.rename(_reports / f"{os.getpid()}.json")

    threading.setprofile(_on_call)  # threads that begin later; the main one while it traces
    signal.signal(signal.SIGUSR2, _toggle)
