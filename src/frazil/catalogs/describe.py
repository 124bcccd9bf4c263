"""What there is to say about a table, as plain data. The JSON of `frazil table` is exactly this."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING, Any

from frazil.errors import NotFoundError

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionSpec
    from pyiceberg.table import Table
    from pyiceberg.typedef import Record
    from pyiceberg.types import IcebergType


def describe(table: Table) -> dict[str, Any]:
    metadata = table.metadata
    snapshot = table.current_snapshot()
    summary = _summary(snapshot)
    schema = table.schema()
    return {
        "table": ".".join(table.name()),
        "uuid": str(metadata.table_uuid),
        "format_version": metadata.format_version,
        "location": metadata.location,
        "metadata_location": table.metadata_location,
        "partitioning": [f"{f.transform}({schema.find_column_name(f.source_id)})" for f in table.spec().fields],
        "sort_order": [
            f"{f.transform}({schema.find_column_name(f.source_id)}) {f.direction.value}"
            for f in table.sort_order().fields
        ],
        "snapshot_id": snapshot.snapshot_id if snapshot else None,
        "updated_at": _moment(metadata.last_updated_ms),
        "snapshots": len(metadata.snapshots),
        "refs": {name: ref.snapshot_id for name, ref in metadata.refs.items()},
        "rows": _number(summary, "total-records"),
        "data_files": _number(summary, "total-data-files"),
        "delete_files": _number(summary, "total-delete-files"),
        "bytes": _number(summary, "total-files-size"),
        "columns": [
            {"id": f.field_id, "name": f.name, "type": str(f.field_type), "required": f.required, "doc": f.doc}
            for f in schema.fields
        ],
        "properties": dict(metadata.properties),
    }


def snapshot_rows(table: Table) -> list[dict[str, Any]]:
    refs: dict[int, list[str]] = {}
    for name, ref in table.metadata.refs.items():
        refs.setdefault(ref.snapshot_id, []).append(name)
    rows = []
    for snapshot in sorted(table.metadata.snapshots, key=lambda s: (s.sequence_number or 0, s.timestamp_ms)):
        summary = _summary(snapshot)
        rows.append(
            {
                "snapshot_id": snapshot.snapshot_id,
                "parent_id": snapshot.parent_snapshot_id,
                "committed_at": _moment(snapshot.timestamp_ms),
                "operation": snapshot.summary.operation.value if snapshot.summary else None,
                "added_rows": _number(summary, "added-records", missing=0),
                "removed_rows": _number(summary, "deleted-records", missing=0),
                "added_files": _number(summary, "added-data-files", missing=0),
                "removed_files": _number(summary, "deleted-data-files", missing=0),
                "total_rows": _number(summary, "total-records"),
                "refs": sorted(refs.get(snapshot.snapshot_id, [])),
            }
        )
    return rows


def history_rows(table: Table) -> list[dict[str, Any]]:
    ancestors = set()
    snapshot = table.current_snapshot()
    while snapshot is not None:
        ancestors.add(snapshot.snapshot_id)
        snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id) if snapshot.parent_snapshot_id else None
    return [
        {
            "made_current_at": _moment(entry.timestamp_ms),
            "snapshot_id": entry.snapshot_id,
            "is_current_ancestor": entry.snapshot_id in ancestors,
        }
        for entry in table.metadata.snapshot_log
    ]


def file_rows(table: Table, snapshot_id: int | None = None) -> list[dict[str, Any]]:
    """Lists the live data and delete files from the manifests, for any format version."""
    snapshot = table.snapshot_by_id(snapshot_id) if snapshot_id is not None else table.current_snapshot()
    if snapshot is None:
        if snapshot_id is None:
            return []
        raise NotFoundError(
            f"{'.'.join(table.name())} has no snapshot {snapshot_id}",
            hint=f"frazil table snapshots {'.'.join(table.name())}",
        )
    rows = []
    for manifest in snapshot.manifests(table.io):
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            file = entry.data_file
            spec = table.specs()[manifest.partition_spec_id]
            rows.append(
                {
                    "content": file.content.name.lower(),
                    "path": file.file_path,
                    "format": file.file_format.value.lower(),
                    "rows": file.record_count,
                    "bytes": file.file_size_in_bytes,
                    "partition": _partition(table, spec, file.partition),
                    "sequence_number": entry.sequence_number,
                }
            )
    return sorted(rows, key=lambda row: (row["sequence_number"], row["path"]))


def _partition(table: Table, spec: PartitionSpec, values: Record) -> dict[str, str]:
    """As people read it: a month is 2025-03, not 662."""
    found = {}
    for position, part in enumerate(spec.fields):
        source, value = _type_of(table, part.source_id), values[position]
        found[part.name] = str(value) if source is None else part.transform.to_human_string(source, value)
    return found


def _type_of(table: Table, column: int) -> IcebergType | None:
    """Returns the type of a column, dropped ones included: older files are still partitioned by them."""
    earlier = sorted(table.schemas().values(), key=lambda schema: schema.schema_id, reverse=True)
    for schema in (table.schema(), *earlier):
        if schema.find_column_name(column) is not None:
            return schema.find_type(column)
    return None


def _summary(snapshot: Any) -> dict[str, str]:
    return dict(snapshot.summary.additional_properties) if snapshot is not None and snapshot.summary else {}


def _number(summary: dict[str, str], key: str, missing: int | None = None) -> int | None:
    return int(summary[key]) if key in summary else missing


def _moment(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC).isoformat(timespec="milliseconds")
