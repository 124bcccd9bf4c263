"""What Frazil promises of every catalog. One suite, all kinds, both engines, real servers."""

from __future__ import annotations

import threading
import uuid

import pyarrow as pa
import pytest
from py4j.protocol import Py4JJavaError
from pyiceberg.exceptions import NamespaceNotEmptyError, NoSuchTableError, TableAlreadyExistsError

from frazil.catalogs import (
    abilities_of,
    flavor_of,
    list_namespaces,
    list_tables,
    load_table,
    load_without_schema,
    translated,
)
from frazil.errors import ConflictError, NotFoundError, UnsupportedError
from frazil.query import run_sql
from frazil.query.on_spark import spark_errors
from tests.lane import Lane, people
from tests.tiers import ALL_KINDS, kinds

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=kinds())
def lane(request, lane_settings, spark) -> Lane:
    return Lane(request.param, lane_settings, spark)


@pytest.fixture(scope="module")
def namespace(lane) -> str:
    name = f"ns_{uuid.uuid4().hex[:8]}"
    lane.sql(f"CREATE NAMESPACE {lane.flavor}.{name}")
    return name


@pytest.fixture
def table(namespace) -> str:
    """A name that is not taken."""
    return f"{namespace}.t_{uuid.uuid4().hex[:8]}"


@pytest.fixture
def abilities(lane):
    return abilities_of(lane.catalog_settings, lane.catalog.properties)


def create_on_spark(lane: Lane, table: str, *ids: int, version: int = 2, more: str = "") -> None:
    lane.sql(
        f"CREATE TABLE {lane.flavor}.{table} (id BIGINT, name STRING) USING iceberg "
        f"TBLPROPERTIES ('format-version'='{version}', 'commit.retry.num-retries'='20' {more})"
    )
    if ids:
        insert_on_spark(lane, table, *ids)


def insert_on_spark(lane: Lane, table: str, *ids: int) -> None:
    lane.sql(f"INSERT INTO {lane.flavor}.{table} VALUES " + ", ".join(f"({i}, 'person {i}')" for i in ids))


def create_with_pyiceberg(lane: Lane, table: str, *ids: int):
    created = lane.catalog.create_table(table, schema=people().schema, properties={"commit.retry.num-retries": "20"})
    if ids:
        created.append(people(*ids))
    return created


def rows(*ids: int) -> list[tuple[int, str]]:
    return [(i, f"person {i}") for i in ids]


def test_pyiceberg_reads_what_spark_made(lane, table):
    create_on_spark(lane, table, 1, 2)
    assert lane.pyiceberg_rows(table) == rows(1, 2)


def test_spark_reads_what_pyiceberg_made(lane, table):
    create_with_pyiceberg(lane, table, 1, 2)
    assert lane.spark_rows(table) == rows(1, 2)


@pytest.mark.parametrize("lane", ALL_KINDS, indirect=True)
def test_both_engines_append_to_one_table_and_see_each_others_rows(lane, table):
    created = create_with_pyiceberg(lane, table, 1)
    insert_on_spark(lane, table, 2)
    created.refresh()
    created.append(people(3))
    insert_on_spark(lane, table, 4)
    assert lane.spark_rows(table) == lane.pyiceberg_rows(table) == rows(1, 2, 3, 4)


def test_spark_sees_a_commit_of_pyiceberg_on_a_table_it_has_read_before(lane, table):
    create_on_spark(lane, table, 1)
    assert lane.spark_rows(table) == rows(1)
    lane.catalog.load_table(table).append(people(2))
    assert lane.spark_rows(table) == rows(1, 2)


def test_partitioned_tables_of_spark_take_rows_of_pyiceberg(lane, table):
    lane.sql(f"CREATE TABLE {lane.flavor}.{table} (id BIGINT, day DATE) USING iceberg PARTITIONED BY (days(day))")
    lane.sql(f"INSERT INTO {lane.flavor}.{table} VALUES (1, DATE '2026-01-01')")
    day = pa.array([20455], pa.int32()).cast(pa.date32())
    lane.catalog.load_table(table).append(pa.table({"id": pa.array([2], pa.int64()), "day": day}))
    assert [r[0] for r in lane.spark_rows(table)] == [r[0] for r in lane.pyiceberg_rows(table)] == [1, 2]
    files = lane.sql(f"SELECT partition.day_day, count(*) FROM {lane.flavor}.{table}.files GROUP BY 1")
    assert len(files) == 2


def test_rows_deleted_by_spark_are_gone_for_pyiceberg_and_duckdb(lane, table):
    create_on_spark(lane, table, more=", 'write.delete.mode'='merge-on-read'")
    lane.spark.range(0, 100, 1, 1).selectExpr("id", "concat('person ', id) AS name").writeTo(
        f"{lane.flavor}.{table}"
    ).append()
    lane.sql(f"DELETE FROM {lane.flavor}.{table} WHERE id >= 3")
    assert lane.sql(f"SELECT count(*) FROM {lane.flavor}.{table}.delete_files") == [(1,)], (
        "deletes were not merge-on-read"
    )
    assert lane.spark_rows(table) == lane.pyiceberg_rows(table) == duck_rows(lane, table) == rows(0, 1, 2)


def test_v3_deletion_vectors_of_spark_are_read_by_both(lane, table, abilities):
    create_on_spark(lane, table, version=3, more=", 'write.delete.mode'='merge-on-read'")
    lane.spark.range(0, 100, 1, 1).selectExpr("id", "concat('person ', id) AS name").writeTo(
        f"{lane.flavor}.{table}"
    ).append()
    written = delete_with_vectors(lane, table)
    assert written == abilities.v3
    if written:
        assert lane.catalog.load_table(table).metadata.format_version == 3
        assert lane.spark_rows(table) == lane.pyiceberg_rows(table) == duck_rows(lane, table) == rows(0, 1, 2)


def delete_with_vectors(lane: Lane, table: str) -> bool:
    """Deletes all but three rows, and says whether that made a deletion vector. Where it is refused, all rows stay."""
    try:
        lane.sql(f"DELETE FROM {lane.flavor}.{table} WHERE id >= 3")
    except Py4JJavaError:
        assert len(lane.spark_rows(table)) == 100
        return False
    return lane.sql(f"SELECT file_format FROM {lane.flavor}.{table}.delete_files") == [("PUFFIN",)]


def duck_rows(lane: Lane, table: str) -> list[tuple]:
    result = run_sql(f"SELECT id, name FROM {table} ORDER BY id", lane.settings, engine="duckdb", catalog=lane.flavor)
    assert result.engine == "duckdb"
    return [tuple(row.values()) for row in result.table.to_pylist()]


def test_a_stale_writer_loses_nothing(lane, table):
    """PyIceberg holds an old state while Spark commits: each must keep the other's rows."""
    stale = create_with_pyiceberg(lane, table, 1)
    insert_on_spark(lane, table, 2)
    append_until_it_lands(lane, stale, people(3))
    insert_on_spark(lane, table, 4)
    assert lane.spark_rows(table) == rows(1, 2, 3, 4)


def append_until_it_lands(lane: Lane, table, new: pa.Table) -> None:
    for _ in range(30):
        try:
            with translated(lane.catalog_settings):
                table.append(new)
        except ConflictError:
            table.refresh()
        else:
            return
    raise AssertionError("30 tries were not enough")


# Not on Glue: moto, which stands in for it here, ignores versions.
@pytest.mark.parametrize("lane", kinds("glue"), indirect=True)
def test_commits_of_two_engines_at_once_lose_nothing(lane, table):
    create_on_spark(lane, table, 0)
    count = 5

    def append_with_pyiceberg() -> None:
        mine = lane.catalog.load_table(table)
        for i in range(1, count + 1):
            append_until_it_lands(lane, mine, people(i))

    thread = threading.Thread(target=append_with_pyiceberg)
    thread.start()
    for i in range(101, 101 + count):
        insert_on_spark(lane, table, i)
    thread.join(300)
    assert (
        lane.spark_rows(table) == lane.pyiceberg_rows(table) == rows(0, *range(1, count + 1), *range(101, 101 + count))
    )


def test_a_namespace_made_by_one_engine_is_seen_and_dropped_by_the_other(lane):
    mine, theirs = (f"n_{uuid.uuid4().hex[:8]}" for _ in range(2))
    lane.catalog.create_namespace(mine)
    lane.sql(f"CREATE NAMESPACE {lane.flavor}.{theirs}")
    assert {(mine,), (theirs,)} <= set(list_namespaces(lane.catalog))
    assert {mine, theirs} <= {row[0] for row in lane.sql(f"SHOW NAMESPACES IN {lane.flavor}")}
    lane.sql(f"DROP NAMESPACE {lane.flavor}.{mine}")
    lane.catalog.drop_namespace(theirs)
    assert not {(mine,), (theirs,)} & set(list_namespaces(lane.catalog))


def test_a_namespace_with_tables_is_not_dropped(lane, table, namespace):
    create_on_spark(lane, table, 1)
    with pytest.raises(NamespaceNotEmptyError):
        lane.catalog.drop_namespace(namespace)
    assert lane.spark_rows(table) == rows(1)


def test_a_tables_places_and_snapshots_are_known_without_its_schema(lane, table):
    """So a table with types that PyIceberg does not know blocks no upkeep of others."""
    create_on_spark(lane, table, 1)
    identifier = tuple(table.split("."))
    known = lane.catalog.load_table(identifier)
    found = load_without_schema(lane.catalog, lane.catalog_settings, identifier)
    assert found.metadata_location == known.metadata_location
    assert found.location() == known.location()
    assert found.metadata.table_uuid == known.metadata.table_uuid
    assert [s.manifest_list for s in found.metadata.snapshots] == [s.manifest_list for s in known.metadata.snapshots]
    assert found.schema().fields == ()


def test_a_table_is_listed_and_a_name_is_given_only_once(lane, table, namespace):
    create_on_spark(lane, table, 1)
    assert tuple(table.split(".")) in list_tables(lane.catalog, lane.catalog_settings, namespace)
    if lane.flavor == "s3tables":  # SeaweedFS answers with the table that is there
        lane.catalog.create_table(table, schema=people().schema)
    else:
        with pytest.raises(TableAlreadyExistsError):
            lane.catalog.create_table(table, schema=people().schema)
    assert lane.spark_rows(table) == rows(1)


def test_a_renamed_table_keeps_its_rows(lane, table):
    create_on_spark(lane, table, 1)
    renamed = f"{table}_renamed"
    lane.catalog.rename_table(table, renamed)
    assert lane.spark_rows(renamed) == rows(1)
    assert not lane.catalog.table_exists(table)


def test_a_dropped_table_is_gone_for_both(lane, table):
    create_on_spark(lane, table, 1)
    lane.sql(f"DROP TABLE {lane.flavor}.{table}")
    assert not lane.catalog.table_exists(table)
    create_with_pyiceberg(lane, table, 1)
    lane.catalog.drop_table(table)
    assert not lane.spark.catalog.tableExists(f"{lane.flavor}.{table}")


def test_a_missing_table_is_not_found_and_the_nearest_is_named(lane, table):
    create_on_spark(lane, table)
    with pytest.raises(NotFoundError) as missing:
        load_table(lane.catalog, lane.catalog_settings, table[:-1] + "_")
    assert missing.value.hint == table
    with pytest.raises(NotFoundError), spark_errors():
        lane.sql(f"SELECT * FROM {lane.flavor}.{table}_nix")
    with pytest.raises(NoSuchTableError):
        lane.catalog.load_table(f"{table}_nix")


def test_the_flavor_is_recognised(lane):
    expected = "rest" if lane.flavor == "rest_on_s3" else lane.flavor
    assert flavor_of(lane.catalog_settings, lane.catalog.properties) == expected


# The table of abilities, line by line: what it says can be done is done, what it denies is refused.


def test_ability_history(lane, table, abilities):
    create_on_spark(lane, table, 1)
    insert_on_spark(lane, table, 2)
    first = lane.catalog.load_table(table).metadata.snapshots[0].snapshot_id
    assert (len(lane.catalog.load_table(table).metadata.snapshots) == 2) == abilities.history
    if abilities.history:
        assert sorted(lane.sql(f"SELECT * FROM {lane.flavor}.{table} VERSION AS OF {first}")) == rows(1)


def test_ability_refs(lane, table, abilities):
    create_on_spark(lane, table, 1)
    kept = True
    try:
        lane.sql(f"ALTER TABLE {lane.flavor}.{table} CREATE TAG the_first")
        kept = "the_first" in lane.catalog.load_table(table).metadata.refs
    except Exception:  # noqa: BLE001 - each server refuses in its own way
        kept = False
    assert kept == abilities.refs


def test_ability_register(lane, table, abilities):
    create_on_spark(lane, table, 1)
    location = lane.catalog.load_table(table).metadata_location
    try:
        lane.catalog.register_table(f"{table}_again", location)
        done = lane.pyiceberg_rows(f"{table}_again") == lane.spark_rows(f"{table}_again") == rows(1)
    except Exception:  # noqa: BLE001 - each server refuses in its own way
        done = False
    assert done == abilities.register


def test_ability_overwrite(lane, table, abilities):
    create_on_spark(lane, table, 1)
    old = lane.catalog.load_table(table).metadata_location
    insert_on_spark(lane, table, 2)
    try:
        lane.catalog.register_table(table, old, overwrite=True)
        done = lane.spark_rows(table) == rows(1)
    except Exception:  # noqa: BLE001 - each server refuses in its own way
        done = False
        assert lane.spark_rows(table) == rows(1, 2), "what is refused must change nothing"
    assert done == abilities.overwrite


def test_ability_views(lane, table, abilities):
    create_on_spark(lane, table, 1, 2)
    statement = f"CREATE VIEW {lane.flavor}.{table}_view AS SELECT id FROM {lane.flavor}.{table} WHERE id > 1"
    if abilities.views:
        lane.sql(statement)
        assert lane.sql(f"SELECT * FROM {lane.flavor}.{table}_view") == [(2,)]
        lane.sql(f"DROP VIEW {lane.flavor}.{table}_view")
    else:
        with pytest.raises(Exception):  # noqa: B017 - Spark and the catalogs refuse in their own ways
            lane.sql(statement)


def test_a_missing_ability_is_refused_with_its_reason(lane, abilities):
    for ability in ("history", "refs", "register", "overwrite", "views", "multi_writer", "v3"):
        if getattr(abilities, ability):
            abilities.require(ability, lane.flavor)
        else:
            with pytest.raises(UnsupportedError, match=ability):
                abilities.require(ability, lane.flavor)
