"""How much there is: objects, bytes, versions, tombstones; of all, and by prefix, class, day, type or bucket.

PyIceberg finds the files and streams their rows; DuckDB adds them up, and goes to the disk where groups are many.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from frazil.content.query.aggregation import aggregate
from frazil.content.query.filters import ObjectFilter
from frazil.content.query.objects import require_bucket
from frazil.content.tables import ContentTables
from frazil.errors import UsageError
from frazil.tables.reading.rows import RowScan

if TYPE_CHECKING:
    import duckdb
    from pyiceberg.table import Table

By = Literal["prefix", "class", "day", "type", "bucket"]

_COLUMNS = [
    "bucket", "key", "version_id", "size", "last_modified", "storage_class", "content_type", "is_latest", "is_deleted",
    "is_delete_marker",
]  # fmt: skip
_FOLDERS = "string_split(key, '/')"
#: Group → the columns it is made of.
_GROUPS: dict[str, dict[str, str]] = {
    "prefix": {
        "bucket": "bucket",
        "prefix": f"array_to_string(list_slice({_FOLDERS}, 1, least($depth, len({_FOLDERS}) - 1)) || [''], '/')",
    },
    "class": {"class": "storage_class"},
    "day": {"day": "CAST(last_modified AS DATE)"},
    "type": {"type": "content_type"},
    "bucket": {"bucket": "bucket"},
}
_CURRENT = "FILTER (WHERE is_latest AND NOT is_deleted AND NOT is_delete_marker)"
_THERE = "FILTER (WHERE NOT is_deleted AND NOT is_delete_marker)"
_LARGEST = "struct_pack(bucket := bucket, key := key, version_id := version_id, size := size)"
_MEASURES = f"""
    count(*) {_CURRENT} AS objects,
    CAST(coalesce(sum(size) {_CURRENT}, 0) AS BIGINT) AS bytes,
    count(*) {_THERE} AS versions,
    CAST(coalesce(sum(size) {_THERE}, 0) AS BIGINT) AS version_bytes,
    count(*) FILTER (WHERE is_deleted) AS tombstones,
    count(*) FILTER (WHERE is_delete_marker AND NOT is_deleted) AS markers,
    min(last_modified) {_CURRENT} AS oldest,
    max(last_modified) {_CURRENT} AS newest,
    arg_max({_LARGEST}, size) {_CURRENT} AS largest"""


@dataclass(frozen=True)
class Totals:
    """Sums of all that was asked for, and of its groups, those with most bytes first. `more`: there are others."""

    total: dict[str, Any]
    groups: list[dict[str, Any]]
    more: bool


def totals(
    tables: ContentTables,
    *,
    bucket: str | None = None,
    prefix: str | None = None,
    by: By | None = None,
    depth: int = 1,
    limit: int = 100,
) -> Totals:
    """Adds up a bucket, or all.

    Args:
        tables: where.
        bucket: only this one, as the tables have it.
        prefix: only keys that begin so.
        by: what to group by.
        depth: folders of a prefix, where they are grouped by.
        limit: at most so many groups.

    Raises:
        NotFoundError: the bucket is unknown, or the table does not exist yet.
    """
    if by is not None and by not in _GROUPS:
        raise UsageError(f"objects cannot be grouped by {by!r}", hint=", ".join(_GROUPS))
    selection = ObjectFilter(bucket=bucket, prefix=prefix, versions=True, markers=True, deleted="too")
    found = tables.read(tables.objects, lambda table: _added(tables, table, selection, by, depth, limit))
    if bucket is not None and not found.total["versions"] + found.total["tombstones"] + found.total["markers"]:
        require_bucket(tables, bucket)
    return found


def _added(
    tables: ContentTables, table: Table, selection: ObjectFilter, by: By | None, depth: int, limit: int
) -> Totals:
    rows = RowScan(tables.store, table, selection.to_expression(), _COLUMNS)
    with aggregate("objects", rows.schema, iter(rows)) as connection:
        total, *groups = _sums(connection, by, depth, limit)
    return Totals(total, groups[:limit], len(groups) > limit)


def _sums(connection: duckdb.DuckDBPyConnection, by: By | None, depth: int, limit: int) -> list[dict[str, Any]]:
    """The total first, then the groups, one more than wanted."""
    group = _GROUPS[by] if by is not None else {}
    names = ", ".join(f'"{name}"' for name in group)
    columns = ", ".join(f'{made} AS "group_{name}"' for name, made in group.items())
    keys = ", ".join(f'"group_{name}"' for name in group)
    grouped = f"GROUP BY GROUPING SETS (({keys}), ())" if group else ""
    shown = "".join(f'"group_{name}" AS "{name}", ' for name in group)
    statement = f"""
        SELECT {shown} {f"grouping({keys})" if group else "1"} AS is_total, {_MEASURES}
        FROM (SELECT *{", " + columns if group else ""} FROM objects)
        {grouped}
        ORDER BY is_total DESC, bytes DESC, objects DESC{", " + names if group else ""}
        LIMIT {limit + 2}"""  # noqa: S608 - names of our own
    values = {"depth": depth} if by == "prefix" else {}
    rows: list[dict[str, Any]] = connection.execute(statement, values).to_arrow_table().to_pylist()
    for row in rows:
        del row["is_total"]
    total = {name: value for name, value in rows[0].items() if name not in group}
    return [total, *rows[1:]]
