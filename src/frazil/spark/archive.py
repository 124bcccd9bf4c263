"""An archive of Spark's loaded classes, made once, that halves the time until a session has done its first work.

The JVM calls it class data sharing. An archive fits one JVM and one class path; where none fits, a session starts
without, only slower.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path

from frazil.settings import CatalogSettings, Settings
from frazil.spark.jars import read_lock, spark_home
from frazil.spark.java import Java

_KEPT = 3


def archive_file(cache: Path, java: Java) -> Path:
    """Returns the path of the archive for a JVM, PySpark and the jars, whose times the JVM compares too."""
    jars = [*(cache / "jars" / jar.file_name for jar in read_lock()), *(spark_home() / "jars").glob("spark-core_*.jar")]
    times = [str(jar.stat().st_mtime_ns) for jar in jars if jar.is_file()]
    parts = [java.version, str(java.home), str(spark_home()), str(cache), *times]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    return cache / "archives" / f"spark-{key}.jsa"


def use_options(archive: Path) -> str:
    """Returns the JVM option for the archive, which a JVM ignores if it does not fit; touches the file."""
    try:
        os.utime(archive)
    except FileNotFoundError:
        return ""
    except OSError:  # somebody else's, or on a disk that cannot be written: it can be read all the same
        pass
    return f'-XX:SharedArchiveFile="{archive}" -Xshare:auto -Xlog:disable'


def record_options(archive: Path) -> str:
    return f'-XX:ArchiveClassesAtExit="{archive}" -Xlog:disable'


def make_archive(settings: Settings, java: Java) -> Path:
    """Runs a session that does a bit of everything, and keeps the classes it loaded. Takes half a minute, once.

    Archives that were not used for longest are removed, but for a few: other environments may use those.
    """
    archive = archive_file(settings.model.cache, java)
    if archive.is_file():
        return archive
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent, prefix=".make-") as scratch:
        own = {"home": Path(scratch) / "lake", "catalog": CatalogSettings(), "catalogs": {}}
        spark = settings.model.spark.model_copy(update={"master": "local[2]"})
        rehearsal = Settings(settings.model.model_copy(update={**own, "spark": spark}))
        recorded = Path(scratch) / "spark.jsa"
        from frazil.spark.session import spark_session  # which itself asks this module for an archive

        with spark_session(rehearsal, record_classes_to=recorded) as session:
            session.sql("CREATE NAMESPACE ns")
            session.range(10).selectExpr("id", "cast(id % 3 AS string) AS name").writeTo("ns.t").create()
            session.sql("INSERT INTO ns.t VALUES (11, 'a')")
            session.sql("DELETE FROM ns.t WHERE id = 3")
            session.sql("SELECT name, count(*) FROM ns.t GROUP BY name ORDER BY name").toArrow()
            session.sql("SELECT * FROM ns.t.snapshots").collect()
        if recorded.is_file():
            recorded.replace(archive)
    for old in sorted(archive.parent.glob("spark-*.jsa"), key=lambda file: file.stat().st_mtime)[:-_KEPT]:
        old.unlink()
    return archive
