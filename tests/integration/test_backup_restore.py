"""Tables that other writers made come back from a backup: all engines read in each snapshot what they read before."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from frazil.backup.compare import compare_rows
from frazil.backup.repository import Repository
from frazil.backup.restorable import check_restorable
from frazil.errors import NotFoundError
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.upkeep.context import UpkeepContext
from tests.relocation_driver import find_mentions
from tests.relocation_tables import Reads, Zoo, read_all, read_metadata, species
from tests.restore_kit import back_up, folder_of, restore, rows_at

pytestmark = pytest.mark.spark
#: Of each kind of writer and delete one.
FIRST = ("spark_v2", "spark_v3", "placed_elsewhere", "equality_deletes")
DEEP = [name for name in species() if name not in FIRST]
SLOW = sorted(set(species(slow=True)) - set(species()))
#: Tables whose rows are compared by Spark, too.
COMPARED = ("spark_v3", "schema_evolution", "variant")


@pytest.fixture(scope="module")
def care(zoo: Zoo, lane_settings: Settings) -> Iterator[UpkeepContext]:
    # Without the other catalogs, whose tables a plan would look at.
    model = lane_settings.model
    alone = replace(lane_settings, model=model.model_copy(update={"catalog": model.catalogs["sql"], "catalogs": {}}))
    chosen = lane_settings.catalog("sql")
    with TableStore(zoo.catalog, chosen, model.network) as store:
        yield UpkeepContext(alone, chosen, store, lambda: zoo.spark, threading.Event())


@pytest.fixture(scope="module")
def repository(care: UpkeepContext, tmp_path_factory: pytest.TempPathFactory) -> Repository:
    model = care.settings.model
    root = tmp_path_factory.mktemp("repository")
    return Repository.open(str(root / "backups"), s3=model.s3, network=model.network, create=True)


@pytest.mark.parametrize("name", FIRST)
def test_a_restored_table_reads_as_the_original(
    zoo: Zoo, care: UpkeepContext, repository: Repository, name: str, tmp_path: Path
) -> None:
    check_restored(zoo, care, repository, name, tmp_path)


@pytest.mark.deep
@pytest.mark.parametrize("name", DEEP)
def test_further_tables_read_as_the_original(
    zoo: Zoo, care: UpkeepContext, repository: Repository, name: str, tmp_path: Path
) -> None:
    check_restored(zoo, care, repository, name, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_further_kinds_of_deletes_are_restored(
    zoo: Zoo, care: UpkeepContext, repository: Repository, name: str, tmp_path: Path
) -> None:
    check_restored(zoo, care, repository, name, tmp_path)


def check_restored(zoo: Zoo, care: UpkeepContext, repository: Repository, name: str, tmp_path: Path) -> None:
    table = zoo.table(name)
    originals = {engine: zoo.read_original(engine, name) for engine in table.engines}
    times = read_times(zoo, table.identifier, table.metadata_location)
    record = back_up(care, repository, ".".join(table.identifier.split(".")[1:]), name=name)
    checked = check_restorable(repository, record, record.tables[0])
    assert checked.problems == ()
    target = f"{zoo.namespace}.{name}_restored"
    report = restore(care, repository, record, target, location=str(tmp_path / "the restored table"))
    assert find_mentions(folder_of(report.location), str(zoo.home)) == []
    identifier = f"sql.{target}"
    if name in COMPARED:
        compared = compare_rows(zoo.spark, table.identifier.split("."), identifier.split("."))
        assert compared.is_equal, compared.to_dict()
        assert (len(compared.snapshots), compared.skipped) == (report.snapshots, ())
    with zoo.moved_away(name):
        for engine, original in originals.items():
            assert read_all(engine, zoo.spark, identifier, report.metadata_location) == original, engine
        assert read_times(zoo, identifier, report.metadata_location) == times
        if "v3" in table.features:
            check_row_ids(zoo, identifier)


def read_times(zoo: Zoo, identifier: str, metadata_location: str) -> Reads:
    """The number of rows at each time at which a snapshot became current."""
    log = read_metadata(metadata_location).get("snapshot-log", [])
    times = [datetime.fromtimestamp(entry["timestamp-ms"] / 1000, UTC).isoformat() for entry in log]
    query = " UNION ALL ".join(
        f"SELECT {number} AS n, COUNT(*) AS c FROM {identifier} TIMESTAMP AS OF '{time}'"
        for number, time in enumerate(times)
    )
    return {row[0]: [str(row[1])] for row in zoo.spark.sql(query).collect()} if query else {}


def check_row_ids(zoo: Zoo, identifier: str) -> None:
    """New rows get ids that no row ever had."""
    ids = f"SELECT _row_id FROM {identifier}"
    before = {row[0] for row in zoo.spark.sql(ids).collect()}
    highest = max([i for i in before if i is not None], default=-1)
    zoo.spark.sql(f"INSERT INTO {identifier} SELECT * FROM {identifier} LIMIT 2")
    fresh = [row[0] for row in zoo.spark.sql(ids).collect() if row[0] not in before]
    assert fresh
    assert all(i > highest for i in fresh)
    assert len(set(fresh)) == len(fresh)


@pytest.mark.parametrize(
    "name", ["spark_v3", *(pytest.param(name, marks=pytest.mark.deep) for name in ("spark_v1", "schema_evolution"))]
)
def test_a_table_restored_at_any_snapshot_is_what_it_was(
    zoo: Zoo, care: UpkeepContext, repository: Repository, name: str
) -> None:
    table = zoo.table(name)
    record = back_up(care, repository, ".".join(table.identifier.split(".")[1:]), name=f"{name}-at")
    log = read_metadata(table.metadata_location)["snapshot-log"]
    for number, entry in enumerate(log):
        if number and number < len(log) - 2 and number % 2:
            continue
        snapshot, target = entry["snapshot-id"], f"{zoo.namespace}.{name}_at_{number}"
        at = datetime.fromtimestamp(entry["timestamp-ms"] / 1000, UTC)
        restore(care, repository, record, target, as_of=at)
        zoo.spark.sql(f"INSERT INTO sql.{target} SELECT * FROM sql.{target} WHERE false")
        query = "SELECT to_json(struct(*), map('ignoreNullFields', 'false')) FROM {} ORDER BY 1"
        with zoo.moved_away(name):
            found = [row[0] for row in zoo.spark.sql(query.format(f"sql.{target}")).collect()]
        expected = zoo.spark.sql(query.format(f"{table.identifier} VERSION AS OF {snapshot}")).collect()
        assert found == [row[0] for row in expected], number
        if "pyiceberg" in table.engines:
            assert len(rows_at(care.store.load(target))) == len(found)


# -- comparison of rows


@pytest.mark.deep
def test_rows_are_compared_whatever_their_order_and_types(zoo: Zoo, care: UpkeepContext) -> None:
    columns = (
        "id INT, m MAP<STRING, DOUBLE>, s STRUCT<a: MAP<INT, BINARY>, `b.c`: ARRAY<FLOAT>>, "
        "d DECIMAL(20, 4), t TIMESTAMP, n TIMESTAMP_NTZ, `odd.name` DATE, b BINARY"
    )
    rows = [
        (
            "1, map('a', 1.5D, 'b', double('NaN')), "
            "named_struct('a', map(1, X'00FF'), 'b.c', array(float('NaN'), null)), "
            "12345.6789, TIMESTAMP '2026-01-01 00:00:00.000001', TIMESTAMP_NTZ '2026-01-01 00:00:00.000001', "
            "DATE '2026-01-01', X'FF'"
        ),
        "2, null, null, null, null, null, null, null",
        "2, null, null, null, null, null, null, null",
        "3, map(), named_struct('a', null, 'b.c', array()), 0, TIMESTAMP '1969-12-31 23:59:59.999999', null, null, X''",
    ]
    one, other = (f"sql.{zoo.namespace}.{name}" for name in ("rows_one", "rows_other"))
    for name in (one, other):
        zoo.spark.sql(f"CREATE TABLE {name} ({columns}) USING iceberg")
    zoo.spark.sql(f"INSERT INTO {one} VALUES {', '.join(f'({row})' for row in rows)}")
    swapped = rows[0].replace("'a', 1.5D, 'b', double('NaN')", "'b', double('NaN'), 'a', 1.5D")
    zoo.spark.sql(f"INSERT INTO {other} VALUES {', '.join(f'({row})' for row in [*reversed(rows[1:]), swapped])}")
    assert fingerprints(zoo, one) == fingerprints(zoo, other)
    for change in (
        "UPDATE {t} SET t = t + INTERVAL 1 MICROSECOND WHERE id = 1",
        "UPDATE {t} SET b = X'FE' WHERE id = 1",
        "UPDATE {t} SET m = map('a', 1.5D, 'b', 0D) WHERE id = 1",
        "UPDATE {t} SET s = null WHERE id = 3",
        "DELETE FROM {t} WHERE id = 3",
    ):
        before = fingerprints(zoo, other)
        zoo.spark.sql(change.replace("{t}", other))
        assert fingerprints(zoo, other) != before, change


def fingerprints(zoo: Zoo, name: str) -> tuple[int, int, int]:
    from frazil.backup import compare

    newest = compare._snapshot_ids(zoo.spark, name.split("."))[-1]
    return compare._fingerprint(compare._row_texts(zoo.spark, name.split("."), newest)[1])


def test_a_difference_is_shown_by_its_rows(zoo: Zoo, care: UpkeepContext, repository: Repository) -> None:
    name = f"{zoo.namespace}.compared"
    zoo.spark.sql(
        f"CREATE TABLE sql.{name} (id INT, v STRING) USING iceberg "
        "TBLPROPERTIES ('write.parquet.compression-codec'='uncompressed')"
    )
    zoo.spark.sql(f"INSERT INTO sql.{name} SELECT /*+ COALESCE(1) */ * FROM VALUES (1, 'apple'), (2, 'banana')")
    record = back_up(care, repository, name, name="compared")
    restore(care, repository, record, f"{name}_r")
    restored = care.store.load(f"{name}_r")
    (path,) = [task.file.file_path for task in restored.scan().plan_files()]
    file = Path(path.removeprefix("file://"))
    file.write_bytes(file.read_bytes().replace(b"banana", b"banyan"))
    compared = compare_rows(zoo.spark, ["sql", *name.split(".")], ["sql", *f"{name}_r".split(".")])
    assert not compared.is_equal
    (snapshot,) = compared.snapshots
    assert (snapshot.source_rows, snapshot.restored_rows) == (2, 2)
    assert sorted(example.partition(":")[0] for example in snapshot.examples) == ["only in restored", "only in source"]
    zoo.spark.sql(f"CREATE TABLE sql.{name}_q (id INT) USING iceberg")
    zoo.spark.sql(f"INSERT INTO sql.{name}_q VALUES (1)")
    with pytest.raises(NotFoundError, match="none of the snapshots"):
        compare_rows(zoo.spark, ["sql", *name.split(".")], ["sql", *f"{name}_q".split(".")])
