"""Tables that other writers made, for tests of relocation and backups; and all that each engine reads in one.

`Zoo` builds each once, with one Spark session (the fixture `zoo` has one for all tests of a worker). Each is small, and
has what one kind of writer, or one feature of the format, puts into metadata; `ZooTable.features` says what.
"""

from __future__ import annotations

import gzip
import json
import uuid
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.expressions import EqualTo
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.update import SetLocationUpdate
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import LongType, StringType
from pyspark.sql import SparkSession

from frazil.catalogs.locations import local_path
from frazil.query.duck import _OPTIONS, load_extensions
from tests.rewrite_kit import delete_equal

ENGINES = ("spark", "pyiceberg", "duckdb")
_MERGE_ON_READ = {f"write.{kind}.mode": "merge-on-read" for kind in ("delete", "update", "merge")}
_EQUALITY = {"pyiceberg": "it refuses equality deletes"}
_ONLY_PARQUET = {"duckdb": "it reads Parquet only"}
_THREADS = 3


@dataclass(frozen=True)
class ZooTable:
    """A table of the zoo.

    Attributes:
        name: what it is called in the zoo.
        identifier: its name in Spark: catalog, namespace, table.
        location: as its metadata spells it.
        metadata_location: of the current metadata file.
        folders: every local folder that has files of it; moved away, nothing of it is left.
        features: what is in it.
        unreadable: engines that cannot read it, or not correctly, and why.
    """

    name: str
    identifier: str
    location: str
    metadata_location: str
    folders: tuple[Path, ...]
    features: frozenset[str]
    unreadable: Mapping[str, str] = field(default_factory=dict)

    @property
    def engines(self) -> tuple[str, ...]:
        return tuple(engine for engine in ENGINES if engine not in self.unreadable)


@dataclass
class Builder:
    """What the builder of one table works with."""

    spark: SparkSession
    catalog: Catalog
    namespace: str
    name: str
    home: Path
    rest: str = ""

    @property
    def table(self) -> str:
        return f"{self.catalog.name}.{self.namespace}.{self.name}"

    @property
    def folder(self) -> Path:
        """Where the table lies."""
        return self.home / "tables" / self.name

    def outside(self, what: str) -> Path:
        """Another folder for files of this table alone."""
        return self.home / "outside" / f"{self.name}-{what}"

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in self.spark.sql(statement.replace("{t}", self.table)).collect()]

    def create(
        self,
        columns: str = "id BIGINT, name STRING",
        *,
        version: int = 2,
        partition: str = "",
        properties: Mapping[str, str] | None = None,
    ) -> None:
        options = {"format-version": str(version), "write.distribution-mode": "none", **(properties or {})}
        listed = ", ".join(f"'{key}'='{value}'" for key, value in options.items())
        by = f"PARTITIONED BY ({partition})" if partition else ""
        self.sql(f"CREATE TABLE {{t}} ({columns}) USING iceberg {by} LOCATION '{self.folder}' TBLPROPERTIES ({listed})")

    def insert(self, *rows: str, branch: str = "") -> None:
        """One commit of one file (for each partition): rows as SQL writes them."""
        self.sql(f"INSERT INTO {{t}}{branch} VALUES {', '.join(f'({row})' for row in rows)}")

    def people(self, *ids: int, more: str = "", branch: str = "") -> None:
        self.insert(*(f"{i}, 'person {i}'{more}" for i in ids), branch=branch)

    def set(self, **properties: str) -> None:
        listed = ", ".join(f"'{key}'='{value}'" for key, value in properties.items())
        self.sql(f"ALTER TABLE {{t}} SET TBLPROPERTIES ({listed})")

    def call(self, procedure: str, arguments: str = "") -> None:
        more = f", {arguments}" if arguments else ""
        self.sql(f"CALL {self.catalog.name}.system.{procedure}(table => '{self.namespace}.{self.name}'{more})")

    def register(self, metadata_location: str) -> None:
        self.call("register_table", f"metadata_file => '{metadata_location}'")

    def snapshots(self) -> list[int]:
        """Ids of all snapshots, in the order of their commits."""
        return [row[0] for row in self.sql("SELECT snapshot_id FROM {t}.snapshots ORDER BY committed_at")]

    def java(self) -> Any:
        """The table in Iceberg's Java library."""
        self.sql("DESCRIBE TABLE {t}")  # makes this session the active one of the thread, whose catalogs Java uses
        spark = self.spark._jvm.org.apache.iceberg.spark
        return spark.Spark3Util.loadIcebergTable(self.spark._jsparkSession, self.table)

    def load(self) -> Table:
        """The table in PyIceberg."""
        return self.catalog.load_table((self.namespace, self.name))

    def new_by_pyiceberg(self, schema: Schema | pa.Schema, **options: Any) -> Table:
        return self.catalog.create_table((self.namespace, self.name), schema, location=str(self.folder), **options)

    def delete_equal(self, *names: str, file_format: str = "PARQUET", partition: Any = None) -> None:
        """An equality delete by `name`, by Iceberg's Java writers."""
        delete_equal(self, self.table, *names, file_format=file_format, partition=partition)  # type: ignore[arg-type]


@dataclass(frozen=True)
class _Species:
    build: Callable[[Builder], None]
    features: frozenset[str]
    unreadable: Mapping[str, str]
    slow: bool


_SPECIES: dict[str, _Species] = {}


def _builds(
    features: str,
    *,
    unreadable: Mapping[str, str] | None = None,
    slow: bool = False,
) -> Callable[[Callable[[Builder], None]], Callable[[Builder], None]]:
    """Registers the builder of a table; its name is the function's."""

    def register(build: Callable[[Builder], None]) -> Callable[[Builder], None]:
        _SPECIES[build.__name__] = _Species(build, frozenset(features.split()), unreadable or {}, slow)
        return build

    return register


def species(*, slow: bool = False) -> list[str]:
    """The names of all tables; with `slow`, also of those that only `make test-all` needs."""
    return [name for name, each in _SPECIES.items() if each.slow <= slow]


@dataclass
class Zoo:
    """The tables, each built when first asked for, and what they held then.

    Attributes:
        spark: a session that has the catalog.
        home: a folder, below which all files of the tables lie.
        catalog: the same catalog in PyIceberg. It may be of any kind that lets a table choose its location.
        rest: URL of a REST catalog on this machine, through which DuckDB writes.
    """

    spark: SparkSession
    home: Path
    catalog: Catalog
    rest: str

    def __post_init__(self) -> None:
        self.namespace = f"zoo_{uuid.uuid4().hex[:8]}"
        self.catalog.create_namespace(self.namespace)
        self._tables: dict[str, ZooTable] = {}
        self._reads: dict[tuple[str, str], Reads] = {}

    def tables(self, names: Collection[str] | None = None) -> list[ZooTable]:
        """Some tables; by default all that `make test` needs. Together they are built faster than one by one."""
        chosen = species() if names is None else names
        with ThreadPoolExecutor(_THREADS) as pool:
            missing = [name for name in chosen if name not in self._tables]
            self._tables |= zip(missing, pool.map(self._build, missing), strict=True)
        return [self._tables[name] for name in chosen]

    def table(self, name: str) -> ZooTable:
        return self.tables([name])[0]

    def _build(self, name: str) -> ZooTable:
        builder = Builder(self.spark.newSession(), self.catalog, self.namespace, name, self.home, self.rest)
        _SPECIES[name].build(builder)
        return _found(builder, _SPECIES[name])

    def read_original(self, engine: str, name: str) -> Reads:
        """What an engine reads in a table; read once, while it is at its place."""
        if (engine, name) not in self._reads:
            table = self.table(name)
            self._reads[engine, name] = read_all(engine, self.spark, table.identifier, table.metadata_location)
        return self._reads[engine, name]

    def rewrite_table_path(self, name: str, target: str, staging: Path) -> dict[str, str]:
        """Iceberg's own procedure: where the rewritten files of a table are staged, by their paths in the copy."""
        table = self.table(name)
        catalog, _, name = table.identifier.partition(".")
        options = {
            "table": name,
            "source_prefix": table.location,
            "target_prefix": target,
            "staging_location": staging.as_uri(),
        }
        listed = ", ".join(f"{key} => '{value}'" for key, value in options.items())
        row = self.spark.sql(f"CALL {catalog}.system.rewrite_table_path({listed})").collect()[0]
        pairs = (line.value.split(",") for line in self.spark.read.text(row.file_list_location).collect())
        return {copied: source for source, copied in pairs}

    @contextmanager
    def moved_away(self, name: str) -> Iterator[None]:
        """Nothing of a table is at its place inside this block."""
        moves = [(folder, folder.with_name(f"{folder.name}.away")) for folder in self.table(name).folders]
        for here, away in moves:
            here.rename(away)
        try:
            yield
        finally:
            for here, away in moves:
                away.rename(here)

    @contextmanager
    def registered(self, metadata_location: str) -> Iterator[str]:
        """A copy under a name in Spark; its files stay."""
        name = f"copy_{uuid.uuid4().hex[:8]}"
        builder = Builder(self.spark, self.catalog, self.namespace, name, self.home)
        builder.register(metadata_location)
        try:
            yield builder.table
        finally:
            self.catalog.drop_table((self.namespace, name))


def _found(builder: Builder, made: _Species) -> ZooTable:
    java = builder.java()
    outside = builder.home / "outside"
    return ZooTable(
        name=builder.name,
        identifier=builder.table,
        location=java.location(),
        metadata_location=java.operations().current().metadataFileLocation(),
        folders=(builder.folder, *sorted(outside.glob(f"{builder.name}-*"))),
        features=made.features,
        unreadable=made.unreadable,
    )


# Spark: copy-on-write and merge-on-read, in each format version


@_builds("spark v1 copy-on-write tags")
def spark_v1(b: Builder) -> None:
    b.create(version=1)
    b.people(1, 2, 3, 4)
    b.sql("ALTER TABLE {t} CREATE TAG first")
    b.sql("UPDATE {t} SET name = 'changed' WHERE id = 2")
    b.sql("DELETE FROM {t} WHERE id = 3")
    b.people(5)


@_builds("spark v2 merge-on-read position-deletes branches tags rollback staged")
def spark_v2(b: Builder) -> None:
    """With a branch that went its own way, a snapshot that was rolled back, and one that was never published."""
    b.create(version=2, properties={**_MERGE_ON_READ, "write.delete.granularity": "partition"})
    b.people(*range(1, 6))
    b.people(*range(6, 11))
    b.sql("DELETE FROM {t} WHERE id IN (2, 7, 8)")
    b.sql("ALTER TABLE {t} CREATE TAG `the end of 2025`")
    b.sql("ALTER TABLE {t} CREATE BRANCH audit")
    b.people(11, branch=".branch_audit")
    b.sql("DELETE FROM {t}.branch_audit WHERE id = 1")
    kept = b.snapshots()[2]
    b.sql("UPDATE {t} SET name = 'wrong' WHERE id = 5")
    b.call("rollback_to_snapshot", f"snapshot_id => {kept}")
    b.set(**{"write.wap.enabled": "true"})
    b.spark.conf.set("spark.wap.id", "staged")
    b.people(12)
    b.spark.conf.unset("spark.wap.id")
    b.people(13)


@_builds("spark v2 merge-on-read position-deletes partitions file-granularity odd-paths")
def spark_v2_partitioned(b: Builder) -> None:
    """Partition values that need escapes in paths; deletes that refer to one data file each."""
    b.create("id BIGINT, name STRING, `land` STRING", partition="land", properties=_MERGE_ON_READ)
    b.insert("1, 'a', 'Österreich'", "2, 'b', 'a b/c%2F=d'", "3, 'c', ''", "4, 'd', NULL", "5, 'e', 'Österreich'")
    b.insert("6, 'f', 'Österreich'", "7, 'g', 'a b/c%2F=d'")
    b.sql("DELETE FROM {t} WHERE id IN (1, 2, 7)")
    b.sql("MERGE INTO {t} t USING (SELECT 6 AS id) s ON t.id = s.id WHEN MATCHED THEN UPDATE SET name = 'merged'")


@_builds("spark v3 merge-on-read deletion-vectors branches statistics partition-statistics")
def spark_v3(b: Builder) -> None:
    """Several deletion vectors in one Puffin file, and one that was replaced."""
    b.create("id BIGINT, name STRING, part INT", version=3, partition="part", properties=_MERGE_ON_READ)
    b.insert(*(f"{i}, 'p{i}', {i % 2}" for i in range(10)))
    b.insert(*(f"{i}, 'p{i}', {i % 2}" for i in range(10, 20)))
    b.sql("DELETE FROM {t} WHERE id % 5 = 1")
    b.sql("ALTER TABLE {t} CREATE BRANCH audit")
    b.sql("DELETE FROM {t} WHERE id IN (0, 3)")
    b.sql("UPDATE {t}.branch_audit SET name = 'audited' WHERE id = 2")
    b.call("compute_table_stats")
    b.call("compute_partition_stats")


@_builds(
    "spark v3 upgraded deletion-vectors position-deletes",
    unreadable={"duckdb": "it wants sequence numbers in the manifests of version 1"},
)
def spark_v1_to_v3(b: Builder) -> None:
    b.create(version=1, properties=_MERGE_ON_READ)
    b.people(1, 2, 3)
    b.set(**{"format-version": "2"})
    b.people(4, 5, 6)
    b.sql("DELETE FROM {t} WHERE id IN (1, 4)")
    b.set(**{"format-version": "3"})
    b.people(7, 8)
    b.sql("DELETE FROM {t} WHERE id IN (2, 7)")


@_builds(
    "spark v2 avro merge-on-read position-deletes",
    unreadable={**_ONLY_PARQUET, "pyiceberg": "it does not read Avro data"},
)
def spark_avro(b: Builder) -> None:
    _other_format(b, "avro")


@_builds("spark v2 orc merge-on-read position-deletes", unreadable=_ONLY_PARQUET)
def spark_orc(b: Builder) -> None:
    _other_format(b, "orc")


def _other_format(b: Builder, name: str) -> None:
    formats = {"write.format.default": name, "write.delete.format.default": name}
    b.create(properties={**_MERGE_ON_READ, **formats, "write.delete.granularity": "partition"})
    b.people(1, 2, 3)
    b.people(4, 5, 6)
    b.sql("DELETE FROM {t} WHERE id IN (1, 5, 6)")
    b.set(**{"write.delete.granularity": "file"})
    b.sql("DELETE FROM {t} WHERE id = 2")


# What evolves


@_builds("spark v2 partition-evolution dropped-source-column merge-on-read position-deletes")
def partition_evolution(b: Builder) -> None:
    b.create("id BIGINT, name STRING, old STRING", partition="old", properties=_MERGE_ON_READ)
    b.insert("1, 'a', 'x'", "2, 'b', 'y'", "3, 'c', 'x'")
    b.sql("DELETE FROM {t} WHERE id = 1")
    b.sql("ALTER TABLE {t} REPLACE PARTITION FIELD old WITH bucket(4, id)")
    b.insert("4, 'd', 'x'", "5, 'e', 'y'")
    b.sql("ALTER TABLE {t} DROP PARTITION FIELD id_bucket_4")
    b.sql("ALTER TABLE {t} DROP COLUMN old")
    b.insert("6, 'f'")
    b.sql("DELETE FROM {t} WHERE id IN (3, 4)")


@_builds("spark v3 schema-evolution sort-orders nested-types default-values row-lineage")
def schema_evolution(b: Builder) -> None:
    columns = "id INT, name STRING, place STRUCT<x: FLOAT, y: FLOAT>, tags ARRAY<STRING>, more MAP<STRING, BINARY>"
    b.create(columns, version=3)
    b.insert("1, 'a', named_struct('x', 1.5F, 'y', 2F), array('t'), map('k', X'00FF')", "2, 'b', NULL, array(), NULL")
    b.sql("ALTER TABLE {t} WRITE ORDERED BY name DESC NULLS LAST, bucket(4, id)")
    b.sql("ALTER TABLE {t} ALTER COLUMN id TYPE BIGINT")
    b.sql("ALTER TABLE {t} RENAME COLUMN name TO label")
    b.sql("ALTER TABLE {t} ADD COLUMNS (place.z DOUBLE COMMENT 'height', day DATE FIRST)")
    iceberg = b.spark._jvm.org.apache.iceberg  # Spark's SQL takes no default yet
    text, none = iceberg.types.Types.StringType.get(), iceberg.expressions.Expressions.lit("none")
    b.java().updateSchema().addColumn("kind", text, "with a default", none).commit()
    b.insert("DATE '2026-01-02', 3, 'c', named_struct('x', 1F, 'y', 2F, 'z', 3D), NULL, NULL, 'own'")
    b.sql("ALTER TABLE {t} DROP COLUMN tags")
    b.sql("ALTER TABLE {t} WRITE ORDERED BY day")
    b.insert("NULL, 4, 'd', NULL, map('k', NULL), NULL")


# Places and files of metadata


@_builds("spark v2 object-store data-path metadata-path outside merge-on-read position-deletes")
def placed_elsewhere(b: Builder) -> None:
    """First in the table's own folder, then with hashes in paths, then all in folders outside."""
    b.create(properties={**_MERGE_ON_READ})
    b.people(1, 2)
    b.set(**{"write.object-storage.enabled": "true"})
    b.people(3, 4)
    b.set(
        **{
            "write.data.path": str(b.outside("data")),
            "write.metadata.path": b.outside("metadata").as_uri(),
        }
    )
    b.people(5, 6)
    b.sql("DELETE FROM {t} WHERE id IN (1, 3, 5)")


@_builds("spark v2 gzipped-metadata statistics partition-statistics partitions deleted-files")
def gzipped_metadata(b: Builder) -> None:
    b.create("id BIGINT, part INT", partition="part", properties={"write.metadata.compression-codec": "gzip"})
    b.insert("1, 1", "2, 2")
    b.call("compute_partition_stats")
    b.call("compute_table_stats", "columns => array('id')")
    b.sql("DELETE FROM {t} WHERE part = 1")
    b.insert("3, 3")
    b.call("compute_table_stats")


@_builds(
    "spark v1 inline-manifests",
    unreadable={"pyiceberg": "it needs manifest lists", "duckdb": "it needs manifest lists"},
)
def inline_manifests(b: Builder) -> None:
    """As the first writers of version 1 had it: snapshots name their manifests, and have no list."""
    from pyiceberg.manifest import read_manifest_list

    b.create(version=1)
    b.people(1, 2)
    b.people(3)
    table = b.load()
    path = Path(local_path(table.metadata_location) or "")
    metadata = json.loads(path.read_bytes())
    for snapshot in metadata["snapshots"]:
        listed = read_manifest_list(table.io.new_input(snapshot.pop("manifest-list")))
        snapshot["manifests"] = [manifest.manifest_path for manifest in listed]
    for name in path.parent.glob("snap-*"):
        name.unlink()
    inline = path.with_name("00009-inline.metadata.json")
    inline.write_text(json.dumps(metadata))
    b.catalog.drop_table((b.namespace, b.name))
    b.register(inline.as_uri())


@_builds("spark pyiceberg v2 mixed-spellings merge-on-read position-deletes")
def mixed_spellings(b: Builder) -> None:
    """Spark spells paths `file:/x`, PyIceberg after a change of the location `/x`, and `file:///x` stands in it too."""
    b.create(properties=_MERGE_ON_READ)
    b.people(1, 2, 3)
    for spelled, i in ((str(b.folder), 10), (b.folder.as_uri(), 20)):
        table = b.load()
        with table.transaction() as change:
            change._apply((SetLocationUpdate(location=spelled),))
        b.load().append(people(i, i + 1, i + 2))
        b.people(i + 3)
    b.sql("DELETE FROM {t} WHERE id IN (1, 10, 11, 20)")


@_builds("spark v2 name-mapping imported outside merge-on-read position-deletes partitions")
def imported(b: Builder) -> None:
    """Parquet files without field ids, from a folder that is none of the table's."""
    source = b.outside("hive")
    frame = b.spark.range(6).selectExpr("id", "concat('person ', id) AS name", "id % 2 AS part").coalesce(1)
    frame.write.partitionBy("part").parquet(str(source))
    b.create("id BIGINT, name STRING, part BIGINT", partition="part", properties=_MERGE_ON_READ)
    b.call("add_files", f"source_table => '`parquet`.`{source}`'")
    b.people(7, more=", 1")
    b.sql("DELETE FROM {t} WHERE id IN (1, 2)")


@_builds("spark v2 compacted expired rewritten-manifests merge-on-read position-deletes")
def maintained(b: Builder) -> None:
    """Compacted with the old sequence numbers, manifests merged, deletes rewritten, snapshots expired."""
    b.create(properties={**_MERGE_ON_READ, "write.metadata.previous-versions-max": "3"})
    for i in (1, 4, 7):
        b.people(i, i + 1, i + 2)
    b.sql("DELETE FROM {t} WHERE id IN (1, 4)")
    b.call("rewrite_data_files", "options => map('min-input-files', '2', 'rewrite-all', 'true')")
    b.sql("DELETE FROM {t} WHERE id IN (2)")
    b.sql("DELETE FROM {t} WHERE id IN (5)")
    b.call("rewrite_position_delete_files", "options => map('rewrite-all', 'true')")
    b.call("rewrite_manifests")
    oldest = b.snapshots()[:2]
    b.call("expire_snapshots", f"snapshot_ids => array({', '.join(map(str, oldest))})")


@_builds("spark v2 imported outside compacted expired merge-on-read position-deletes dangling-deletes")
def dangling_deletes(b: Builder) -> None:
    """Position deletes name a file that is gone, in a folder that nothing else of the table is in."""
    b.create(properties={**_MERGE_ON_READ, "write.delete.granularity": "partition"})
    b.people(1, 2, 3)
    source = b.outside("left")
    b.spark.range(10, 14).selectExpr("id", "concat('person ', id) AS name").coalesce(1).write.parquet(str(source))
    b.call("add_files", f"source_table => '`parquet`.`{source}`'")
    b.sql("DELETE FROM {t} WHERE id IN (2, 10)")
    b.call("rewrite_data_files", "where => 'id >= 10', options => map('rewrite-all', 'true')")
    b.call("rewrite_manifests")
    b.people(20)
    oldest = b.snapshots()[:-2]
    b.call("expire_snapshots", f"snapshot_ids => array({', '.join(map(str, oldest))})")


@_builds("spark v2 empty")
def empty(b: Builder) -> None:
    b.create()


@_builds(
    "spark v3 variant",
    unreadable={"pyiceberg": "it does not know the type", "duckdb": "it cannot hand the type on"},
)
def variant(b: Builder) -> None:
    b.create("id BIGINT, v VARIANT", version=3)
    b.sql("INSERT INTO {t} SELECT 1, parse_json('{\"a\": [1, null]}')")


# Other writers


@_builds("pyiceberg v2 copy-on-write partitions partition-evolution schema-evolution tags branches")
def pyiceberg_v2(b: Builder) -> None:
    table = b.new_by_pyiceberg(people().schema)
    table.append(people(1, 2, 3))
    table.delete(EqualTo("id", 2))
    table.manage_snapshots().create_tag(table.current_snapshot().snapshot_id, "first").commit()
    with table.update_spec() as spec:
        spec.add_field("id", BucketTransform(2), "bucket")
    with table.update_schema() as schema:
        schema.add_column("size", LongType())
    table.append(pa.table({"id": [4, 5, 6], "name": ["d", "e", "f"], "size": [1, None, 3]}))
    table.overwrite(pa.table({"id": [4], "name": ["D"], "size": [9]}), overwrite_filter=EqualTo("id", 4))
    table.manage_snapshots().create_branch(table.current_snapshot().snapshot_id, "audit").commit()
    table.append(pa.table({"id": [7], "name": ["g"], "size": [7]}), branch="audit")


@_builds("pyiceberg spark v1 copy-on-write partitions")
def pyiceberg_v1(b: Builder) -> None:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.types import NestedField

    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "name", StringType()))
    spec = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "name"))
    table = b.new_by_pyiceberg(schema, partition_spec=spec, properties={"format-version": "1"})
    table.append(people(1, 2))
    table.delete(EqualTo("id", 1))
    b.people(3)


@_builds("duckdb v2 merge-on-read position-deletes")
def duckdb_v2(b: Builder) -> None:
    _written_by_duckdb(b, 2)


@_builds("duckdb v3 merge-on-read deletion-vectors")
def duckdb_v3(b: Builder) -> None:
    _written_by_duckdb(b, 3)


def _written_by_duckdb(b: Builder, version: int) -> None:
    """DuckDB writes through REST servers only; the table is then registered in the catalog."""
    properties = f"'format-version'='{version}', 'location'='{b.folder}'"
    rest = load_catalog("rest", type="rest", uri=b.rest)
    rest.create_namespace_if_not_exists(b.namespace)
    with open_duckdb("httpfs") as connection:
        connection.execute(f"ATTACH '' AS lake (TYPE iceberg, ENDPOINT '{b.rest}', AUTHORIZATION_TYPE 'none')")
        for statement in (
            f"CREATE TABLE {{t}} (id BIGINT, name VARCHAR) WITH ({properties})",
            "INSERT INTO {t} SELECT i, 'person ' || i FROM range(1, 5) r(i)",
            "INSERT INTO {t} SELECT i, 'person ' || i FROM range(5, 9) r(i)",
            "DELETE FROM {t} WHERE id IN (2, 6)",
            "UPDATE {t} SET name = 'changed' WHERE id = 3",
        ):
            connection.execute(statement.replace("{t}", f"lake.{b.namespace}.{b.name}"))
    location = rest.load_table((b.namespace, b.name)).metadata_location
    rest.drop_table((b.namespace, b.name))
    b.register(location)


# Equality deletes, by Iceberg's Java writers


@_builds("java v2 equality-deletes position-deletes merge-on-read", unreadable=_EQUALITY)
def equality_deletes(b: Builder) -> None:
    b.create(properties=_MERGE_ON_READ)
    _delete_equal(b, "PARQUET")


@_builds(
    "java v2 equality-deletes partitions",
    unreadable={**_EQUALITY, "duckdb": "it applies the equality deletes of one partition to all"},
)
def equality_deletes_partitioned(b: Builder) -> None:
    b.create("id BIGINT, name STRING, part INT", partition="part", properties=_MERGE_ON_READ)
    b.insert("1, 'a', 1", "2, 'a', 2", "3, 'b', 1")
    b.delete_equal("a", partition=1)
    b.insert("4, 'a', 1")


@_builds("java v3 equality-deletes deletion-vectors merge-on-read", unreadable=_EQUALITY, slow=True)
def equality_deletes_v3(b: Builder) -> None:
    b.create(version=3, properties=_MERGE_ON_READ)
    _delete_equal(b, "PARQUET")


@_builds("java v2 equality-deletes avro", unreadable=_EQUALITY | _ONLY_PARQUET, slow=True)
def equality_deletes_avro(b: Builder) -> None:
    b.create(properties={**_MERGE_ON_READ, "write.format.default": "avro", "write.delete.format.default": "avro"})
    _delete_equal(b, "AVRO")


@_builds("java v2 equality-deletes orc", unreadable=_EQUALITY | _ONLY_PARQUET, slow=True)
def equality_deletes_orc(b: Builder) -> None:
    b.create(properties={**_MERGE_ON_READ, "write.format.default": "orc", "write.delete.format.default": "orc"})
    _delete_equal(b, "ORC")


def _delete_equal(b: Builder, file_format: str) -> None:
    b.people(1, 2, 3)
    b.delete_equal("person 2", file_format=file_format)
    b.people(2, 4)
    b.sql("DELETE FROM {t} WHERE id = 1")


def people(*ids: int) -> pa.Table:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    return pa.table({"id": list(ids), "name": [f"person {i}" for i in ids]}, schema=schema)


# Reading


#: Rows of each snapshot (by its id) and of each branch and tag (by its name).
Reads = dict[int | str, list[str]]


def read_all(
    engine: str, spark: SparkSession, identifier: str, metadata_location: str, *, times: bool = False
) -> Reads:
    """Reads every snapshot, branch and tag of a table: rows as text, sorted.

    Args:
        engine: `spark`, `pyiceberg` or `duckdb`.
        spark: a session, for `spark`.
        identifier: the table's name there.
        metadata_location: its metadata file, for the others.
        times: in Spark, also as of each time at which the current snapshot changed.
    """
    metadata = read_metadata(metadata_location)
    snapshots = [snapshot["snapshot-id"] for snapshot in metadata.get("snapshots", [])]
    refs = {name: ref["snapshot-id"] for name, ref in metadata.get("refs", {}).items()}
    if engine == "spark":
        log = metadata.get("snapshot-log", []) if times else []
        versions = {version: f"VERSION AS OF {_version(version)}" for version in [*snapshots, *refs]}
        versions |= {f"at {entry['timestamp-ms']}": _time(entry["timestamp-ms"]) for entry in log}
        return _read_spark(spark, identifier, versions, metadata["format-version"])
    if engine == "pyiceberg":
        return _read_pyiceberg(metadata_location, snapshots, refs)
    return _read_duckdb(metadata_location, snapshots)


def read_metadata(location: str) -> dict[str, Any]:
    data = Path(local_path(location) or location).read_bytes()
    return json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data)


def _read_spark(spark: SparkSession, identifier: str, versions: Mapping[int | str, str], format_version: int) -> Reads:
    """One query for all: what a row costs in it is little beside what a query costs."""
    hidden = ["_spec_id", "_partition"]
    if format_version >= 3:
        hidden += ["_row_id", "_last_updated_sequence_number"]
    columns = ", ".join(f"{name} AS h{name}" for name in hidden)
    keys = list(versions)
    queries = [
        f"SELECT {number} AS k, to_json(struct(*), map('ignoreNullFields', 'false')) AS r FROM "
        f"(SELECT *, {columns} FROM {identifier} {versions[key]})"
        for number, key in enumerate(keys)
    ]
    found: Reads = {key: [] for key in keys}
    if queries:
        for number, row in spark.sql(" UNION ALL ".join(queries)).collect():
            found[keys[number]].append(row)
    return {key: sorted(rows) for key, rows in found.items()}


def _version(version: int | str) -> str:
    return str(version) if isinstance(version, int) else f"'{version}'"


def _time(milliseconds: int) -> str:
    return f"TIMESTAMP AS OF '{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S.%f}'"


def _read_pyiceberg(metadata_location: str, snapshots: Iterable[int], refs: Mapping[str, int]) -> Reads:
    table = StaticTable.from_metadata(metadata_location)
    found: Reads = {number: _rows(table.scan(snapshot_id=number).to_arrow()) for number in snapshots}
    return found | {name: _rows(table.scan().use_ref(name).to_arrow()) for name in refs}


def _read_duckdb(metadata_location: str, snapshots: Iterable[int]) -> Reads:
    scan = "FROM iceberg_scan(?, snapshot_from_id=?)"
    path = local_path(metadata_location) or metadata_location
    with open_duckdb() as connection:
        return {number: _rows(connection.execute(scan, [path, number]).to_arrow_table()) for number in snapshots}


def open_duckdb(*extensions: str) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config=_OPTIONS)
    load_extensions(connection, "avro", "iceberg", *extensions)
    return connection


def _rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))
