"""The embedded catalog with its tables in a bucket, for tests of upkeep; also as the lane's Spark session sees it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from frazil.catalogs import prepare_embedded, spark_conf
from frazil.settings import CatalogSettings, Settings, load_settings
from frazil.upkeep.context import UpkeepContext
from tests.services.kit import Services
from tests.services.s3_access import S3Access
from tests.upkeep_files import care_of_settings


def settings_on(
    services: Services, home: Path, endpoint: str | None = None, access: S3Access | None = None, **flags: object
) -> Settings:
    """Settings of an embedded catalog whose tables lie in a bucket.

    Args:
        services: with the server.
        home: of the catalog; its parent's name is that of the folder in the bucket.
        endpoint: by default the server's own.
        access: whose keys; by default those that may do everything.
        flags: further settings, with `__` for a dot.
    """
    bucket = services.seaweedfs.make_bucket("upkeep")
    found = (access or services.seaweedfs.access).settings() | ({"endpoint": endpoint} if endpoint else {})
    given: dict[str, object] = {"home": str(home), "catalog.warehouse": f"{bucket}/{home.parent.name}"}
    given |= {f"s3.{key}": value for key, value in found.items()}
    given |= {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(flags={key: str(value) for key, value in given.items()}, environ={})


@contextmanager
def care_on(
    services: Services,
    home: Path,
    endpoint: str | None = None,
    *,
    access: S3Access | None = None,
    spark: SparkSession | None = None,
    **flags: object,
) -> Iterator[UpkeepContext]:
    """The catalog of `settings_on`, opened; with a session, that sees it too."""
    care = care_of_settings(settings_on(services, home, endpoint, access, **flags))
    if spark is not None:
        session = spark
        show(session, care.catalog)
        care = replace(care, spark=lambda: session)
    with care.store:
        yield care


def show(spark: SparkSession, catalog: CatalogSettings) -> None:
    """Lets a session that runs, and all that come of it, see one more catalog, but not another one of that name."""
    prepare_embedded(catalog)
    new_sessions = spark.sparkContext._jsc.sc().conf()
    for key, value in spark_conf(catalog).items():
        spark.conf.set(key, value)
        new_sessions.set(key, value)
