"""A Spark session for the pipeline, or an error that says why there is none."""

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

from moldau.ops.pipeline.errors import PipelineError
from moldau.ops.pipeline.source.data_source import MoldauSource

OLDEST_JAVA = 17
LOGGING = Path(__file__).with_name("log4j2.properties")
# A task has four attempts, as on a cluster: with `local[*]` it would have one.
DEFAULT_MASTER = "local[*,4]"
_SECRETS = "(?i)secret|password|passphrase|token|access[.]?key|jaas|private key|keystore[.]key"
_JAVA_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_GET_JAVA = (
    f"install a Java runtime of version {OLDEST_JAVA} or 21 (Debian: apt install "
    "openjdk-17-jre-headless) and, if it is not the first one on the PATH, set JAVA_HOME to it"
)


def check_java() -> None:
    """Spark itself would only report that its gateway did not start. Raises PipelineError."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    if java is None or not os.access(java, os.X_OK):
        where = f"JAVA_HOME={home} has no bin/java" if home else "there is no java on the PATH"
        raise PipelineError(f"Spark runs on Java, and {where}; {_GET_JAVA}")
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise PipelineError(f"{java} cannot be run: {error}; {_GET_JAVA}") from None
    found = _JAVA_VERSION.search(printed.stderr + printed.stdout)
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

    `plans_only`: Java only plans and Python does the work. Then Java's optimising compiler and
    Spark's code generation cost more than they gain: half of the time to the first batch, on two
    cores.
    """
    check_java()
    chosen = master or DEFAULT_MASTER
    if chosen.startswith("local"):
        # Python workers of this interpreter; on a cluster they are the cluster's.
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
        # Options whose name or value matches are not shown: Spark's own default, and PEM keys.
        .config("spark.redaction.regex", _SECRETS)
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
    """A session that is stopped at the end, even if its Java process has ended before."""
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
    """py4j logs every exception that it also raises."""
    return "py4j" not in record.pathname
