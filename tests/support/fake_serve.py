"""`moldau` with workers that only keep the contract with the supervisor: see fake_worker.py."""

import sys
from pathlib import Path

import ops.serve.process_specs
from ops.cli import main

if __name__ == "__main__":
    fake = Path(__file__).with_name("fake_worker.py")
    ops.serve.process_specs.WORKER_ARGV = (sys.executable, str(fake))
    sys.exit(main())
