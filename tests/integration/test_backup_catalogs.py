"""A table goes from any kind of catalog and storage to any other by a backup, after the original is lost."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise, permutations

import pytest
from pyiceberg.table import Table

from frazil.backup.repository import Repository
from frazil.backup.restorable import check_restorable
from frazil.backup.restore import run_restore
from frazil.backup.rollback import rollback_restore
from frazil.catalogs import abilities_of, flavor_of, open_catalog
from frazil.errors import ConflictError, UnsupportedError
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.storage import open_store
from frazil.tables import TableStore
from frazil.tables.relocation.engine import SparkEngine
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry.pins import pins
from tests.lane import people
from tests.restore_kit import back_up, history, plan, restore, rows_at, run_plan

pytestmark = [pytest.mark.spark, pytest.mark.deep, pytest.mark.timeout(600)]
#: Each kind once as source and once as target.
CIRCLE = ("sql", "rest", "hive", "rest_on_s3", "glue", "s3tables", "nessie", "sql")
FIRST = list(pairwise(CIRCLE))
REST = [pytest.param(*pair, marks=pytest.mark.slow) for pair in permutations(CIRCLE[:-1], 2) if pair not in FIRST]


@contextmanager
def care_for(settings: Settings, name: str, *others: str) -> Iterator[UpkeepContext]:
    """A catalog of the lane, and those others that a plan looks at."""
    model = settings.model
    chosen = settings.catalog(name)
    catalogs = {other: model.catalogs[other] for other in others if other != name}
    alone = replace(settings, model=model.model_copy(update={"catalog": model.catalogs[name], "catalogs": catalogs}))
    with TableStore(open_catalog(chosen, model.network), chosen, model.network) as store:
        yield UpkeepContext(alone, chosen, store, lambda: pytest.fail("this needs no JVM"), threading.Event())


def make_history(care: UpkeepContext, name: str) -> Table:
    """A table with a deletion, and with a branch and a tag where the catalog keeps them."""
    catalog = care.store.catalog
    catalog.create_namespace_if_not_exists(name.split(".")[0])
    table = catalog.create_table(name, schema=people().schema)
    table.append(people(1, 2))
    table.refresh().append(people(3))
    kept = table.refresh().metadata.snapshots
    if abilities_of(care.catalog, dict(catalog.properties)).refs and len(kept) > 1:
        first = kept[0].snapshot_id
        table.manage_snapshots().create_tag(first, "first").create_branch(first, "side").commit()
    table.refresh().delete("id = 2")
    return table.refresh()


def lose(care: UpkeepContext, table: Table) -> None:
    """Deletes everything that a table has."""
    model = care.settings.model
    care.store.catalog.drop_table(table.name())
    store = open_store(table.location(), s3=care.catalog.s3 or model.s3, network=model.network)
    for info in list(store.list()):
        store.delete(info.key)


@pytest.mark.parametrize(("source", "target"), [*FIRST, *REST])
def test_a_lost_table_comes_back_in_another_catalog(spark, lane_settings, tmp_path, source, target):
    names = [f"b_{uuid.uuid4().hex[:8]}.{end}" for end in ("source", "target")]
    with care_for(lane_settings, source) as origin, care_for(lane_settings, target) as care:
        table = make_history(origin, names[0])
        before = history(table)
        repository = open_at(origin, str(tmp_path / "backups"))
        record = back_up(origin, repository, names[0])
        lose(origin, table)
        assert check_restorable(repository, record, record.tables[0]).is_restorable
        flavor = flavor_of(care.catalog, dict(care.store.catalog.properties))
        current_only = flavor == "nessie"
        if current_only and len(before["rows"]) > 1:
            with pytest.raises(UnsupportedError, match="Nessie"):
                plan(care, repository, record, names[1])
        planned = plan(care, repository, record, names[1], current_only=current_only)
        report = run_plan(care, repository, planned)
        lost = {loss for loss in report.losses if not loss.startswith("properties are added")}  # by the service
        assert lost <= set(planned.losses), "a loss was not planned"
        restored = care.store.load(names[1])
        check_history(restored, before, current_only=current_only, is_lossy=bool(planned.losses))
        for snapshot in restored.metadata.snapshots:
            query = f"SELECT COUNT(*) FROM {target}.{names[1]} VERSION AS OF {snapshot.snapshot_id}"
            assert spark.sql(query).collect()[0][0] == len(before["rows"][snapshot.snapshot_id])
        restored.append(people(9))
        assert len(rows_at(restored.refresh())) == 3
        with pytest.raises(ConflictError):
            plan(care, repository, record, names[1], current_only=current_only)
        assert plan(care, repository, record, names[1], current_only=current_only, if_not_exists=True).action == "keep"


def check_history(restored: Table, before: dict, *, current_only: bool, is_lossy: bool) -> None:
    found = history(restored)
    if current_only:
        current = before["current"][0]
        assert found["rows"] == {current: before["rows"][current]}
        return
    assert found["rows"] == before["rows"]
    assert found["refs"] == before["refs"]
    if not is_lossy:
        assert found["log"] == before["log"]


@pytest.mark.parametrize("kind", ["rest", "hive", "glue", "rest_on_s3"])
def test_a_replaced_table_is_rolled_back_in_other_catalogs(lane_settings, tmp_path, kind):
    name = f"b_{uuid.uuid4().hex[:8]}.t"
    with care_for(lane_settings, kind) as care:
        table = make_history(care, name)
        before = history(table)
        repository = open_at(care, str(tmp_path / "backups"))
        record = back_up(care, repository, name)
        table.append(people(7, 8))
        now = history(table)
        report = restore(care, repository, record, name, replace=True)
        assert report.uuid == str(table.metadata.table_uuid)
        check_history(care.store.load(name), before, current_only=False, is_lossy=bool(report.losses))
        undone = rollback_restore(care, name)
        found = care.store.load(name)
        assert found.location() == table.location()
        check_history(found, now, current_only=False, is_lossy=bool(undone.losses))
        found.append(people(9))
        assert len(rows_at(found.refresh())) == 5


def test_a_service_that_assigns_the_location_refuses_another(lane_settings, tmp_path):
    with care_for(lane_settings, "sql") as origin, care_for(lane_settings, "s3tables") as care:
        name = f"b_{uuid.uuid4().hex[:8]}.t"
        table = make_history(origin, name)
        repository = open_at(origin, str(tmp_path / "backups"))
        record = back_up(origin, repository, name)
        with pytest.raises(UnsupportedError, match="assigns the location"):
            plan(care, repository, record, name, location="s3://elsewhere/t")
        planned = plan(care, repository, record, name)
        assert planned.location is None
        assert planned.losses
        del table


def test_executors_of_spark_restore_a_table(spark, lane_settings, tmp_path):
    name = f"b_{uuid.uuid4().hex[:8]}.t"
    with care_for(lane_settings, "sql") as care:
        table = make_history(care, name)
        before = history(table)
        repository = open_at(care, str(tmp_path / "backups"))
        record = back_up(care, repository, name)
        lose(care, table)
        report = run_restore(care, repository, plan(care, repository, record, name), SparkEngine(lambda: spark))
        assert report.files == record.tables[0].files
        assert history(care.store.load(name)) == before
        assert check_restorable(repository, record, record.tables[0], SparkEngine(lambda: spark)).is_restorable


def test_a_repository_on_s3_gives_tables_to_s3(lane_settings, services, tmp_path):
    name = f"b_{uuid.uuid4().hex[:8]}.t"
    with care_for(lane_settings, "rest_on_s3") as care:
        table = make_history(care, name)
        before = history(table)
        bucket = table.location().split("/")[2]
        repository = open_at(care, f"s3://{bucket}/backups-{uuid.uuid4().hex[:8]}")
        record = back_up(care, repository, name)
        lose(care, table)
        place = f"s3://{bucket}/restored/{uuid.uuid4().hex[:8]}"
        report = restore(care, repository, record, name, location=place)
        assert report.location == place
        assert history(care.store.load(name)) == before
        store = open_store(place, s3=care.catalog.s3 or care.settings.model.s3, network=care.settings.model.network)
        assert "frazil-restore.json" not in {info.key for info in store.list()}


@pytest.mark.parametrize("kind", ["sql", "hive", "glue", "rest"])
def test_a_table_of_format_version_3_is_pinned_without_a_jvm(spark, lane_settings, tmp_path, kind):
    """Spark, whose Java library commits in its own way, goes on with the table during and after the backup."""
    name = f"b_{uuid.uuid4().hex[:8]}.t"
    spark.sql(f"CREATE NAMESPACE {kind}.{name.split('.')[0]}")
    spark.sql(f"CREATE TABLE {kind}.{name} (id BIGINT) USING iceberg TBLPROPERTIES ('format-version'='3')")
    spark.sql(f"INSERT INTO {kind}.{name} VALUES (1), (2)")
    found = []
    with care_for(lane_settings, kind) as care:

        def look(step: str) -> None:
            if step == "backup.create.pinned":
                found.extend(pins(care.load(name)))
                spark.sql(f"INSERT INTO {kind}.{name} VALUES (3)")

        with handled(look):
            record = back_up(care, open_at(care, str(tmp_path / "backups")), name)
        assert [pin.snapshot_id for pin in found] == [record.tables[0].current_snapshot_id]
        assert set(care.load(name).metadata.refs) == {"main"}
    spark.sql(f"INSERT INTO {kind}.{name} VALUES (4)")
    assert [row[0] for row in spark.sql(f"SELECT id FROM {kind}.{name} ORDER BY id").collect()] == [1, 2, 3, 4]


def open_at(care: UpkeepContext, root: str) -> Repository:
    model = care.settings.model
    s3 = care.catalog.s3 or model.s3
    return Repository.open(root, s3=s3, network=model.network, create=True)
