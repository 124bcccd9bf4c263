"""The difference of two table metadata as one REST commit: requirements and updates, in the specification's JSON.

A REST server applies updates as if they happened one after another now. Where that would change ids, sequence numbers,
row ids or times, placeholders are added and removed in the same commit. What cannot be brought about is a loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from frazil.errors import UnsupportedError
from frazil.tables.metadata_losses import Json, Metadata, find_losses, normalize, same_schema, same_spec

_PLACEHOLDER = "frazil_placeholder_{}"
_MAIN = "main"
_ROW_LINEAGE = 3


@dataclass(frozen=True)
class MetadataUpdates:
    """One commit.

    Attributes:
        requirements: that the table is still as it was when this was made.
        updates: in order.
        losses: what the table will lack afterwards, one sentence each.
    """

    requirements: list[Json]
    updates: list[Json]
    losses: tuple[str, ...]


def diff_metadata(
    base: Metadata, wanted: Metadata, *, now_ms: int | None = None, keeps_history: bool = True
) -> MetadataUpdates:
    """Returns the commit that turns a table from `base` into `wanted`.

    Args:
        base: the table's metadata as the catalog shows it.
        wanted: the prepared metadata, with the same table UUID.
        now_ms: the time of the commit.
        keeps_history: False for Nessie, which keeps the snapshot that was added last, and removes none on request.

    Raises:
        UnsupportedError: no list of updates leads there.
    """
    difference = _Difference(normalize(base), normalize(wanted), now_ms or time.time_ns() // 1_000_000)
    found = difference.build()
    return found if keeps_history else replace(found, updates=difference.without_history())


class _Difference:
    """Collects the updates, and follows what the server's metadata will be after each."""

    def __init__(self, base: Json, wanted: Json, now_ms: int) -> None:
        self._base = base
        self._wanted = wanted
        self._now = max(now_ms, base["last-updated-ms"])
        self._updates: list[Json] = []
        self._names = count(1)
        used = {s["snapshot-id"] for s in (*base["snapshots"], *wanted["snapshots"])}
        self._free_snapshot_ids = (n for n in count(1) if n not in used)
        self._version = base["format-version"]
        self._sequence = base["last-sequence-number"]
        self._next_row = base.get("next-row-id", 0)
        self._column = base["last-column-id"]
        self._schemas = {schema["schema-id"]: schema for schema in base["schemas"]}
        self._current_schema = base["current-schema-id"]
        #: Wanted schema ids to those that the server gives.
        self._schema_ids: dict[int, int] = {}
        self._snapshots: dict[int, Json] = {s["snapshot-id"]: s for s in base["snapshots"]}
        self._log: list[Json] = list(base["snapshot-log"])
        self._placeholder_schemas: list[int] = []
        self._placeholder_specs: list[int] = []
        self._placeholder_snapshots: list[int] = []

    def build(self) -> MetadataUpdates:
        wanted = self._wanted
        if wanted["location"] != self._base["location"]:
            self._add("set-location", location=wanted["location"])
        self._plan_schema_ids()
        self._remove_snapshots()
        without_row_ids = [s for s in self._missing_snapshots() if s.get("first-row-id") is None]
        if self._version < _ROW_LINEAGE <= wanted["format-version"]:
            self._add_snapshots(without_row_ids)
        if self._version < wanted["format-version"]:
            self._add("upgrade-format-version", **{"format-version": wanted["format-version"]})
            self._version = wanted["format-version"]
        self._add_schemas()
        self._add_specs()
        self._add_sort_orders()
        self._set_current_schema(self._schema_ids[wanted["current-schema-id"]])
        self._add_snapshots(self._missing_snapshots())
        self._raise_counters()
        self._set_refs()
        self._set_statistics()
        self._set_properties()
        self._remove_placeholders()
        losses = find_losses(self._predicted(), wanted)
        return MetadataUpdates(_requirements(self._base), self._updates, losses)

    def without_history(self) -> list[Json]:
        """Returns the updates without removals, of which Nessie knows none, and without snapshots that would stay."""
        removals = ("remove-snapshots", "remove-snapshot-ref", "remove-schemas", "remove-partition-specs")
        return [
            update
            for update in self._updates
            if update["action"] not in removals
            and update.get("snapshot", {}).get("snapshot-id") not in self._placeholder_snapshots
        ]

    def _add(self, action: str, **more: Any) -> None:
        self._updates.append({"action": action, **more})

    def _plan_schema_ids(self) -> None:
        """Schemas keep their ids where the server would give them; it reuses equal ones, and else counts on."""
        known = dict(self._schemas)
        for schema in sorted(self._wanted["schemas"], key=lambda schema: schema["schema-id"]):
            wanted_id = schema["schema-id"]
            same = [n for n, other in known.items() if same_schema(schema, other)]
            if same:
                self._schema_ids[wanted_id] = wanted_id if wanted_id in same else same[0]
            else:
                self._schema_ids[wanted_id] = max(wanted_id, *(n + 1 for n in known))
                known[self._schema_ids[wanted_id]] = schema

    def _add_schemas(self) -> None:
        for schema in sorted(self._wanted["schemas"], key=lambda schema: self._schema_ids[schema["schema-id"]]):
            given = self._schema_ids[schema["schema-id"]]
            if given in self._schemas:
                continue
            while max(self._schemas) + 1 < given:
                self._add_placeholder_schema(1)
            self._add_schema({**schema, "schema-id": given})
        column = max(self._column, self._wanted["last-column-id"])
        if self._keeps_refs():
            self._add_placeholder_schema(column + 1)
        elif self._column < column:
            self._add_placeholder_schema(column)

    def _keeps_refs(self) -> bool:
        """Whether the table changes, and no reference goes to another snapshot: the requirements would hold once more.

        The same commit twice, or another one that was made for the same state, must be refused. So the last column id,
        which is required too, grows.
        """
        base, wanted = self._base, self._wanted
        required = {_MAIN: {"snapshot-id": None}, **base["refs"]}
        if any(wanted["refs"].get(name, {}).get("snapshot-id") != ref["snapshot-id"] for name, ref in required.items()):
            return False
        compared = (base.keys() | wanted.keys()) - {"last-updated-ms", "metadata-log"}
        return any(base.get(key) != wanted.get(key) for key in compared)

    def _add_schema(self, schema: Json) -> None:
        self._column = max(self._column, *_field_ids(schema))
        self._schemas[schema["schema-id"]] = schema
        self._add("add-schema", schema=schema, **{"last-column-id": self._column})

    def _add_placeholder_schema(self, field_id: int) -> None:
        name = _PLACEHOLDER.format(next(self._names))
        field = {"id": field_id, "name": name, "required": False, "type": "boolean"}
        given = max(self._schemas) + 1
        self._placeholder_schemas.append(given)
        self._add_schema({"type": "struct", "schema-id": given, "fields": [field]})

    def _set_current_schema(self, schema_id: int) -> None:
        if schema_id != self._current_schema:
            self._current_schema = schema_id
            self._add("set-current-schema", **{"schema-id": schema_id})

    def _bind(self, what: str, sources: set[int]) -> None:
        """Makes a schema current that has the source columns: the server looks them up there, dropped ones too."""
        ids = [self._schema_ids[self._wanted["current-schema-id"]], self._current_schema, *sorted(self._schemas)]
        for schema_id in ids:
            if schema_id in self._schemas and sources <= set(_field_ids(self._schemas[schema_id])):
                self._set_current_schema(schema_id)
                return
        raise _impossible(f"{what} uses a column that no schema of the table has")

    def _add_specs(self) -> None:
        known = {spec["spec-id"]: spec for spec in self._base["partition-specs"]}
        last = self._base["last-partition-id"]
        for spec in sorted(self._wanted["partition-specs"], key=lambda spec: spec["spec-id"]):
            spec_id, name = spec["spec-id"], f"partition spec {spec['spec-id']}"
            if spec_id in known:
                if not same_spec(spec, known[spec_id]):
                    raise _impossible(f"{name} of the table is different")
                continue
            if spec_id < max(known) or any(same_spec(spec, other) for other in known.values()):
                raise _impossible(f"{name} cannot get its ID")
            while max(known) + 1 < spec_id:
                known[max(known) + 1] = self._add_placeholder_spec(max(known) + 1, 1000)
            self._bind(name, {field["source-id"] for field in spec["fields"]})
            self._add("add-spec", spec=spec)
            known[spec_id] = spec
            last = max(last, *(field["field-id"] for field in spec["fields"]), 0)
        if last < self._wanted["last-partition-id"]:
            self._add_placeholder_spec(max(known) + 1, self._wanted["last-partition-id"])
        if self._wanted["default-spec-id"] != self._base["default-spec-id"]:
            self._add("set-default-spec", **{"spec-id": self._wanted["default-spec-id"]})

    def _add_placeholder_spec(self, spec_id: int, field_id: int) -> Json:
        current = self._schemas[self._current_schema]["fields"]
        source = next((field["id"] for field in current if isinstance(field["type"], str)), None)
        if source is None:
            raise _impossible(f"partition spec {spec_id} cannot be omitted")
        name = _PLACEHOLDER.format(next(self._names))
        field = {"name": name, "transform": "identity", "source-id": source, "field-id": field_id}
        spec = {"spec-id": spec_id, "fields": [field]}
        self._placeholder_specs.append(spec_id)
        self._add("add-spec", spec=spec)
        return spec

    def _add_sort_orders(self) -> None:
        known = {0: [], **{order["order-id"]: order["fields"] for order in self._base["sort-orders"]}}
        for order in sorted(self._wanted["sort-orders"], key=lambda order: order["order-id"]):
            order_id, fields = order["order-id"], order["fields"]
            if order_id in known and known[order_id] == fields:
                continue
            if order_id != max(known) + 1:
                raise _impossible(f"sort order {order_id} cannot get its ID")
            self._bind(f"sort order {order_id}", {field["source-id"] for field in fields})
            self._add("add-sort-order", **{"sort-order": order})
            known[order_id] = fields
        if self._wanted["default-sort-order-id"] != self._base["default-sort-order-id"]:
            default = self._wanted["default-sort-order-id"]
            self._add("set-default-sort-order", **{"sort-order-id": default})

    def _remove_snapshots(self) -> None:
        wanted = {s["snapshot-id"]: self._as_given(s) for s in self._wanted["snapshots"]}
        gone = [n for n, snapshot in self._snapshots.items() if wanted.get(n) != snapshot]
        main = self._base["refs"].get(_MAIN, {}).get("snapshot-id")
        for name, ref in self._base["refs"].items():
            dangling = ref["snapshot-id"] in gone
            if name not in self._wanted["refs"] or dangling or (name == _MAIN and self._rewrites_log(main)):
                self._add("remove-snapshot-ref", **{"ref-name": name})
                if name == _MAIN:
                    self._log = []
        if gone:
            self._add("remove-snapshots", **{"snapshot-ids": gone})
            for n in gone:
                del self._snapshots[n]
            lost = max((i for i, entry in enumerate(self._log) if entry["snapshot-id"] in gone), default=-1)
            self._log = self._log[lost + 1 :]

    def _rewrites_log(self, main: int | None) -> bool:
        """Whether main goes to an added snapshot that is older than the last entry of the log, which must be sorted."""
        target = self._wanted["current-snapshot-id"]
        if target is None or target == main or target in self._snapshots:
            return False
        made = next(s["timestamp-ms"] for s in self._wanted["snapshots"] if s["snapshot-id"] == target)
        return bool(self._log) and made < self._log[-1]["timestamp-ms"]

    def _as_given(self, snapshot: Json) -> Json:
        schema_id = snapshot.get("schema-id")
        return snapshot if schema_id is None else {**snapshot, "schema-id": self._schema_ids.get(schema_id, schema_id)}

    def _missing_snapshots(self) -> list[Json]:
        missing = [s for s in self._wanted["snapshots"] if s["snapshot-id"] not in self._snapshots]
        return sorted(missing, key=lambda s: (s.get("sequence-number", 0), s["timestamp-ms"]))

    def _add_snapshots(self, snapshots: Iterable[Json]) -> None:
        for snapshot in snapshots:
            self._check_rows(snapshot)
            self._make_room(snapshot)
            self._add_snapshot(self._as_given(snapshot))

    def _check_rows(self, snapshot: Json) -> None:
        if self._version < _ROW_LINEAGE:
            return
        first = snapshot.get("first-row-id")
        if first is None:
            raise _impossible(f"snapshot {snapshot['snapshot-id']} has no row ids, but the table has format version 3")
        if first < self._next_row:
            raise _impossible(
                f"row ids of snapshot {snapshot['snapshot-id']} begin at {first}, but the table has assigned those up "
                f"to {self._next_row}"
            )

    def _make_room(self, snapshot: Json) -> None:
        """Brings sequence number and next row id to where the snapshot may be added, by a placeholder."""
        sequence = snapshot.get("sequence-number", 0)
        has_parent = snapshot.get("parent-snapshot-id") is not None
        is_late = self._version > 1 and has_parent and sequence <= self._sequence
        skips_rows = self._version >= _ROW_LINEAGE and snapshot["first-row-id"] > self._next_row
        if is_late and sequence == 0:
            raise _impossible(f"snapshot {snapshot['snapshot-id']} was written in format version 1")
        if is_late or skips_rows:
            target = snapshot["first-row-id"] if skips_rows else self._next_row
            self._add_placeholder_snapshot(max(0, sequence - 1), target, snapshot["timestamp-ms"])

    def _add_snapshot(self, snapshot: Json) -> None:
        self._add("add-snapshot", snapshot=snapshot)
        self._snapshots[snapshot["snapshot-id"]] = snapshot
        self._sequence = snapshot.get("sequence-number", 0)
        if self._version >= _ROW_LINEAGE:
            self._next_row += snapshot.get("added-rows", 0)

    def _add_placeholder_snapshot(self, sequence: int, next_row: int, timestamp_ms: int) -> None:
        snapshot_id = next(self._free_snapshot_ids)
        snapshot = {
            "snapshot-id": snapshot_id,
            "timestamp-ms": timestamp_ms,
            "summary": {"operation": "append"},
            "manifest-list": f"{self._wanted['location']}/metadata/{_PLACEHOLDER.format(snapshot_id)}.avro",
            "schema-id": self._current_schema,
        }
        if self._version > 1:
            snapshot["sequence-number"] = sequence
        if self._version >= _ROW_LINEAGE:
            snapshot |= {"first-row-id": self._next_row, "added-rows": next_row - self._next_row}
        self._placeholder_snapshots.append(snapshot_id)
        self._add_snapshot(snapshot)

    def _raise_counters(self) -> None:
        sequences = [s.get("sequence-number", 0) for s in self._snapshots.values()]
        sequence = max([self._wanted["last-sequence-number"], *sequences])
        next_row = max(self._wanted.get("next-row-id", 0), self._next_row)
        if (self._version > 1 and sequence > self._sequence) or (
            self._version >= _ROW_LINEAGE and next_row > self._next_row
        ):
            self._add_placeholder_snapshot(sequence, next_row, self._now)

    def _set_refs(self) -> None:
        """Sets `main` last of all references, at the time of its snapshot; then restores the table's time."""
        for name, ref in self._wanted["refs"].items():
            if name != _MAIN and (ref != self._base["refs"].get(name) or self._is_added(ref["snapshot-id"])):
                self._add("set-snapshot-ref", **{"ref-name": name, **ref})
        main = self._wanted["refs"].get(_MAIN)
        has_moved = any(update["action"] == "add-snapshot" for update in self._updates)
        is_new = main is not None and self._is_added(main["snapshot-id"])
        if has_moved and not is_new:
            self._add_placeholder_snapshot(self._sequence, self._next_row, self._now)
        if main is not None and (is_new or main != self._base["refs"].get(_MAIN)):
            self._add("set-snapshot-ref", **{"ref-name": _MAIN, **main})
            made = self._snapshots[main["snapshot-id"]]["timestamp-ms"] if is_new else self._now
            self._log.append({"snapshot-id": main["snapshot-id"], "timestamp-ms": made})
        if is_new:
            self._add_placeholder_snapshot(self._sequence, self._next_row, self._now)

    def _is_added(self, snapshot_id: int) -> bool:
        return any(u["action"] == "add-snapshot" and u["snapshot"]["snapshot-id"] == snapshot_id for u in self._updates)

    def _set_statistics(self) -> None:
        for key, action in (("statistics", "statistics"), ("partition-statistics", "partition-statistics")):
            before = {s["snapshot-id"]: s for s in self._base[key]}
            wanted = {s["snapshot-id"]: s for s in self._wanted[key]}
            for snapshot_id in before.keys() - wanted.keys():
                self._add(f"remove-{action}", **{"snapshot-id": snapshot_id})
            for snapshot_id, file in wanted.items():
                if file != before.get(snapshot_id) or self._is_added(snapshot_id):
                    self._add(f"set-{action}", **{"snapshot-id": snapshot_id, key: file})

    def _set_properties(self) -> None:
        before, wanted = self._base["properties"], self._wanted["properties"]
        changed = {key: value for key, value in wanted.items() if before.get(key) != value}
        if changed:
            self._add("set-properties", updates=changed)
        if gone := sorted(before.keys() - wanted.keys()):
            self._add("remove-properties", removals=gone)

    def _remove_placeholders(self) -> None:
        if self._placeholder_snapshots:
            self._add("remove-snapshots", **{"snapshot-ids": self._placeholder_snapshots})
        if self._placeholder_specs:
            self._add("remove-partition-specs", **{"spec-ids": self._placeholder_specs})
        if self._placeholder_schemas:
            self._add("remove-schemas", **{"schema-ids": self._placeholder_schemas})

    def _predicted(self) -> Json:
        """Predicts the server's metadata, as far as `find_losses` compares it."""
        given = self._schema_ids
        return {
            **self._wanted,
            "format-version": self._version,
            "schemas": [{**s, "schema-id": given[s["schema-id"]]} for s in self._wanted["schemas"]],
            "current-schema-id": given[self._wanted["current-schema-id"]],
            "snapshots": [self._as_given(s) for s in self._wanted["snapshots"]],
            "snapshot-log": self._log,
            "last-sequence-number": max(self._sequence, self._wanted["last-sequence-number"]),
            "next-row-id": self._next_row,
        }


def _requirements(base: Json) -> list[Json]:
    refs = {_MAIN: {"snapshot-id": None}, **base["refs"]}
    return [
        {"type": "assert-table-uuid", "uuid": base["table-uuid"]},
        *(
            {"type": "assert-ref-snapshot-id", "ref": name, "snapshot-id": ref["snapshot-id"]}
            for name, ref in refs.items()
        ),
        {"type": "assert-last-assigned-field-id", "last-assigned-field-id": base["last-column-id"]},
        {"type": "assert-current-schema-id", "current-schema-id": base["current-schema-id"]},
        {"type": "assert-last-assigned-partition-id", "last-assigned-partition-id": base["last-partition-id"]},
        {"type": "assert-default-spec-id", "default-spec-id": base["default-spec-id"]},
        {"type": "assert-default-sort-order-id", "default-sort-order-id": base["default-sort-order-id"]},
    ]


def _impossible(why: str) -> UnsupportedError:
    return UnsupportedError(
        "this catalog accepts table updates only one by one, and no sequence of updates leads to the prepared metadata",
        cause=why,
        hint="publish it under a new name, where it is registered unchanged",
    )


def _field_ids(kind: Any) -> Iterator[int]:
    """Yields the ids of all columns of a schema or type, nested ones too."""
    if isinstance(kind, str):
        return
    for field in kind.get("fields", ()):
        yield field["id"]
        yield from _field_ids(field["type"])
    for part in ("element", "key", "value"):
        if f"{part}-id" in kind:
            yield kind[f"{part}-id"]
            yield from _field_ids(kind[part])
