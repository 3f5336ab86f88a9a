"""`python -m moldau.ops.serve.spare_process DESCRIPTOR…`: the process that spare.py starts.

The descriptors are the sockets of all workers and routers. The first line of standard input is the
role to take, the second one the settings; its end, that the supervisor is gone.
"""

import gc
import sys

from moldau.broker.process import run
from moldau.broker.settings.processes import RouterSettings, WorkerSettings
from moldau.broker.worker import Worker
from moldau.router.router import Router


def main() -> None:
    inherited = [int(word) for word in sys.argv[1:]]
    # Now, while there is time: the modules need no further collection when it serves.
    gc.collect()
    gc.freeze()
    role = sys.stdin.buffer.readline().strip()
    if role == b"worker":
        run("worker", WorkerSettings, Worker, inherited)
    elif role == b"router":
        run("router", RouterSettings, Router, inherited)


if __name__ == "__main__":
    main()
