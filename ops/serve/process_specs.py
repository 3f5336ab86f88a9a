"""How to start workers, routers and their spare: settings come on their standard input."""

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from moldau.broker.placement import slots_of
from moldau.broker.settings.kafka import BrokerConfig
from moldau.broker.settings.processes import LeaseSettings, ServeSettings
from moldau.broker.settings.static_config import connection_limits
from moldau.ops.serve.child_spec import ChildSpec
from moldau.ops.serve.listeners import Listeners

WORKER_ARGV: tuple[str, ...] = (sys.executable, "-m", "moldau.broker.worker")
ROUTER_ARGV: tuple[str, ...] = (sys.executable, "-m", "moldau.router.router")
SPARE_ARGV: tuple[str, ...] = (sys.executable, "-m", "moldau.ops.serve.spare_process")

# glibc returns freed memory above these sizes to the kernel, and would for every large entry.
MALLOC_ENV = {
    "MALLOC_TRIM_THRESHOLD_": str(256 << 20),
    "MALLOC_TOP_PAD_": str(16 << 20),
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
}
# Not the current directory: it may contain a package called `broker`.
_ENVIRONMENT = {**MALLOC_ENV, "PYTHONSAFEPATH": "1"}


def worker_specs(
    settings: ServeSettings,
    url: str,
    sockets: Sequence[Path],
    listeners: Listeners,
    store_files: tuple[str, str] | None = None,
    lease: LeaseSettings | None = None,
) -> list[ChildSpec]:
    """How to start the workers.

    Their settings, the store's password included, go to their standard input: command lines are
    visible to every user.
    """
    return [
        ChildSpec(
            role="worker",
            index=index,
            port=settings.worker_port(index),
            slots=tuple(slots_of(index, settings.workers)),
            argv=WORKER_ARGV,
            env=_ENVIRONMENT,
            stdin_line=msgspec.json.encode(
                settings.worker(
                    index,
                    redis_url=url,
                    sockets=listening,
                    worker_sockets=[str(each) for each in sockets],
                    store_files=store_files,
                    lease=lease,
                )
            ),
            ping=str(sockets[index]),
            pass_fds=tuple(listening.all),
        )
        for index, listening in enumerate(listeners.workers)
    ]


def router_specs(
    settings: ServeSettings,
    sockets: Sequence[Path],
    pinged: Sequence[Path],
    listeners: Listeners,
) -> list[ChildSpec]:
    """How to start the routers."""
    config = BrokerConfig(settings.broker)
    window = "quota.window.num", "quota.window.size.seconds"
    return [
        ChildSpec(
            role="router",
            index=index,
            port=settings.port,
            argv=ROUTER_ARGV,
            env=_ENVIRONMENT,
            stdin_line=msgspec.json.encode(
                settings.router(
                    index,
                    sockets=listening,
                    worker_sockets=[str(each) for each in sockets],
                    max_idle_ms=config.get_int("connections.max.idle.ms"),
                    connection_limits=connection_limits(config),
                    quota_windows=(config.get_int(window[0]), config.get_int(window[1])),
                )
            ),
            ping=str(path),
            pass_fds=tuple(listening.all),
        )
        for index, (path, listening) in enumerate(zip(pinged, listeners.routers, strict=True))
    ]


def spare_spec(listeners: Listeners) -> ChildSpec:
    """How to start the spare, which may become any worker or router."""
    descriptors = listeners.descriptors
    return ChildSpec(
        role="spare",
        index=0,
        argv=(*SPARE_ARGV, *map(str, descriptors)),
        env=_ENVIRONMENT,
        stdin_line=b"",  # comes later
        pass_fds=descriptors,
    )
