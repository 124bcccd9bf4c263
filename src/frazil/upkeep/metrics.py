"""Metrics of upkeep, by table."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from frazil.observe.metrics import counter, gauge
from frazil.upkeep.model import Outcome

if TYPE_CHECKING:
    from frazil.upkeep.plans.census import Census

STEPS = counter(
    "frazil_upkeep_steps_total",
    "Steps of upkeep, by result: done, nothing, conflict, unsupported, stopped (on request, or by the time limit), "
    "failed",
    *("table", "kind", "result"),
)
SECONDS = counter("frazil_upkeep_seconds_total", "Seconds spent on upkeep, including inspections of the table", "table")
CONFLICTS = counter("frazil_upkeep_conflicts_total", "Commits of upkeep that lost against another writer", "table")
BYTES_REWRITTEN = counter("frazil_upkeep_bytes_rewritten_total", "Bytes that upkeep has rewritten", "table")
FILES_BEFORE = counter("frazil_upkeep_files_before_total", "Files that upkeep has replaced", "table")
FILES_AFTER = counter("frazil_upkeep_files_after_total", "Files that upkeep has written as replacement", "table")
BYTES_RECLAIMED = counter("frazil_upkeep_bytes_reclaimed_total", "Bytes that upkeep has removed from storage", "table")
FILES = gauge("frazil_upkeep_table_files", "Data files of a table at the last inspection by upkeep", "table")
DELETE_FILES = gauge(
    "frazil_upkeep_table_delete_files", "Delete files of a table at the last inspection by upkeep", "table"
)
SNAPSHOTS = gauge("frazil_upkeep_table_snapshots", "Snapshots of a table at the last inspection by upkeep", "table")
METADATA_BYTES = gauge(
    "frazil_upkeep_table_metadata_bytes", "Bytes of a table's metadata at the last inspection by upkeep", "table"
)

_GAUGES = (FILES, DELETE_FILES, SNAPSHOTS, METADATA_BYTES)


def record_outcome(table: str, outcome: Outcome) -> None:
    STEPS.labels(table, outcome.kind, outcome.result).inc()
    CONFLICTS.labels(table).inc(outcome.conflicts)
    BYTES_REWRITTEN.labels(table).inc(outcome.bytes_rewritten)
    FILES_BEFORE.labels(table).inc(outcome.files_before)
    FILES_AFTER.labels(table).inc(outcome.files_after)
    BYTES_RECLAIMED.labels(table).inc(outcome.bytes_reclaimed)


def show_census(census: Census) -> None:
    FILES.labels(census.table).set(census.files)
    DELETE_FILES.labels(census.table).set(census.delete_files)
    SNAPSHOTS.labels(census.table).set(census.snapshots)
    METADATA_BYTES.labels(census.table).set(census.metadata_bytes)


def forget(table: str) -> None:
    """Removes the gauges of a table that is gone."""
    for one in _GAUGES:
        with suppress(KeyError):
            one.remove(table)
