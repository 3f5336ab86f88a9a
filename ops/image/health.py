#!/opt/moldau/bin/python -IS
"""The health of the broker in this container: exit code 0 when it is ready to serve clients.

Asks /readyz where MOLDAU_HTTP says, on the loopback address, and prints why it is not ready. Starts
every 10 seconds, so it imports nothing of Moldau.
"""

import os
import ssl
import sys
from urllib.error import HTTPError
from urllib.request import HTTPSHandler, ProxyHandler, build_opener

HTTPS = "https://"
TIMEOUT_S = 4.0  # the container's own is 5 s


def readiness(http: str) -> str | None:
    """Why the broker is not ready; None if it is."""
    address = http.removeprefix(HTTPS)
    host, _, port = address.rpartition(":")
    if host in ("0.0.0.0", "[::]", "::"):
        host = "127.0.0.1"
    scheme = "https" if http.startswith(HTTPS) else "http"
    # Its certificate is for the names that clients use.
    context = ssl._create_unverified_context()
    opener = build_opener(ProxyHandler({}), HTTPSHandler(context=context))
    try:
        with opener.open(f"{scheme}://{host}:{port}/readyz", timeout=TIMEOUT_S):
            return None
    except HTTPError as error:
        return error.read().decode("utf-8", "replace").strip() or f"/readyz says {error.code}"
    except OSError as error:
        return f"{scheme}://{host}:{port}/readyz: {error}"


if __name__ == "__main__":
    where = os.environ.get("MOLDAU_HTTP", "127.0.0.1:8092")
    if where == "off":
        sys.exit("there is no health to ask for with MOLDAU_HTTP=off: run without a health check")
    if (problem := readiness(where)) is not None:
        sys.exit(problem)
