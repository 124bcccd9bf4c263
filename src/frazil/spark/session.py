"""The Spark session. Nothing else in Frazil starts a JVM."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from frazil.catalogs import prepare_embedded, probe, spark_conf
from frazil.errors import SetupError, UsageError, first_line
from frazil.settings import Settings
from frazil.spark.archive import archive_file, record_options, use_options
from frazil.spark.jars import cached_jars
from frazil.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = Path(__file__).with_name("log4j2.properties")
_SECONDS_TO_STOP = 10.0
_SECONDS_TO_RECORD = 300.0
#: What a JVM must know before it runs.
_AT_LAUNCH = ("spark.master", "spark.driver.", "spark.jars", "spark.submit.")


def session_conf(settings: Settings, jars: list[Path], scratch: Path, jvm_options: str = "") -> dict[str, str]:
    """Every Spark setting of a session: ours, then the catalogs', then the user's own, which win."""
    spark = settings.model.spark
    local = spark.master.startswith("local")
    listed = [str(jar) for jar in jars]
    conf = {
        "spark.master": spark.master,
        "spark.app.name": "frazil",
        "spark.driver.memory": spark.driver_memory,
        "spark.driver.maxResultSize": "512m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()} {jvm_options}",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.sql.extensions": "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.defaultCatalog": settings.model.catalog.name,
        "spark.sql.warehouse.dir": (scratch / "spark-warehouse").as_uri(),
        "spark.sql.shuffle.partitions": str(2 * (os.cpu_count() or 2)),
    }
    if local:
        # On the class path, not in spark.jars: those would be copied, 130 MB at each start.
        conf |= {"spark.driver.extraClassPath": os.pathsep.join(listed)}
        conf |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    else:
        conf |= {"spark.jars": ",".join(listed)}
    for name in settings.catalog_names():
        conf |= spark_conf(settings.catalog(name))
    return conf | spark.conf


def check_ready(settings: Settings) -> tuple[Java, list[Path]]:
    """Finds what a session needs, before anything is touched: Java, the jars, a master that answers."""
    java = find_java(settings.model.spark.java_home)
    jars = cached_jars(settings.model.cache)
    master = settings.model.spark.master
    if master.startswith("spark://"):
        probe(master.split(",")[0], settings.model.network.connect_timeout, what="spark.master")
    return java, jars


@contextmanager
def spark_session(settings: Settings, *, record_classes_to: Path | None = None) -> Iterator[SparkSession]:
    """A session with all catalogs of the settings; its JVM is gone when the block is left, also by Ctrl-C.

    Args:
        settings: the settings.
        record_classes_to: where the JVM writes its class archive when it ends (`frazil.spark.archive`).

    Raises:
        SetupError: there is no Java to run it, a jar is missing, or the JVM did not start (with its last words).
        IntegrityError: a jar is not what the lock says.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise UsageError("this process has a Spark session already", hint="hand that one on: Spark has one at a time")
    java, jars = check_ready(settings)
    for name in settings.catalog_names():
        if (catalog := settings.catalog(name)).kind == "sql":
            prepare_embedded(catalog)
    archive = record_classes_to or archive_file(settings.model.cache, java)
    options = record_options(archive) if record_classes_to else use_options(archive)
    with tempfile.TemporaryDirectory(prefix="frazil-spark-", ignore_cleanup_errors=True) as scratch:
        conf = session_conf(settings, jars, Path(scratch), options)
        gateway = _launch(conf, java, settings, Path(scratch) / "jvm.log")
        try:
            with _interruptible(gateway):
                yield SparkSession.builder.getOrCreate()
        except KeyboardInterrupt:
            _end(gateway, gently=False)
            raise
        except BaseException:
            _end(gateway)
            raise
        else:
            _end(gateway, patience=_SECONDS_TO_RECORD if record_classes_to else _SECONDS_TO_STOP)


@contextmanager
def _interruptible(gateway: Any) -> Iterator[None]:
    """Ctrl-C ends the JVM at once. PySpark's own handler would wait for running jobs in some calls, for hours."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end_now(_signal: int, _frame: object) -> None:
        logging.disable(logging.CRITICAL)  # py4j logs the interrupted call as an error of its own
        gateway.proc.terminate()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, end_now)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _launch(conf: dict[str, str], java: Java, settings: Settings, log: Path) -> Any:
    from pyspark import SparkConf

    # The rest, which may hold secrets, goes through the gateway: a command line can be read by everybody (`ps`).
    at_launch = SparkConf(loadDefaults=False).setAll([(k, v) for k, v in conf.items() if k.startswith(_AT_LAUNCH)])
    complete = SparkConf(loadDefaults=False).setAll(list(conf.items()))
    with log.open("wb") as output, _environment(_jvm_environment(java, settings)):
        gateway = _start_jvm(at_launch, output, log)
        try:
            with _interruptible(gateway):
                _start_context(complete, gateway)
        except BaseException as error:
            cause = _last_words(log) or _text(error)
            _end(gateway, gently=False)
            if was_interrupted(error):
                raise KeyboardInterrupt from error
            raise SetupError("Spark did not start", cause=cause, hint="frazil doctor") from error
    return gateway


def _start_jvm(conf: Any, output: IO[bytes], log: Path) -> Any:
    from pyspark import java_gateway
    from pyspark.errors import PySparkRuntimeError

    started: list[subprocess.Popen[bytes]] = []

    def recording(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        started.append(subprocess.Popen(*args, **kwargs))
        return started[-1]

    original, java_gateway.Popen = java_gateway.Popen, recording
    try:
        return java_gateway.launch_gateway(conf, popen_kwargs={"stdout": output, "stderr": subprocess.STDOUT})
    except BaseException as error:
        for process in started:  # one that was interrupted while it started would stay for ever
            process.kill()
            process.wait()
        if isinstance(error, PySparkRuntimeError):
            raise SetupError("the JVM did not start", cause=_last_words(log), hint="frazil doctor") from error
        raise
    finally:
        java_gateway.Popen = original


def _start_context(conf: Any, gateway: Any) -> None:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    # PySpark logs each failed statement with its whole stack, and py4j each lost connection; the errors say it better.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    ours = signal.getsignal(signal.SIGINT)
    SparkContext(conf=conf, gateway=gateway)
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, ours)  # the context has put its own in place
    SparkSession.builder.getOrCreate()


def was_interrupted(error: BaseException | None) -> bool:
    """Whether Ctrl-C is behind an error: cleanups of PySpark and py4j raise errors of their own in its place."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__context__
    return False


def _text(error: BaseException) -> str:
    try:
        return first_line(error)
    except Exception:  # noqa: BLE001 - an error of the JVM asks the JVM for its text, which may be gone
        return type(error).__name__


def _jvm_environment(java: Java, settings: Settings) -> dict[str, str | None]:
    local = settings.model.spark.master.startswith("local")
    return {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Another Spark on the machine would be started in place of the one these jars fit.
        "SPARK_HOME": None,
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
            return {"AWS_PROFILE": s3.profile}
        if catalog.kind == "glue" and s3.access_key and s3.secret_key:
            token = s3.session_token.get_secret_value() if s3.session_token else None
            secret = s3.secret_key.get_secret_value()
            return {"AWS_ACCESS_KEY_ID": s3.access_key, "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": token}
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


def _last_words(log: Path) -> str | None:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    telling = [line for line in lines if "Exception" in line or "Error" in line]
    found = telling or lines
    return found[-1] if found else None


def _end(gateway: Any, *, gently: bool = True, patience: float = _SECONDS_TO_STOP) -> None:
    """Ends the JVM, so that nothing is left and a later session can start anew in this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    process = gateway.proc
    if gently and process.poll() is None:
        with suppress(Exception):  # a JVM that is ending has nothing left to stop
            SparkContext._active_spark_context.stop()
        with suppress(Exception):
            gateway.shutdown()
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
