"""The lane: one Spark session per test run, which sees every catalog that the kit can start."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
import yaml
from pyiceberg.catalog import Catalog
from pyspark.sql import SparkSession

from frazil.catalogs import open_catalog
from frazil.catalogs.kinds import ABILITIES, Abilities, Flavor
from frazil.settings import CatalogSettings, Settings, load_settings
from tests.machine import machine_flags
from tests.services.kit import Services

FLAVORS: tuple[Flavor, ...] = tuple(ABILITIES)


def catalog_sections(services: Services, folder: Path) -> dict[str, dict[str, Any]]:
    """`catalogs.<name>` of a frazil.yaml for every kind, on real servers."""
    found = {
        "sql": {
            "catalog": {
                "kind": "sql",
                "uri": f"sqlite:///{folder}/sql/catalog.db",
                "warehouse": f"{folder}/sql/warehouse",
            }
        },
        "rest": services.rest.settings(),
        "rest_on_s3": services.rest_on_s3.settings(),
        "nessie": services.nessie.settings(),
        "s3tables": services.seaweedfs.settings(),
        "glue": services.glue.settings(),
        "hive": services.hive.settings(),
        "by_token": services.secured_rest.token_settings(),
        "by_oauth2": services.secured_rest.settings(),
    }
    return {name: {**part["catalog"], **({"s3": part["s3"]} if "s3" in part else {})} for name, part in found.items()}


def lane_settings(services: Services, folder: Path) -> Settings:
    file = folder / "frazil.yaml"
    file.write_text(yaml.safe_dump({"home": str(folder / "home"), "catalogs": catalog_sections(services, folder)}))
    return load_settings(config=file, flags=machine_flags(), environ={})


@dataclass
class Lane:
    """One catalog as both engines see it."""

    flavor: str
    settings: Settings
    spark: SparkSession

    @property
    def catalog_settings(self) -> CatalogSettings:
        return self.settings.catalog(self.flavor)

    @cached_property
    def catalog(self) -> Catalog:
        return open_catalog(self.catalog_settings, self.settings.model.network)

    @property
    def abilities(self) -> Abilities:
        return ABILITIES[self.flavor]  # type: ignore[index]

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def spark_rows(self, table: str, columns: str = "*") -> list[tuple[Any, ...]]:
        return sorted(self.sql(f"SELECT {columns} FROM {self.flavor}.{table}"))

    def pyiceberg_rows(self, table: str) -> list[tuple[Any, ...]]:
        return sorted(tuple(row.values()) for row in self.catalog.load_table(table).scan().to_arrow().to_pylist())


def people(*ids: int) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    return pa.table({"id": list(ids), "name": [f"person {i}" for i in ids]}, schema=schema)
