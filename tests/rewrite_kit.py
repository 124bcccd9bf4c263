"""Tables for tests of upkeep's rewrites, on a Spark session; and hands to strike at a step of it."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pyiceberg.table import Table
from pyspark.sql import SparkSession

from frazil.catalogs import open_catalog
from frazil.catalogs.locations import local_path
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.upkeep.context import UpkeepContext

MIB = 1024 * 1024
#: As a policy would give them, for tables of a few small files.
COMPACT = {"target": 16 * MIB, "below": 12 * MIB, "min_files": 2, "delete_ratio": 0.3}


@dataclass
class Bench:
    """One catalog, with what upkeep needs, and tables in a namespace of their own."""

    settings: Settings
    catalog: str
    spark: SparkSession
    namespace: str = field(default_factory=lambda: f"up_{uuid.uuid4().hex[:8]}")

    def __post_init__(self) -> None:
        chosen = self.settings.catalog(self.catalog)
        store = TableStore(open_catalog(chosen, self.settings.model.network), chosen, self.settings.model.network)
        # Its tables have no neighbours in the other catalogs, and nobody needs to look for them there each time.
        alone = self.settings.model.model_copy(update={"catalog": chosen, "catalogs": {}})
        settings = replace(self.settings, model=alone)
        self.care = UpkeepContext(settings, chosen, store, lambda: self.spark, threading.Event())
        self.sql(f"CREATE NAMESPACE {self.catalog}.{self.namespace}")

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement).collect()]

    def table(self, *, version: int = 2, partition: str = "", columns: str = "", order: str = "", **more: str) -> str:
        """A table with `id`, `name` and perhaps more columns, by its full name in SQL."""
        name = f"{self.catalog}.{self.namespace}.t_{uuid.uuid4().hex[:8]}"
        options = {"format-version": str(version), "commit.retry.num-retries": "10"}
        options |= {key.replace("__", ".").replace("_", "-"): value for key, value in more.items()}
        properties = ", ".join(f"'{k}'='{v}'" for k, v in options.items())
        self.sql(
            f"CREATE TABLE {name} (id BIGINT, name STRING{columns}) USING iceberg "
            f"{f'PARTITIONED BY ({partition})' if partition else ''} TBLPROPERTIES ({properties})"
        )
        if order:
            self.sql(f"ALTER TABLE {name} WRITE ORDERED BY {order}")
        return name

    def load(self, name: str) -> Table:
        return self.care.load(name.split(".", 1)[1])

    def insert(self, name: str, *starts: int, rows: int = 10, select: str = "") -> None:
        """One commit of one file for each start."""
        for start in starts:
            frame = self.spark.range(start, start + rows, 1, 1)
            frame.selectExpr("id", "concat('person ', id) AS name", *([select] if select else [])).writeTo(
                name
            ).append()

    def ids(self, name: str) -> list[int]:
        return [row[0] for row in self.sql(f"SELECT id FROM {name} ORDER BY id")]

    def files(self, name: str, content: int = 0) -> list[str]:
        return [row[0] for row in self.sql(f"SELECT file_path FROM {name}.files WHERE content = {content}")]

    def on_disk(self, name: str) -> set[str]:
        """Every data and delete file in the table's folder."""
        folder = Path(local_path(self.load(name).location()) or "/nowhere") / "data"
        return {str(p) for p in folder.rglob("*") if p.is_file() and not p.name.startswith(".")}

    def known(self, name: str) -> set[str]:
        """Every file that some snapshot of the table has."""
        return {local_path(row[0]) or row[0] for row in self.sql(f"SELECT file_path FROM {name}.all_files")}


@contextlib.contextmanager
def striking(at: str, strike: Callable[[], object]) -> Iterator[list[str]]:
    """Calls `strike` when a step is reached, once; gives the names of all steps that were."""
    seen: list[str] = []

    def handle(step: str) -> None:
        seen.append(step)
        if step == at and seen.count(step) == 1:
            strike()

    with handled(handle):
        yield seen
    assert at in seen, f"{at} was never reached: {seen}"


def delete_equal(
    bench: Bench, name: str, *names: str, partition: int | None = None, file_format: str = "PARQUET"
) -> None:
    """Commits an equality delete on `name`, as Flink writes them, with Iceberg's Java writers.

    Args:
        bench: the catalog.
        name: the table.
        names: values of `name` whose rows are deleted.
        partition: value of the only partition field, if the table is partitioned.
        file_format: of the delete file.
    """
    jvm, gateway = bench.spark._jvm, bench.spark.sparkContext._gateway
    iceberg = jvm.org.apache.iceberg
    table = iceberg.spark.Spark3Util.loadIcebergTable(bench.spark._jsparkSession, name)
    columns = jvm.java.util.ArrayList()
    columns.add("name")
    schema = table.schema().select(columns)
    ids = gateway.new_array(jvm.int, 1)
    ids[0] = schema.findField("name").fieldId()
    builder = getattr(iceberg.data, "GenericFileWriterFactory$Builder")(table)
    kind = getattr(iceberg.FileFormat, file_format)
    factory = builder.deleteFileFormat(kind).equalityFieldIds(ids).equalityDeleteRowSchema(schema).build()
    files = iceberg.io.OutputFileFactory.builderFor(table, 0, 0).format(kind).build()
    if partition is None:
        where, output = None, files.newOutputFile()
    else:
        where = iceberg.PartitionData(table.spec().partitionType())
        where.set(0, partition)
        output = files.newOutputFile(table.spec(), where)
    writer = factory.newEqualityDeleteWriter(output, table.spec(), where)
    for text in names:
        record = iceberg.data.GenericRecord.create(schema)
        record.setField("name", text)
        writer.write(record)
    writer.close()
    table.newRowDelta().addDeletes(writer.toDeleteFile()).commit()
