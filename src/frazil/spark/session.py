"""The Spark session. Nothing else in Frazil starts a JVM."""

from __future__ import annotations

import logging
import os
import signal
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.catalogs import prepare_embedded, probe, spark_conf
from frazil.errors import SetupError, UsageError, first_line
from frazil.settings import CatalogSettings, Settings
from frazil.spark.archive import archive_file, record_options, use_options
from frazil.spark.jars import cached_jars
from frazil.spark.java import Java, find_java
from frazil.spark.jvm import SECONDS_TO_STOP, ending, last_words, start_jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOG4J = Path(__file__).with_name("log4j2.properties")
_SECONDS_TO_RECORD = 300.0
#: Length of `/.UUID.sock`, as PySpark names its sockets, and of the longest path that every system allows for one.
_SOCKET_NAME = 43
_LONGEST_SOCKET = 103
#: What a JVM must know before it runs.
_AT_LAUNCH = ("spark.master", "spark.driver.", "spark.jars", "spark.submit.")
#: What the user adds to ours and does not replace, and what stands between the two.
_JOINED = {"spark.driver.extraJavaOptions": " ", "spark.driver.extraClassPath": os.pathsep, "spark.jars": ","}


def session_conf(settings: Settings, jars: list[Path], scratch: Path, jvm_options: str = "") -> dict[str, str]:
    """Returns the Spark settings of a session: Frazil's, the catalogs', then the user's, which take precedence."""
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
        "spark.sql.python.filterPushdown.enabled": "true",
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
        if len(str(scratch)) + _SOCKET_NAME <= _LONGEST_SOCKET:
            # Beside our own files, which are removed at the end: an interrupted session leaves its sockets behind.
            conf["spark.python.unix.domain.socket.dir"] = str(scratch)
    else:
        conf |= {"spark.jars": ",".join(listed), "spark.executorEnv.PYTHONSAFEPATH": "1"}
    for name in settings.catalog_names():
        conf |= spark_conf(_reachable(settings.catalog(name), settings))
    both = [key for key in _JOINED if key in conf and key in spark.conf]
    joined = {key: _JOINED[key].join((conf[key], spark.conf[key])) for key in both}
    return conf | spark.conf | joined


def _reachable(catalog: CatalogSettings, settings: Settings) -> CatalogSettings:
    """Replaces the URI by the one that answers. An unreachable catalog is left for its first use to report."""
    if catalog.resolved_kind != "rest":
        return catalog
    from requests import RequestException

    from frazil.catalogs.rest import with_endpoint

    try:
        return with_endpoint(catalog, settings.model.network)
    except RequestException:
        return catalog


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
    """Starts a session with all catalogs of the settings; its JVM ends with the block, also on Ctrl-C.

    Args:
        settings: the settings.
        record_classes_to: where the JVM writes its class archive when it ends (`frazil.spark.archive`).

    Raises:
        SetupError: there is no Java to run it, a jar is missing, or the JVM did not start (with its last words).
        IntegrityError: a jar is not what the lock says.
    """
    from pyspark import SparkContext

    if SparkContext._active_spark_context is not None:
        raise UsageError(
            "this process already has a Spark session", hint="reuse that session: Spark allows only one at a time"
        )
    java, jars = check_ready(settings)
    for name in settings.catalog_names():
        if (catalog := settings.catalog(name)).kind == "sql":
            prepare_embedded(catalog)
    archive = record_classes_to or archive_file(settings.model.cache, java)
    options = record_options(archive) if record_classes_to else use_options(archive)
    with tempfile.TemporaryDirectory(prefix="frazil-spark-", ignore_cleanup_errors=True) as scratch:
        conf = session_conf(settings, jars, Path(scratch), options)
        log = Path(scratch) / "jvm.log"
        # The rest, which may hold secrets, goes through the gateway: a command line can be read by everybody (`ps`).
        gateway = start_jvm({k: v for k, v in conf.items() if k.startswith(_AT_LAUNCH)}, java, settings, log)
        with ending(gateway, _SECONDS_TO_RECORD if record_classes_to else SECONDS_TO_STOP):
            yield _start_session(conf, gateway, log)


def _start_session(conf: dict[str, str], gateway: Any, log: Path) -> SparkSession:
    from pyspark import SparkConf, SparkContext
    from pyspark.sql import SparkSession

    # PySpark logs each failed statement with its whole stack, and py4j each lost connection; the errors say it better.
    logging.getLogger("SQLQueryContextLogger").disabled = True
    logging.getLogger("py4j").setLevel(logging.CRITICAL)
    ours = signal.getsignal(signal.SIGINT)
    try:
        SparkContext(conf=SparkConf(loadDefaults=False).setAll(list(conf.items())), gateway=gateway)
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, ours)  # the context has put its own in place
        return SparkSession.builder.getOrCreate()
    except Exception as error:
        raise SetupError("Spark did not start", cause=last_words(log) or _text(error), hint="frazil doctor") from error


def _text(error: BaseException) -> str:
    try:
        return first_line(error)
    except Exception:  # noqa: BLE001 - an error of the JVM asks the JVM for its text, which may be gone
        return type(error).__name__


def activate_session(session: SparkSession) -> None:
    """Makes a session the active one of this thread: Spark finds catalogs by the settings of the active session."""
    type(session)._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
