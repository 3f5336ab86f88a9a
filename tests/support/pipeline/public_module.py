"""What `from moldau import MoldauSource` must be in any installation of Moldau."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

# Prints where things are, and the class as Spark sends it to executors.
_IMPORT = """
import json, sys
import moldau
heavy = ("pyspark", "pyarrow", "numpy", "moldau.ops.pipeline")
heavy = [name for name in heavy if name in sys.modules]
from moldau import MoldauSource
from pyspark import cloudpickle
print(json.dumps({
    "files": [moldau.__file__, sys.modules[MoldauSource.__module__].__file__],
    "heavy": heavy,
    "pickled": cloudpickle.dumps(MoldauSource).hex(),
}))
"""
_UNPICKLE = """
import pickle
source = pickle.loads(bytes.fromhex({pickled!r}))
print(source.name())
"""


def check_public_module(python: str | Path, root: Path, directory: Path) -> None:
    """Imported by this Python, in this directory, it comes from below `root`.

    Importing it is light, and an executor can unpickle the class.
    """
    found = json.loads(_run(python, _IMPORT, directory))
    assert all(Path(file).is_relative_to(root) for file in found["files"])
    assert found["heavy"] == []
    assert _run(python, _UNPICKLE.format(**found), directory) == "moldau"


def _run(python: str | Path, program: str, directory: Path) -> str:
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [str(python), "-W", "error", "-c", program]
    done = subprocess.run(
        command, cwd=directory, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()
