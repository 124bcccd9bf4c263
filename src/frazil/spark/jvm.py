"""The JVM under a session: how it is started, with which environment, and how it ends."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.errors import InterruptedByUser, SetupError
from frazil.settings import Settings
from frazil.spark.java import Java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SECONDS_TO_STOP = 10.0
_AWS_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")


def start_jvm(conf: dict[str, str], java: Java, settings: Settings, log: Path) -> Any:
    """Starts a JVM with this on its command line, and returns PySpark's gateway to it. What it prints is in the log."""
    from pyspark import SparkConf, java_gateway
    from pyspark.errors import PySparkRuntimeError

    started: list[subprocess.Popen[bytes]] = []

    def recording(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*args, **kwargs))
        return started[-1]

    original, java_gateway.Popen = java_gateway.Popen, recording
    try:
        with log.open("wb") as output, _environment(_jvm_environment(java, settings)):
            listed = SparkConf(loadDefaults=False).setAll(list(conf.items()))
            return java_gateway.launch_gateway(listed, popen_kwargs={"stdout": output, "stderr": subprocess.STDOUT})
    except BaseException as error:
        for process in started:  # one that was interrupted while it started would stay for ever
            process.kill()
            process.wait()
        if isinstance(error, PySparkRuntimeError):
            raise SetupError("the JVM did not start", cause=last_words(log), hint="frazil doctor") from error
        raise
    finally:
        java_gateway.Popen = original


@contextmanager
def ending(gateway: Any, patience: float = SECONDS_TO_STOP) -> Iterator[None]:
    """Ends the JVM when the block is left. Ctrl-C ends it at once, and comes out as such whatever it broke.

    PySpark's own handler would wait for running jobs in some calls, for hours; and its cleanups and py4j's raise errors
    of their own in place of the interrupt.
    """
    interrupted = False

    def end_now(_signal: int, _frame: object) -> None:
        nonlocal interrupted
        interrupted = True
        logging.disable(logging.CRITICAL)  # py4j logs the interrupted call as an error of its own
        _ignore_lost_updates()
        gateway.proc.terminate()
        raise KeyboardInterrupt

    in_main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGINT, end_now) if in_main else None
    try:
        yield
    except BaseException as error:
        _end(gateway, gently=not interrupted)
        if interrupted and not isinstance(error, (KeyboardInterrupt, InterruptedByUser)):
            raise KeyboardInterrupt from error
        raise
    else:
        _end(gateway, patience=patience)
    finally:
        logging.disable(logging.NOTSET)
        if in_main:
            signal.signal(signal.SIGINT, before)


def _ignore_lost_updates() -> None:
    """PySpark's server for accumulators prints the stack where a JVM ends in the middle of an update."""
    from pyspark import SparkContext

    server = getattr(SparkContext._active_spark_context, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda _request, _client: None


def _end(gateway: Any, *, gently: bool = True, patience: float = SECONDS_TO_STOP) -> None:
    """Ends the JVM, so that nothing is left and a later session can start anew in this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = gateway.proc
    if gently and process.poll() is None:
        # In a thread, because a JVM that hangs would never answer.
        stopping = threading.Thread(target=_stop_gently, args=(gateway,), name="frazil-spark-stop", daemon=True)
        stopping.start()
        stopping.join(patience)
    with suppress(OSError):
        process.stdin.close()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None


def _stop_gently(gateway: Any) -> None:
    from pyspark import SparkContext

    with suppress(Exception):  # a JVM that is ending has nothing left to stop
        SparkContext._active_spark_context.stop()
    with suppress(Exception):
        gateway.shutdown()


def lives(spark: SparkSession) -> bool:
    """Whether the session's JVM runs."""
    process = getattr(spark.sparkContext._gateway, "proc", None)
    return process is None or process.poll() is None


def end_at_once(patience: float = 2.0) -> None:
    """Ends the JVM of this process's session, from any thread, whatever runs in it."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    if process is None:
        return
    process.terminate()  # it removes its scratch files, if it still can
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()


def last_words(log: Path) -> str | None:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "Error" in line]
    found = telling or lines
    return found[-1] if found else None


def _jvm_environment(java: Java, settings: Settings) -> dict[str, str | None]:
    import pyspark

    local = settings.model.spark.master.startswith("local")
    return {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Workers are started with -m; without this they would import modules from the current folder.
        "PYTHONSAFEPATH": "1",
        # Another Spark on the machine would be started in place of the one these jars fit. Without a name PySpark
        # would look for one in `..` first, whoever has put it there.
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "SPARK_CONF_DIR": None,
        "PYSPARK_SUBMIT_ARGS": None,
        "SPARK_LOCAL_IP": "127.0.0.1" if local else None,
    } | _aws_environment(settings)


def _aws_environment(settings: Settings) -> dict[str, str | None]:
    """Keys and profile for what takes them from nowhere else: Iceberg's Glue client, and S3 by profile."""
    for name in settings.catalog_names():
        catalog = settings.catalog(name)
        s3 = catalog.s3
        if s3 is None:
            continue
        if s3.profile:
            return {"AWS_PROFILE": s3.profile, **dict.fromkeys(_AWS_KEYS)}  # keys in the environment would come first
        if catalog.kind == "glue" and s3.access_key and s3.secret_key:
            token = s3.session_token.get_secret_value() if s3.session_token else None
            return dict(zip(_AWS_KEYS, (s3.access_key, s3.secret_key.get_secret_value(), token), strict=True))
    return {}


@contextmanager
def _environment(changes: dict[str, str | None]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    _set_environment(changes)
    try:
        yield
    finally:
        _set_environment({name: before[name] for name in before if not name.startswith("PYSPARK_PYTHON")})


def _set_environment(changes: dict[str, str | None]) -> None:
    for name, value in changes.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
