"""Restored tables as Trino reads them, through a REST catalog: in every snapshot what Spark read in the original."""

from __future__ import annotations

import base64
import datetime
import uuid
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyspark.sql import Row, SparkSession

from frazil.backup.repository import Repository
from frazil.catalogs import open_catalog
from frazil.catalogs.rest import register_raw_table
from frazil.settings import Settings
from frazil.upkeep.context import UpkeepContext
from tests.integration.test_backup_restore import care, repository  # noqa: F401 - fixtures
from tests.relocation_tables import Zoo, read_metadata, species
from tests.restore_kit import back_up, restore
from tests.services.kit import Services
from tests.services.trino import CATALOG, Trino, start_trino

pytestmark = [pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)]
_VECTORS = "it does not read deletion vectors"
#: Tables that Trino 476 cannot read, or not correctly.
UNREADABLE = {
    "spark_v3": _VECTORS,
    "spark_v1_to_v3": _VECTORS,
    "duckdb_v3": _VECTORS,
    "partition_evolution": "it refuses partition specs whose column was dropped",
    "schema_evolution": "it does not apply default values",
    "variant": "it does not know the type",
}
Reads = dict[int | str, list[str]]


@pytest.fixture(scope="module")
def trino(services: Services) -> Iterator[Trino]:
    made = services.own(lambda folder: start_trino(folder, rest=services.rest))
    yield made
    made.stop()


@pytest.fixture(scope="module")
def rest(lane_settings: Settings) -> RestCatalog:
    found = open_catalog(lane_settings.catalog("rest"))
    assert isinstance(found, RestCatalog)
    return found


@pytest.mark.long("the first one starts Trino")
@pytest.mark.parametrize("name", [name for name in species(slow=True) if name not in UNREADABLE])
def test_trino_reads_in_a_restored_table_what_spark_read_in_the_original(
    zoo: Zoo,
    care: UpkeepContext,  # noqa: F811
    repository: Repository,  # noqa: F811
    trino: Trino,
    rest: RestCatalog,
    tmp_path: Path,
    name: str,
) -> None:
    table = zoo.table(name)
    original = read_by_spark(zoo.spark, table.identifier, table.metadata_location)
    record = back_up(care, repository, ".".join(table.identifier.split(".")[1:]), name=f"trino-{name}")
    target = f"{zoo.namespace}.{name}_for_trino"
    # Trino wants URIs, not paths.
    report = restore(care, repository, record, target, location=(tmp_path / "restored").as_uri())
    with zoo.moved_away(name):
        assert read_by_trino(trino, rest, report.metadata_location or "") == original


def read_by_spark(spark: SparkSession, identifier: str, metadata_location: str) -> Reads:
    """The rows of every snapshot, branch and tag."""
    return {
        version: _comparable(map(list, spark.sql(f"SELECT * FROM {identifier} VERSION AS OF {shown}").collect()))
        for version, shown in _versions(metadata_location).items()
    }


def read_by_trino(trino: Trino, rest: RestCatalog, metadata_location: str) -> Reads:
    """The same. The table gets a name in the REST catalog for it."""
    namespace, name = "for_trino", f"t_{uuid.uuid4().hex[:8]}"
    rest.create_namespace_if_not_exists(namespace)
    register_raw_table(rest, (namespace, name), metadata_location)
    return {
        version: _comparable(trino.query(f"SELECT * FROM {CATALOG}.{namespace}.{name} FOR VERSION AS OF {shown}"))
        for version, shown in _versions(metadata_location).items()
    }


def _versions(metadata_location: str) -> dict[int | str, str]:
    metadata = read_metadata(metadata_location)
    versions = {snapshot["snapshot-id"]: str(snapshot["snapshot-id"]) for snapshot in metadata.get("snapshots", ())}
    return versions | {name: f"'{name}'" for name in metadata.get("refs", {})}


def _comparable(rows: Any) -> list[str]:
    return sorted(repr([_plain(value) for value in row]) for row in rows)


def _plain(value: Any) -> Any:
    """A value as Trino's protocol has it."""
    match value:
        case Row() | list():
            return [_plain(each) for each in value]
        case Mapping():
            return {key: _plain(each) for key, each in sorted(value.items())}
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case datetime.date() | Decimal():
            return str(value)
        case _:
            return value
