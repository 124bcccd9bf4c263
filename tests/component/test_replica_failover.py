"""Failovers: what is shown before, what keeps the old primary's writers out, and what the new primary can do."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io.pyarrow import _dataframe_to_data_files

from frazil.backup.create import create_backup
from frazil.backup.repository import Repository
from frazil.errors import ConflictError, NotAllowedError, NotFoundError
from frazil.observe.faultpoints import handled
from frazil.replica.failover import FailoverReport, plan_failover, run_failover
from frazil.replica.runs import list_runs
from frazil.tables import Position, commit_append, find_position
from frazil.tables.relocation.engine import LocalEngine
from frazil.tables.schema_evolution import evolve_schema
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import pins
from frazil.upkeep.runs.rewrite_table import rewrite_table
from tests.replica_sync_kit import Pair, describe, grow, make, open_pair, stop_at
from tests.upkeep_files import Crash, rows


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with open_pair(tmp_path) as made:
        made.copy()
        made.sync()
        yield made


def fail_over(pair: Pair, primary: UpkeepContext | None = None, **options: bool) -> FailoverReport:
    with LocalEngine() as engine:
        return run_failover(pair.replica, "ns.t", engine, primary=primary, **options)


def test_a_plan_shows_the_lag_and_what_would_be_lost(pair: Pair) -> None:
    grow(pair.table)
    pair.copy()
    grow(pair.table, 2)
    pair.copy([name for name in pair.list_new() if name.endswith(".json")])
    before = pair.load().metadata_location
    (plan,) = plan_failover(pair.replica, ["ns.t"])
    assert (plan.version, plan.next_version, plan.primary, len(plan.lost)) == (3, 4, "not-given", 2)
    assert plan.missing and plan.lag_s is not None and plan.lag_s > 0
    grow(pair.table)
    (plan,) = plan_failover(pair.replica, ["ns.t"], primary=pair.primary)
    assert (plan.primary, [snapshot.rows for snapshot in plan.lost]) == ("reached", [1, 1, 1])
    assert plan.to_dict()["lost"][0]["operation"] == "append"
    assert pair.load().metadata_location == before


def test_a_failover_serves_what_has_arrived_and_takes_writes(pair: Pair) -> None:
    grow(pair.table)
    pair.copy()
    expected = describe(pair.table)
    with pair.without_primary():
        report = fail_over(pair)
        assert (report.version, report.fenced_as, report.lost) == (4, None, ())
        assert describe(pair.load()) == expected
        table = grow(pair.load())
        assert rows(table) == [1, 2, 3, 4, 5]
    assert "gc.enabled" not in table.properties
    assert table.properties["frazil.replica.snapshot-id"] == str(expected["current"][0])
    with pytest.raises(NotAllowedError, match="no replica any more"):
        pair.sync()
    assert plan_failover(pair.replica, ["ns.t"])[0].is_done
    results = [run["result"] for run in list_runs(pair.replica.store)]
    assert sorted(results) == ["created", "failed", "failover", "updated"]


def test_new_files_of_the_new_primary_lie_beside_the_replicated_folder(pair: Pair) -> None:
    before = {path for path in pair.landed.rglob("*") if path.is_file()}
    fail_over(pair)
    grow(pair.load())
    assert {path for path in pair.landed.rglob("*") if path.is_file()} == before


def test_the_old_primary_is_fenced_where_it_can_be_reached(pair: Pair) -> None:
    stale = pair.primary.store.catalog.load_table("ns.t")
    grow(pair.table)
    report = fail_over(pair, pair.primary)
    assert (len(report.lost), report.version) == (1, 3)
    assert report.fenced_as is not None
    with pytest.raises(NoSuchTableError):
        grow(stale)
    assert rows(pair.primary.store.catalog.load_table(report.fenced_as)) == [1, 2, 3, 4]


@pytest.mark.parametrize("step", ["fence.before", "fence.after", "failover.before", "failover.after"])
def test_a_failover_that_stops_is_continued(pair: Pair, step: str) -> None:
    with handled(stop_at(f"replica.{step}", Crash())), pytest.raises(Crash):
        fail_over(pair, pair.primary)
    fail_over(pair, pair.primary)
    assert rows(grow(pair.load())) == [1, 2, 3, 4]
    assert not pair.primary.store.catalog.table_exists("ns.t")


def test_what_somebody_wrote_to_the_replica_stays(pair: Pair) -> None:
    grow(pair.load())
    (plan,) = plan_failover(pair.replica, ["ns.t"])
    assert "another writer committed" in plan.warnings[0]
    fail_over(pair)
    assert rows(grow(pair.load())) == [1, 2, 3, 4, 5]


def test_a_table_that_is_not_the_primary_is_not_fenced(pair: Pair) -> None:
    catalog = pair.primary.store.catalog
    catalog.rename_table("ns.t", "ns.away")
    make(pair.primary, "ns.t", commits=1)
    with pytest.raises(ConflictError, match="is not the primary"):
        fail_over(pair, pair.primary)
    assert pair.load().properties["gc.enabled"] == "false"
    fail_over(pair, pair.primary, allow_unfenced=True)
    assert rows(catalog.load_table("ns.t")) == [1]


def test_only_replicas_fail_over(pair: Pair) -> None:
    make(pair.replica, "ns.own", commits=1)
    with pytest.raises(NotAllowedError):
        plan_failover(pair.replica, ["ns.own"])
    with pytest.raises(NotFoundError):
        plan_failover(pair.replica, ["ns.none"])


def test_frazil_refuses_to_write_a_replica_until_the_failover(pair: Pair) -> None:
    table, before = pair.load(), pair.load().metadata_location
    files = list(_dataframe_to_data_files(table.metadata, table.scan().to_arrow(), table.io))
    reached = Position("archive", "t", {0: 3}, "log", 1, "batch")

    def append() -> None:
        commit_append(pair.replica.store, pair.load(), files, expected=None, reached=reached)

    for write in (
        append,
        lambda: evolve_schema(pair.replica.store, pair.load(), pa.schema([("new", pa.string())])),
        lambda: pins.pin(pair.replica, pair.load(), "query", 60),
        lambda: rewrite_table(pair.replica, pair.load(), "compact", {}),
    ):
        with pytest.raises(NotAllowedError, match=r"ns\.t is a replica and is read-only") as error:
            write()
        assert error.value.hint == "frazil replica failover ns.t"
    assert pair.load().metadata_location == before

    repository = Repository.open(
        str(pair.home / "backups"), s3=pair.replica.settings.model.s3, network=pair.replica.settings.model.network,
        create=True,
    )  # fmt: skip
    assert create_backup(pair.replica, repository, ["ns.t"], engine="local").tables[0].snapshots == 3
    assert pair.load().metadata_location == before, "a backup of a replica sets no pin"
    assert pair.sync().action == "unchanged"

    fail_over(pair)
    append()
    assert find_position(pair.load(), "archive", "t") is not None
