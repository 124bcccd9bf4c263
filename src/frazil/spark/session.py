"""The Spark session. Nothing else in Frazil starts a JVM."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.catalogs import spark_conf
from frazil.errors import SetupError
from frazil.settings import Settings
from frazil.spark.jars import cached_jars
from frazil.spark.java import Java, find_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = Path(__file__).with_name("log4j2.properties")
_SECONDS_TO_STOP = 10


def session_conf(settings: Settings, jars: list[Path], scratch: Path) -> dict[str, str]:
    """Every Spark setting of a session: ours, then the catalogs', then the user's own, which win."""
    spark = settings.model.spark
    local = spark.master.startswith("local")
    listed = [str(jar) for jar in jars]
    conf = {
        "spark.master": spark.master,
        "spark.app.name": "frazil",
        "spark.driver.memory": spark.driver_memory,
        "spark.driver.maxResultSize": "512m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}",
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


@contextmanager
def spark_session(settings: Settings) -> Iterator[SparkSession]:
    """A session with all catalogs of the settings; its JVM is gone when the block is left, also by Ctrl-C.

    Raises:
        SetupError: there is no Java to run it, a jar is missing, or the JVM did not start (with its last words).
        IntegrityError: a jar is not what the lock says.
    """
    java = find_java(settings.model.spark.java_home)
    jars = cached_jars(settings.model.cache)
    with tempfile.TemporaryDirectory(prefix="frazil-spark-") as scratch:
        gateway = _launch(session_conf(settings, jars, Path(scratch)), java, settings, Path(scratch) / "jvm.log")
        try:
            from pyspark.sql import SparkSession

            # PySpark logs each failed statement with its whole stack; the error itself says it better.
            logging.getLogger("SQLQueryContextLogger").disabled = True
            session = SparkSession.builder.getOrCreate()
            try:
                yield session
            finally:
                with suppress(Exception):  # a JVM that died has nothing left to stop
                    session.stop()
        finally:
            _end(gateway)


def _launch(conf: dict[str, str], java: Java, settings: Settings, log: Path) -> Any:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    spark_conf = SparkConf(loadDefaults=False)
    for key, value in conf.items():
        spark_conf.set(key, value)
    with log.open("wb") as output, _environment(_jvm_environment(java, settings)):
        try:
            gateway = launch_gateway(spark_conf, popen_kwargs={"stdout": output, "stderr": subprocess.STDOUT})
            SparkContext._ensure_initialized(gateway=gateway, conf=spark_conf)
            SparkContext.getOrCreate(spark_conf)
        except PySparkRuntimeError as error:
            raise SetupError("Spark did not start", cause=_last_words(log), hint="frazil doctor") from error
        except Exception as error:  # py4j raises what the JVM raised
            raise SetupError("Spark did not start", cause=_last_words(log) or str(error)[:300], hint="frazil doctor") from error
    return gateway


def _jvm_environment(java: Java, settings: Settings) -> dict[str, str | None]:
    profile = settings.catalog().s3.profile if settings.catalog().s3 else None  # type: ignore[union-attr]
    return {
        "JAVA_HOME": str(java.home),
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Another Spark on the machine would be started in place of the one these jars fit.
        "SPARK_HOME": None,
        "SPARK_CONF_DIR": None,
        "PYSPARK_SUBMIT_ARGS": None,
        "SPARK_LOCAL_IP": "127.0.0.1" if settings.model.spark.master.startswith("local") else None,
    } | ({"AWS_PROFILE": profile} if profile else {})


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
    return (telling or lines or [None])[-1]


def _end(gateway: Any) -> None:
    """Ends the JVM, so that nothing is left and a later session can start anew in this process."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    with suppress(Exception):
        gateway.shutdown()
    process = gateway.proc
    if process is not None:
        with suppress(OSError):
            process.stdin.close()
        try:
            process.wait(_SECONDS_TO_STOP)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
