"""`moldau` with workers that only keep the contract with the supervisor: see fake_worker.py."""

import os
import sys
from pathlib import Path

from moldau.ops.cli import main
from moldau.ops.serve import process_specs

if __name__ == "__main__":
    fake = Path(__file__).with_name("fake_worker.py")
    process_specs.WORKER_ARGV = (sys.executable, str(fake))
    os.environ["MOLDAU_SPARE_PROCESS"] = "false"  # it would become a real worker
    sys.exit(main())
