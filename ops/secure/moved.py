"""Settings of clients that name the broker's own CA, after the data directory has moved."""

from __future__ import annotations

import re
from pathlib import Path

SETTINGS = ("client.properties", "librdkafka.properties")
CA = "ca.pem"
# What secure/files.py writes. The path of another CA is the user's own.
_LOCATION = re.compile(rb"^(ssl\.(?:truststore|ca)\.location=).*/security/ca\.pem$", re.MULTILINE)


def moved_settings(content: bytes, directory: Path) -> bytes:
    """The settings for a `security` directory that is `directory` now."""
    path = bytes(directory.absolute() / CA)
    return _LOCATION.sub(lambda found: found[1] + path, content)
