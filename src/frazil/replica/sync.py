"""Brings a replica to the newest committed version whose files have all arrived.

Only what is new is read and relocated, beside the replicated folder, never in it. The served table changes by one
commit of its catalog, after all files are durable. What an interrupted run leaves are files that nothing refers to; the
next one goes on from there.
"""

from __future__ import annotations

import time
from dataclasses import replace
from datetime import UTC, datetime
from threading import Event
from typing import TYPE_CHECKING

from frazil.errors import ConflictError, FrazilError
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.progress import Progress
from frazil.replica.plan import ReplicaTable, SyncPlan, plan_sync
from frazil.replica.publication import Publication, republish
from frazil.replica.report import SyncReport, describe_plan
from frazil.replica.runs import record_run
from frazil.replica.state import read_served
from frazil.tables.create import ensure_namespace

if TYPE_CHECKING:
    from frazil.tables.relocation.engine import Engine
    from frazil.upkeep.context import UpkeepContext

log = get_logger(__name__)


def run_sync(
    care: UpkeepContext,
    table: ReplicaTable,
    engine: Engine,
    progress: Progress | None = None,
    stop: Event | None = None,
    *,
    discard_replica_writes: bool = False,
) -> SyncReport:
    """Brings a replica up to date. Nothing is changed if there is nothing new.

    Args:
        care: of the replica's catalog.
        table: to replicate.
        engine: that runs the tasks.
        progress: receives counts of what is done.
        stop: ends it before the next step; by default that of `care`.
        discard_replica_writes: take back what others committed to the replica.

    Raises:
        ConflictError: others have committed to the replica, during the sync or (without `discard_replica_writes`)
            before.
        FrazilError: as `plan_sync`; the served table is as it was.
        StoppedError: `stop` was set.
    """
    began, started_at = time.monotonic(), datetime.now(UTC)
    try:
        report = _run(care, table, engine, progress, stop or care.stop, discard_replica_writes)
    except FrazilError as error:
        record_run(care.store, table.name, "failed", started_at, time.monotonic() - began, error=error)
        raise
    report = replace(report, seconds=time.monotonic() - began)
    if report.action in ("created", "updated", "dropped"):
        record_run(
            care.store, table.name, report.action, started_at, report.seconds, report=report.to_dict(),
            replicated_path=table.replicated_path,
        )  # fmt: skip
        log.info("a replica is up to date", table=table.name, version=report.version, files=report.files_new)
    return report


def _run(
    care: UpkeepContext, table: ReplicaTable, engine: Engine, progress: Progress | None, stop: Event, discard: bool
) -> SyncReport:
    plan = plan_sync(care, table, stop=stop)
    if plan.action == "dropped":
        return _drop(care, plan)
    if plan.rename_to is not None and plan.writes is None:
        report = _run(care, _rename(care, plan), engine, progress, stop, discard)
        return _add_to(report, f"it was called {plan.table.name} before")
    if plan.writes is None:
        return _publish(care, plan, engine, progress, stop)
    if not discard:
        raise plan.writes
    assert plan.served is not None
    republish(care, plan.table, plan.served, plan.served.state)
    log.warning("writes to a replica were discarded", table=plan.table.name, former=plan.served.pointer)
    plan = plan_sync(care, table, stop=stop)
    if plan.writes is not None:
        raise plan.writes
    return _add_to(_publish(care, plan, engine, progress, stop), "what others wrote to it was discarded")


def _add_to(report: SyncReport, warning: str) -> SyncReport:
    """Returns the report of a sync before whose publication the table was changed."""
    action = "updated" if report.action in ("unchanged", "waiting") else report.action
    return replace(report, action=action, warnings=(*report.warnings, warning))


def _drop(care: UpkeepContext, plan: SyncPlan) -> SyncReport:
    reach("replica.drop.before")
    care.store.call_once(lambda: care.store.catalog.drop_table(plan.table.identifier))
    reach("replica.drop.after")
    log.warning("a replica was dropped, as its primary was; its files stay", table=plan.table.name)
    return describe_plan(plan, "dropped", plan.served)


def _rename(care: UpkeepContext, plan: SyncPlan) -> ReplicaTable:
    """Gives the replica the name that the primary's table has now."""
    assert plan.rename_to is not None
    store, name = care.store, plan.rename_to
    store.call(lambda: ensure_namespace(store, name[:-1]), "create_namespace")
    reach("replica.rename.before")
    store.call_once(lambda: store.catalog.rename_table(plan.table.identifier, name))
    reach("replica.rename.after")
    table = replace(plan.table, identifier=name)
    served = read_served(store, name)
    if served is not None:
        republish(care, table, served, replace(served.state, source_name=plan.source_name))
    log.warning("a replica was renamed, as its primary was", table=plan.table.name, name=table.name)
    return table


def _publish(care: UpkeepContext, plan: SyncPlan, engine: Engine, progress: Progress | None, stop: Event) -> SyncReport:
    if plan.publication is None:
        return describe_plan(plan, plan.action, plan.served)
    publication = Publication(care, plan, engine, progress, stop)
    try:
        publication.run()
    except ConflictError:
        # Another sync may have been faster.
        served = read_served(care.store, plan.table.identifier)
        if served is None or served.is_written or served.state.updated_ms < plan.updated_ms:
            raise
        return describe_plan(plan, "unchanged", served)
    state = publication.state
    return replace(
        describe_plan(plan, plan.action, None),
        source_metadata=state.source_metadata,
        version=state.version,
        witnessed=state.witnessed,
        snapshot_id=state.snapshot_id,
        snapshots=len(publication.metadata.get("snapshots") or ()),
        served_ms=state.updated_ms,
        manifests_new=publication.relocation.manifests,
        bytes_new=publication.relocation.bytes,
        metadata_location=publication.location,
        losses=tuple(dict.fromkeys((*plan.losses, *publication.losses))),
    )
