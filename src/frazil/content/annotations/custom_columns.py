"""Custom columns of the table: its definitions, changes by messages, and backfill of existing rows.

Runs in the driver. The table is the source of truth: properties hold the definitions, and the names of the columns
that are being backfilled. So work that a crash interrupts is continued at the next load of the table.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from frazil.content.fields import PROPERTY, Fields, Plan, active_fields, plan_fields
from frazil.content.fields.spec import BACKFILL_PROPERTY, STANDARD
from frazil.errors import ConfigError, FrazilError
from frazil.extract.status import FAILED, OK
from frazil.observe.logs import get_logger
from frazil.tables import PositionMovedError, TableStore, drop_columns, evolve_schema, set_properties

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyspark.sql import DataFrame, SparkSession

log = get_logger(__name__)


#: The table's property with the names of columns that are being dropped, as JSON.
_DROPPING = "frazil.content.dropping"


def fields_of(table: Table) -> Fields:
    """Returns the custom columns of the table, without ones that another program dropped or renamed."""
    ids = {f.name: f.field_id for f in table.schema().fields}
    known = active_fields(table.metadata.properties)
    there = [f.name for f in known if f.is_standard or ids.get(f.name) == (f.column_id or ids.get(f.name, -1))]
    return known.only(there)


def columns_to_fill(table: Table) -> Fields:
    """Returns the custom columns that are being backfilled."""
    return fields_of(table).only(_names(table, BACKFILL_PROPERTY))


def _names(table: Table, name: str) -> list[str]:
    try:
        found = json.loads(table.metadata.properties.get(name) or "[]")
    except ValueError:
        return []
    return [str(one) for one in found] if isinstance(found, list) else []


def declare(store: TableStore, table: Table, wanted: Fields) -> Table:
    """Applies the custom columns of the settings to the table; others stay.

    Raises:
        ConfigError: Iceberg's rules do not allow one of them.
    """
    table = _dropped(store, table)
    have = fields_of(table)
    plan = plan_fields(have, wanted, table.schema())
    if plan.refused:
        name, why = plan.refused[0]
        raise ConfigError(
            f"the custom column '{name}' cannot be as the settings say", cause=why, hint="frazil content fields"
        )
    same = (have.cast, have.include_raw_metadata) == (wanted.cast, wanted.include_raw_metadata)
    if not plan.changes and (same or wanted == Fields()):  # settings that say nothing change nothing
        return table
    return _changed(store, table, plan, have.with_changes(wanted))


def apply_changes(store: TableStore, table: Table, orders: Sequence[Mapping[str, Any]]) -> Table:
    """Applies changes by messages to the table. Impossible ones are logged, and change nothing.

    Raises:
        PositionMovedError: another pipeline was here since the table was read.
    """
    for order in orders:
        try:
            table = _apply_changes(store, table, order)
        except PositionMovedError:
            raise
        except (ValueError, ArithmeticError, RecursionError, TypeError) as error:
            log.warning("a message about custom columns is invalid and was ignored", error=str(error))
        except FrazilError as error:
            if error.retryable:
                raise
            log.warning(
                "custom columns could not be changed as requested by a message", error=error.message, cause=error.cause
            )
    return table


def _apply_changes(store: TableStore, table: Table, order: Mapping[str, Any]) -> Table:
    table = _dropped(store, table)
    on = table.metadata.current_snapshot_id
    wanted = Fields.parse(order)
    drop = [name for name in order.get("drop", ()) if isinstance(name, str)]
    have = fields_of(table)
    plan = plan_fields(have, wanted, table.schema())
    if plan.refused:
        raise ValueError("; ".join(f"{name}: {why}" for name, why in plan.refused))
    left = have.with_changes(wanted, drop)
    gone = [name for name in drop if have.get(name) is not None and left.get(name) is None]
    if gone:
        columns = [name for name in gone if name not in STANDARD]
        _refuse_needed(table, columns)
        # One commit with the remaining definitions: readers find every column that they name, and a crash is noticed.
        told = {PROPERTY: left.to_property(), _DROPPING: json.dumps(columns)}
        table = _dropped(store, set_properties(store, table, told, on=on))
    table = _changed(store, table, plan, left)
    asked = [name for name in order.get("backfill", ()) if left.get(name) is not None]
    if asked and left.include_raw_metadata:
        names = sorted({*columns_to_fill(table).names, *asked})
        table = set_properties(store, table, {BACKFILL_PROPERTY: json.dumps(names)}, on=on)
    return table


def _dropped(store: TableStore, table: Table) -> Table:
    """Drops the columns marked for dropping, including those that a failure left behind."""
    gone = _names(table, _DROPPING)
    if _DROPPING not in table.metadata.properties:
        return table
    table = drop_columns(store, table, gone, on=table.metadata.current_snapshot_id)
    left = [name for name in _names(table, BACKFILL_PROPERTY) if name not in gone]
    return set_properties(store, table, {_DROPPING: None, BACKFILL_PROPERTY: json.dumps(left) if left else None})


def _refuse_needed(table: Table, names: Sequence[str]) -> None:
    """Raises ValueError for a column that the partitioning or sort order uses."""
    specs = [field.source_id for spec in table.metadata.specs().values() for field in spec.fields]
    needed = {*specs, *(field.source_id for field in table.sort_order().fields)}
    for name in names:
        if table.schema().find_field(name).field_id in needed:
            raise ValueError(f"{name}: partitioning or sort order uses it")


def _changed(store: TableStore, table: Table, plan: Plan, fields: Fields) -> Table:
    """Changes the columns first, then the property with their definitions."""
    columns = Fields(plan.changes, fields.cast).columns()
    if len(columns):
        table = evolve_schema(store, table, columns, widen=True)
    ids = {f.name: f.field_id for f in table.schema().fields}
    told = {PROPERTY: fields.placed(ids).to_property()}
    return set_properties(store, table, told, on=table.metadata.current_snapshot_id)


def find_unfilled_rows(spark: SparkSession, table: str, fields: Fields, at_most: int) -> DataFrame:
    """Returns data file and position of the first rows that lack one of the fields."""
    from pyspark.sql.functions import array_contains, coalesce, col, lit

    wanted = lit(False)
    for mark in fields.marks:
        wanted = wanted | ~coalesce(array_contains(col("frazil_fields"), mark), lit(False))
    rows = spark.sql(f"SELECT extraction_status, frazil_fields, _file, _pos FROM {table}")  # noqa: S608 - our own name
    rows = rows.where(col("extraction_status").isin(OK, FAILED) & wanted).select("_file", "_pos")
    return rows.limit(at_most)


def mark_filled(store: TableStore, table: Table, fields: Fields) -> Table:
    """Marks the backfill of these columns as done; ones requested since then stay."""
    table = store.load(table.name())
    done = set(fields.marks)
    left = [field.name for field in columns_to_fill(table) if field.mark(fields.cast) not in done]
    return set_properties(store, table, {BACKFILL_PROPERTY: json.dumps(left) if left else None})
