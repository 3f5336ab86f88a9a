"""Is the broker alive, is it ready? Its processes' reports tell. Pure.

/livez    the HTTP process and the supervisor answer
/readyz   clients are served: every worker answers, reaches the store and has its lease, and a
          router answers; not of a standby
/healthz  the same with its facts, as JSON
"""

from __future__ import annotations

from typing import Any

from moldau.ops.http.snapshot import Snapshot


def problems(snapshot: Snapshot) -> list[str]:
    """Why clients may not be served; empty when they are."""
    found = []
    if snapshot.status is not None and snapshot.status.is_standby:
        lease = snapshot.status.lease
        holder = lease.holder if lease is not None else None
        return [f"standby: the store is served by {holder or 'another broker'}"]
    if snapshot.status is None:
        found.append("the supervisor does not answer")
    for index, document in enumerate(snapshot.workers):
        if document is None:
            found.append(f"worker {index} does not answer")
        elif not document.is_ready:
            found.append(f"worker {index} does not reach the store")
    if not any(snapshot.routers):
        found.append("no router answers")
    return found


def facts(snapshot: Snapshot) -> dict[str, Any]:
    """The document of /healthz."""
    status = snapshot.status
    found = problems(snapshot)
    return {
        "status": "unavailable" if found else "ok",
        "problems": found,
        "processes": [
            {
                "role": each.role,
                "index": each.index,
                "pid": each.pid,
                "state": each.state,
                "restarts": each.restarts,
                "uptime_s": each.uptime_s,
            }
            for each in (status.processes if status is not None else [])
        ],
        "store": status.store if status is not None else None,
        "lease": status.lease if status is not None else None,
    }
