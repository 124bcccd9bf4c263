"""The state of a table's custom columns: existing ones, configured ones, and how many rows lack them. No JVM."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.fields.spec import BACKFILL_PROPERTY, Fields, FieldSpec, Plan, active_fields, plan_fields
from frazil.content.tables import ContentTables
from frazil.tables.reading.rows import RowScan
from frazil.tables.store import find_table

if TYPE_CHECKING:
    from pyiceberg.table import Table

ACTIVE = "active"
#: In the table, but not in the settings.
UNCONFIGURED = "unconfigured"
#: Rows with extraction results: these have `metadata`, unless it is not kept.
_LOOKED_INTO = ("ok", "failed")


@dataclass(frozen=True)
class Overview:
    """The custom columns of a table.

    Attributes:
        have: those it has.
        wanted: those of the settings.
        plan: what lies between.
        filling: names of those that are being computed for the rows that are there.
        lacking: number of extracted rows that lack each field of the table.
    """

    have: Fields
    wanted: Fields
    plan: Plan
    filling: list[str]
    lacking: dict[str, int]

    def rows(self) -> list[dict[str, Any]]:
        """Returns one row for each field, those of the settings first."""
        specs = {spec.name: spec for spec in (*self.wanted, *self.have)}
        specs |= {spec.name: spec for spec in self.wanted}
        return [self._row(spec) for spec in specs.values()]

    def _row(self, spec: FieldSpec) -> dict[str, Any]:
        state, why = self._state(spec.name)
        return {
            "name": spec.name,
            "type": spec.kind.name,
            "jpath": spec.jpath,
            "state": state,
            "why": why,
            "lacking": self.lacking.get(spec.name),
            "filling": spec.name in self.filling,
        }

    def _state(self, name: str) -> tuple[str, str | None]:
        if why := dict(self.plan.refused).get(name):
            return "refused", why
        for state, specs in (("add", self.plan.add), ("widen", self.plan.widen), ("redefine", self.plan.redefine)):
            if any(spec.name == name for spec in specs):
                return state, None
        return (UNCONFIGURED, None) if name in self.plan.drop else (ACTIVE, None)


def overview(tables: ContentTables, wanted: Fields, *, count: bool = True) -> Overview:
    """Returns the state of custom columns. A missing table has no fields.

    Args:
        tables: where.
        wanted: the fields of the settings.
        count: look into the rows, to say how many lack a field.
    """
    table = find_table(tables.store, tables.objects)
    if table is None:
        return Overview(Fields(), wanted, Plan(add=wanted.fields), [], {})
    have = active_fields(table.metadata.properties)
    lacking = tables.read(tables.objects, lambda now: _lacking(tables, now, have)) if count and have.fields else {}
    return Overview(have, wanted, plan_fields(have, wanted, table.schema()), being_filled(table), lacking)


def being_filled(table: Table) -> list[str]:
    """Returns the names of the fields that are being backfilled."""
    try:
        names = json.loads(table.metadata.properties.get(BACKFILL_PROPERTY) or "[]")
    except ValueError:
        return []
    return [str(name) for name in names] if isinstance(names, list) else []


def _lacking(tables: ContentTables, table: Table, fields: Fields) -> dict[str, int]:
    from pyiceberg.expressions import In

    if "frazil_fields" not in table.schema().column_names:
        return dict.fromkeys(fields.names, 0)
    where = In(term="extraction_status", literals=set(_LOOKED_INTO))
    marks = dict(zip(fields.names, fields.marks, strict=True))
    lacking = dict.fromkeys(fields.names, 0)
    for rows in RowScan(tables.store, table, where, ["frazil_fields", "extraction_status"]):
        found = _counted(rows.column("frazil_fields"), marks.values())
        for name, mark in marks.items():
            lacking[name] += rows.num_rows - found[mark]
    return lacking


def _counted(lists: pa.ChunkedArray, marks: Collection[str]) -> dict[str, int]:
    """Counts the lists that contain each mark, at most once each."""
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(pc.list_flatten(lists)).to_pylist()}
    return {mark: int(counts.get(mark, 0)) for mark in marks}
