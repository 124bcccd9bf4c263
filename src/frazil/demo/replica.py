"""Chapter 8: replicated storage, half of it at first, becomes a live table, and takes over from a lost primary."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import IntegrityError
from frazil.replica.config import ReplicaConfig
from frazil.replica.failover import plan_failover, run_failover
from frazil.replica.many import sync_table
from frazil.replica.report import SyncReport
from frazil.replica.verify import verify_replica
from frazil.settings import CatalogSettings, Settings
from frazil.tables.relocation.engine import Engine, open_engine
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.runs.open_context import open_context

if TYPE_CHECKING:
    import pyarrow as pa

TABLE = "standby.orders"
_SOURCE = "standby.orders"


def chapter(stage: Stage, settings: Settings, _session: SharedSession) -> None:
    stage.chapter("Chapter 8: replicated storage becomes a live table, and takes over when the primary is lost")
    folder = settings.model.home.parent / "replica"
    site, copy = folder / "primary", folder / "copied"
    primary = Settings(settings.model.model_copy(update={"home": site, "catalog": CatalogSettings()}))
    config = ReplicaConfig(TABLE, settings.catalog().name, str(copy), str(settings.model.home / "warehouse"))
    # Without Spark: all of this is done by PyIceberg.
    with open_context(settings) as care, open_engine("local", settings) as engine:
        with open_context(primary) as source:
            rows = _write_first(stage, source)
            _replicate(stage, site / "warehouse", copy, "another program copies the primary's storage")
            _sync(stage, care, config, engine, rows)
            newer = _write_more(stage, source)
        _replicate(stage, site / "warehouse", copy, "a partial replication: metadata arrives before data", "*.parquet")
        half = _sync(stage, care, config, engine, rows)
        if not half.missing:
            raise IntegrityError("nothing is missing, so the demo has shown nothing", hint="please report it")
        stage.table(["file that has not arrived"], [[text] for text in half.missing])
        _replicate(stage, site / "warehouse", copy, "the rest arrives")
        _sync(stage, care, config, engine, newer)
        with stage.step(f"frazil replica verify {TABLE}: every file exists"):
            if (error := verify_replica(care, TABLE).error) is not None:
                raise error
        _fail_over(stage, care, engine, site, newer)


def _orders(first: int, last: int) -> pa.Table:
    import pyarrow as pa

    ids = list(range(first, last))
    return pa.table({"id": pa.array(ids, pa.int64()), "price": [10.0 + one % 90 for one in ids]})


def _write_first(stage: Stage, source: UpkeepContext) -> int:
    with stage.step(f"PyIceberg writes {_SOURCE} at the primary: two commits"):
        orders = _orders(0, 1000)
        source.store.catalog.create_namespace("standby")
        table = source.store.catalog.create_table(_SOURCE, orders.schema)
        table.append(orders)
        table.append(_orders(1000, 1500))
    return 1500


def _write_more(stage: Stage, source: UpkeepContext) -> int:
    with stage.step("the primary continues: 500 more orders, and some cancellations"):
        table = source.load(_SOURCE)
        table.append(_orders(1500, 2000))
        table.delete("id < 100")
    return 1900


def _replicate(stage: Stage, source: Path, target: Path, what: str, *left_out: str) -> None:
    with stage.step(what):
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*left_out))


def _sync(stage: Stage, care: UpkeepContext, config: ReplicaConfig, engine: Engine, rows: int) -> SyncReport:
    with stage.step(f"frazil replica sync {TABLE}") as record:
        report = sync_table(care, config, engine)
        record |= report.to_dict()
    found = _count(care)
    if found != rows:
        raise IntegrityError(f"the replica has {found} rows instead of {rows}", hint="please report it")
    stage.table(
        ["result", "version served", "newest version that is arriving", "snapshots", "rows", "files missing"],
        [[report.action, report.version, report.newest_version, report.snapshots, f"{found:,}", len(report.missing)]],
    )
    return report


def _count(care: UpkeepContext) -> int:
    return int(care.load(TABLE).scan(selected_fields=("id",)).to_arrow().num_rows)


def _fail_over(stage: Stage, care: UpkeepContext, engine: Engine, site: Path, rows: int) -> None:
    with stage.step("disaster: delete the primary with its catalog and storage"):
        shutil.rmtree(site)
    with stage.step(f"frazil replica failover {TABLE}: the plan") as record:
        (plan,) = plan_failover(care, [TABLE])
        record |= plan.to_dict()
    with stage.step(f"frazil replica failover {TABLE} --yes") as record:
        record |= run_failover(care, TABLE, engine).to_dict()
    with stage.step("write new orders to the former replica"):
        care.load(TABLE).append(_orders(2000, 2100))
    shown: list[list[Any]] = [["lost snapshots", len(plan.lost)], ["rows before", rows], ["rows now", _count(care)]]
    stage.table(["failover", ""], shown)
