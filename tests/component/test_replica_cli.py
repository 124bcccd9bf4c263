"""`frazil replica` in this process, without a JVM: what it refuses, and which exit codes it gives."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import structlog

import frazil
from frazil.cli.run import run_command
from frazil.replica.plan import SyncPlan
from tests.e2e.conftest import fingerprint
from tests.replica_kit import PrimaryTable, Replication, numbers, open_primary
from tests.upkeep_files import care_of


class Cli:
    """Commands at the site of the replica. The primary's storage is copied to `dr`."""

    def __init__(self, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.folder, self._capfd = folder, capfd
        self.settings = {"home": str(folder / "site"), "replica.replicated_path": str(folder / "dr")}

    def __call__(self, *args: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        flags = [part for name, value in self.settings.items() for part in ("--set", f"{name}={value}")]
        code = run_command("replica", "replica", [*args, *flags])
        out, errors = self._capfd.readouterr()
        return code, out, errors

    def json(self, *args: str) -> Any:
        code, out, errors = self(*args, "--output", "json")
        assert code == 0, errors
        return json.loads(out)

    def prints(self, *args: str) -> str:
        code, out, errors = self(*args)
        assert code == 0, errors
        return out

    def refuses(self, *args: str, code: int, says: str) -> str:
        before = fingerprint(self.folder / "dr")
        got, _, errors = self(*args)
        assert got == code, errors
        assert "error: " in errors and "Try: " in errors and "Traceback" not in errors and "report it" not in errors
        assert says in errors, errors
        assert fingerprint(self.folder / "dr") == before
        return errors


@pytest.fixture
def table(tmp_path: Path) -> Iterator[PrimaryTable]:
    with open_primary(tmp_path) as primary:
        made = primary.create("prod.orders", commits=2)
        primary.create("prod.events")
        Replication(primary.warehouse, tmp_path / "dr").run()
        yield made


@pytest.fixture
def cli(tmp_path: Path, table: PrimaryTable, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    yield Cli(tmp_path, capfd)
    structlog.reset_defaults()


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "no table is named"),
        (("orders",), 2, "'orders' is not a table name"),
        (("--table", "orders"), 2, "needs --database"),
        (("--database", "prod"), 2, "needs --table"),
        (("prod.orders", "--all"), 2, "--all and tables are given"),
        (("prod.invoices",), 10, "the table prod.invoices does not exist"),
        (("prod.orders", "--catalog", "nowhere"), 10, "unknown catalog 'nowhere'"),
        (("prod.orders", "--source-prefix", "s3://a"), 2, "is not a prefix map"),
        (("prod.orders", "--prune-missing"), 2, "for --mode data-files"),
        (("prod.orders", "--mode", "files"), 2, "'files'"),
        (("prod.orders", "--log-level", "loud"), 2, "'loud'"),
        (("--all",), 10, "the settings name no tables to replicate"),
        (("prod.orders", "--warehouse", "{dr}", "--replicated-path", "{dr}/prod/orders"), 12, "cannot lie in"),
    ],
)
def test_a_wrong_call_of_sync_changes_nothing(cli: Cli, args: tuple[str, ...], code: int, says: str):
    cli.refuses("sync", *(arg.format(dr=cli.folder / "dr") for arg in args), code=code, says=says)


def test_it_is_not_known_where_the_storage_is_copied_to(cli: Cli):
    del cli.settings["replica.replicated_path"]
    cli.refuses("sync", "prod.orders", code=2, says="it is not known where the storage of prod.orders is copied to")


def test_a_path_without_a_table_says_what_to_try(cli: Cli, tmp_path: Path):
    (tmp_path / "empty").mkdir()
    errors = cli.refuses("sync", "a.b", "--replicated-path", str(tmp_path / "empty"), code=10, says="no Iceberg table")
    assert "--mode data-files" in errors


def test_all_tables_below_a_path_are_synced(cli: Cli):
    found = cli.json("sync", "--all", "--replicated-path", str(cli.folder / "dr"))
    assert [(one["identifier"], one["action"]) for one in found] == [
        ("prod.events", "created"), ("prod.orders", "created"),
    ]  # fmt: skip
    out = cli.prints("sync", "--all", "--replicated-path", str(cli.folder / "dr"))
    assert out.splitlines()[1].split()[:3] == ["prod.events", "unchanged", "1"]


def test_a_plan_changes_nothing_and_needs_no_catalog(cli: Cli, tmp_path: Path):
    plan = cli.json("plan", "prod.orders", "--catalog", "dr", "--warehouse", str(tmp_path / "replica"))
    assert (plan["action"], plan["version"], plan["done"]) == ("created", 2, False)
    assert not (tmp_path / "replica").exists()
    cli.refuses(
        "status", "--catalog", "dr", "--warehouse", str(tmp_path / "replica"), code=10, says="no embedded catalog"
    )


def test_a_replica_that_others_wrote_to_is_refused_with_both_histories(cli: Cli, tmp_path: Path):
    cli.prints("sync", "prod.orders")
    care = care_of(tmp_path / "site")
    care.load("prod.orders").append(numbers(99))
    errors = cli.refuses("sync", "prod.orders", code=11, says="committed to the replica prod.orders")
    assert "--discard-replica-writes" in errors and errors.count("(append)") == 5
    assert cli.json("status")[0]["is_written"]
    assert cli.json("sync", "prod.orders", "--discard-replica-writes")["action"] == "updated"
    assert not cli.json("status")[0]["is_written"]


def test_missing_files_are_named_by_verify(cli: Cli, tmp_path: Path):
    cli.prints("sync", "prod.orders")
    assert cli.json("verify", "prod.orders")[0]["sound"]
    lost = next((tmp_path / "dr" / "prod" / "orders" / "data").rglob("*.parquet"))
    lost.unlink()
    code, out, errors = cli("verify")
    assert code == 13 and lost.name in out and "1 files of the replica prod.orders are missing" in errors
    cli.refuses("verify", "prod.invoices", code=10, says="prod.invoices")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "no table is named"),
        (("prod.orders", "--yes", "--dry-run"), 2, "--yes does it"),
        (("prod.invoices", "--yes"), 10, "prod.invoices"),
        (("prod.orders",), 2, "a failover needs --yes"),
        (("prod.orders", "--primary", "frazil"), 2, "is the catalog of the replicas"),
        (("frazil.replica_runs", "--yes"), 12, "is no replica"),
    ],
)
def test_a_failover_is_shown_before_it_is_done(cli: Cli, args: tuple[str, ...], code: int, says: str):
    cli.prints("sync", "prod.orders")
    cli.refuses("failover", *args, code=code, says=says)
    assert cli.json("status")[0]["role"] == "replica"


def test_a_failover_fences_the_old_primary(cli: Cli, tmp_path: Path, table: PrimaryTable):
    cli.settings |= {
        "catalog.name": "site",
        "catalog.uri": f"sqlite:///{tmp_path / 'site.db'}",
        "catalogs.frazil.uri": f"sqlite:///{tmp_path / 'home' / 'catalog.db'}",
    }
    cli.prints("sync", "prod.orders")
    lost = table.append(rows=3)
    assert "reached" in cli.prints("failover", "prod.orders", "--primary", "frazil", "--dry-run")
    (plan,) = cli.json("failover", "prod.orders", "--primary", "frazil", "--dry-run")
    assert [snapshot["rows"] for snapshot in plan["lost"]] == [3] and not plan["done"]
    out = cli.prints("failover", "prod.orders", "--primary", "frazil", "--yes")
    assert "prod.orders is the primary now" in out and "the old primary's table is now prod.orders_fenced_" in out
    assert lost.rows == (1, 2, 3, 4, 5) and not table.care.store.catalog.table_exists("prod.orders")


def test_bare_parquet_files_become_a_table(cli: Cli, tmp_path: Path):
    folder = tmp_path / "dr" / "logs" / "requests" / "day=2026-01-01"
    folder.mkdir(parents=True)
    pq.write_table(pa.table({"id": [1, 2]}), folder / "a.parquet")
    made = cli.json("sync", "logs.requests", "--mode", "data-files")
    assert (made["action"], made["files_new"], made["rows"]) == ("created", 1, 2)
    assert cli.json("sync", "logs.requests", "--mode", "data-files")["action"] == "unchanged"
    (folder / "a.parquet").unlink()
    pq.write_table(pa.table({"id": [3]}), folder / "b.parquet")
    assert cli.json("plan", "logs.requests", "--mode", "data-files")["gone"]
    made = cli.json("sync", "logs.requests", "--mode", "data-files", "--prune-missing")
    assert len(made["removed"]) == 1
    assert cli.json("status")[0]["mode"] == "data-files" and cli.json("verify")[0]["sound"]


def test_the_same_in_python(tmp_path: Path, table: PrimaryTable):
    dr, site = str(tmp_path / "dr"), str(tmp_path / "site")
    with frazil.connect(home=site, settings={"replica.replicated_path": dr, "log.min_free": 0}) as lake:
        replica = lake.replica
        plan = replica.plan("prod.orders")
        assert isinstance(plan, SyncPlan) and (plan.action, replica.status()) == ("created", [])
        assert replica.sync("prod.orders", warehouse=str(tmp_path / "place")).action == "created"
        assert replica.sync("prod.orders").action == "unchanged"
        assert [one.state for one in replica.status("prod.orders")] == ["current"]
        assert replica.verify("prod.orders").is_sound
        assert [plan.lost for plan in replica.plan_failover("prod.orders")] == [()]
        assert replica.failover("prod.orders").version == 2
        assert [run["result"] for run in replica.history("prod.orders")] == ["failover", "created"]
        assert [one.identifier for one in replica.beacon(str(tmp_path / "beacon"), "prod.orders").tables] == [
            ("prod", "orders")
        ]
        with pytest.raises(frazil.NotFoundError, match="the settings name no tables"):
            replica.run()
