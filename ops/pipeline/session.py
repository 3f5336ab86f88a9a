"""A Spark session for the pipeline, or the reason why there is none."""

from __future__ import annotations

import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from ops.pipeline.errors import PipelineError
from ops.pipeline.source.data_source import MoldauSource

OLDEST_JAVA = 17
LOGGING = Path(__file__).with_name("log4j2.properties")
# A task is tried four times, as on a cluster: `local[*]` alone would give up at the first fault.
DEFAULT_MASTER = "local[*,4]"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_GET_JAVA = (
    f"install a Java runtime of version {OLDEST_JAVA} or 21 (Debian: apt install "
    "openjdk-17-jre-headless) and, if it is not the first one on the PATH, set JAVA_HOME to it"
)


def check_java() -> None:
    """Spark would only say that its gateway did not start. Raises PipelineError."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise PipelineError(f"Spark runs on Java, and {where}; {_GET_JAVA}")
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PipelineError(f"{java} cannot be run: {error}; {_GET_JAVA}") from None
    found = _JAVA_VERSION.search(told.stderr + told.stdout)
    if found is None:
        raise PipelineError(f"{java} does not print its version; {_GET_JAVA}")
    if int(found[1]) < OLDEST_JAVA:
        raise PipelineError(
            f"{java} is Java {found[1]}, Spark needs {OLDEST_JAVA} or newer; {_GET_JAVA}"
        )


def start_session(
    name: str, master: str | None = None, *, plans_only: bool = False
) -> SparkSession:
    """A session with the source registered. Raises PipelineError.

    `plans_only`: Java only plans, Python does the work. Then its optimising compiler, and Spark's,
    cost more than they gain: on two cores they are half of the time to the first batch.
    """
    check_java()
    chosen = master or DEFAULT_MASTER
    if chosen.startswith("local"):
        # Workers of the same Python as this one; on a cluster it is the cluster's.
        os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    java_options = [f"-Dlog4j2.configurationFile={LOGGING.as_uri()}"]
    if plans_only:
        java_options.append("-XX:TieredStopAtLevel=1")
    builder = (
        SparkSession.builder.appName(name)
        .master(chosen)
        .config("spark.driver.extraJavaOptions", " ".join(java_options))
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
    )
    if plans_only:
        builder = builder.config("spark.sql.codegen.wholeStage", "false").config(
            "spark.sql.codegen.factoryMode", "NO_CODEGEN"
        )
    try:
        session = builder.getOrCreate()
    except Exception as error:
        raise PipelineError(
            f"no Spark session on {chosen}: {error}; is the master's address right "
            "(--master), and is Java able to start here?"
        ) from error
    session.dataSource.register(MoldauSource)
    return session


@contextmanager
def spark_session(
    name: str, master: str | None = None, *, plans_only: bool = False
) -> Iterator[SparkSession]:
    """A session for the length of a command; what is left of it goes, even if Java is gone."""
    logging.basicConfig(format="%(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        handler.addFilter(_is_not_py4j)
    started = start_session(name, master, plans_only=plans_only)
    try:
        yield started
    finally:
        with suppress(Py4JError, OSError):
            started.stop()


def _is_not_py4j(record: logging.LogRecord) -> bool:
    """It logs every exception it raises, too."""
    return "py4j" not in record.pathname
