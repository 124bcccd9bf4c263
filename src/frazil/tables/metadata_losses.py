"""Compares the metadata that a catalog shows with the metadata that was published."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Metadata = Mapping[str, Any]
Json = dict[str, Any]

#: Properties that a catalog shows and sets itself.
_OF_CATALOG = "nessie."


def find_losses(shown: Metadata, wanted: Metadata) -> tuple[str, ...]:
    """Returns what a published table lacks of the metadata that was wanted, one sentence each.

    The time of the last update and the log of metadata files are the catalog's own, and not compared.
    """
    shown, wanted = normalize(shown), normalize(wanted)
    return tuple(_losses(shown, wanted))


def normalize(metadata: Metadata) -> Json:
    """Returns metadata in the form of format version 2: what version 1 says once is listed, references are named."""
    found = dict(metadata)
    schemas = found.get("schemas") or [found["schema"]]
    found["schemas"] = [{**schema, "schema-id": schema.get("schema-id", 0)} for schema in schemas]
    found.setdefault("current-schema-id", found["schemas"][0]["schema-id"])
    specs = found.get("partition-specs") or [{"spec-id": 0, "fields": found.get("partition-spec", [])}]
    found["partition-specs"] = [{"spec-id": spec["spec-id"], "fields": _numbered(spec["fields"])} for spec in specs]
    found.setdefault("default-spec-id", 0)
    found["sort-orders"] = found.get("sort-orders") or [{"order-id": 0, "fields": []}]
    found.setdefault("default-sort-order-id", 0)
    found["last-partition-id"] = found.get("last-partition-id", max(_partition_ids(found), default=999))
    if found.get("current-snapshot-id") in (None, -1):
        found["current-snapshot-id"] = None
    found["snapshots"] = list(found.get("snapshots") or [])
    refs = dict(found.get("refs") or {})
    if found["current-snapshot-id"] is not None:
        refs.setdefault("main", {"snapshot-id": found["current-snapshot-id"], "type": "branch"})
    found["refs"] = refs
    for name in ("snapshot-log", "statistics", "partition-statistics"):
        found[name] = list(found.get(name) or [])
    found["properties"] = {k: v for k, v in (found.get("properties") or {}).items() if not k.startswith(_OF_CATALOG)}
    found.setdefault("last-sequence-number", 0)
    return found


def _numbered(fields: Sequence[Json]) -> list[Json]:
    return [{**field, "field-id": field.get("field-id", 1000 + n)} for n, field in enumerate(fields)]


def _partition_ids(metadata: Metadata) -> Iterator[int]:
    return (field["field-id"] for spec in metadata["partition-specs"] for field in spec["fields"])


def same_schema(one: Json, other: Json) -> bool:
    return bool(one["fields"] == other["fields"]) and set(one.get("identifier-field-ids") or ()) == set(
        other.get("identifier-field-ids") or ()
    )


def same_spec(one: Json, other: Json) -> bool:
    return bool(one["fields"] == other["fields"])


def _losses(shown: Json, wanted: Json) -> Iterator[str]:
    for key, name in (("format-version", "format version"), ("table-uuid", "table UUID"), ("location", "location")):
        if shown[key] != wanted[key]:
            yield f"the {name} is {shown[key]}, not {wanted[key]}"
    yield from _lost_columns(shown, wanted)
    yield from _lost_snapshots(shown, wanted)
    yield from _lost_log(shown, wanted)
    yield from _lost_refs(shown, wanted)
    yield from _lost_counters(shown, wanted)
    for key in ("statistics", "partition-statistics"):
        found = {(s["snapshot-id"], s["statistics-path"]) for s in shown[key]}
        if missing := [s for s in wanted[key] if (s["snapshot-id"], s["statistics-path"]) not in found]:
            yield f"{key.replace('-', ' ')} of {len(missing)} snapshots are missing"
    changed = sorted(k for k, v in wanted["properties"].items() if shown["properties"].get(k) != v)
    if changed:
        yield f"properties are missing or differ: {', '.join(changed)}"
    if more := sorted(shown["properties"].keys() - wanted["properties"].keys()):
        yield f"properties are added: {', '.join(more)}"


def _lost_columns(shown: Json, wanted: Json) -> Iterator[str]:
    schemas = {s["schema-id"]: s for s in shown["schemas"]}
    moved = [
        s["schema-id"]
        for s in wanted["schemas"]
        if s["schema-id"] not in schemas or not same_schema(s, schemas[s["schema-id"]])
    ]
    if moved:
        yield f"schemas have other ids: {', '.join(map(str, sorted(moved)))}"
    current = next(s for s in wanted["schemas"] if s["schema-id"] == wanted["current-schema-id"])
    if not same_schema(current, schemas[shown["current-schema-id"]]):
        yield "the current schema differs"
    specs = {s["spec-id"]: s for s in shown["partition-specs"]}
    if lost := [n["spec-id"] for n in wanted["partition-specs"] if specs.get(n["spec-id"]) != n]:
        yield f"partition specs are missing or differ: {', '.join(map(str, lost))}"
    orders = {0: [], **{o["order-id"]: o["fields"] for o in shown["sort-orders"]}}
    if lost := [o["order-id"] for o in wanted["sort-orders"] if orders.get(o["order-id"]) != o["fields"]]:
        yield f"sort orders are missing or differ: {', '.join(map(str, lost))}"
    for key, name in (("default-spec-id", "partition spec"), ("default-sort-order-id", "sort order")):
        if shown[key] != wanted[key]:
            yield f"the default {name} is {shown[key]}, not {wanted[key]}"


#: What must be equal of a snapshot. Its schema's id is compared by `_lost_columns`.
_OF_SNAPSHOT = (
    "parent-snapshot-id",
    "timestamp-ms",
    "summary",
    "manifest-list",
    "manifests",
    "first-row-id",
    "added-rows",
)


def _lost_snapshots(shown: Json, wanted: Json) -> Iterator[str]:
    found = {s["snapshot-id"]: s for s in shown["snapshots"]}
    asked = {s["snapshot-id"]: s for s in wanted["snapshots"]}
    if missing := asked.keys() - found.keys():
        yield f"{len(missing)} of {len(asked)} snapshots are missing"
    if more := found.keys() - asked.keys():
        yield f"{len(more)} other snapshots are in the table"
    common = [(found[n], asked[n]) for n in asked.keys() & found.keys()]
    fields = {key for one, other in common for key in _OF_SNAPSHOT if one.get(key) != other.get(key)}
    fields |= {
        "sequence-number" for one, other in common if one.get("sequence-number", 0) != other.get("sequence-number", 0)
    }
    if fields:
        yield f"snapshots differ in {', '.join(sorted(fields))}"


def _lost_log(shown: Json, wanted: Json) -> Iterator[str]:
    entries = {(e["timestamp-ms"], e["snapshot-id"]) for e in wanted["snapshot-log"]}
    found = {(e["timestamp-ms"], e["snapshot-id"]) for e in shown["snapshot-log"]}
    if lost := entries - found:
        count_of = f"{len(lost)} of {len(entries)} entries"
        yield f"{count_of} of the snapshot log are lost: time travel by timestamp misses them"
    if more := found - entries:
        yield f"{len(more)} entries of the snapshot log are added"


def _lost_refs(shown: Json, wanted: Json) -> Iterator[str]:
    lost = sorted(name for name, ref in wanted["refs"].items() if shown["refs"].get(name) != ref)
    if lost:
        yield f"references are missing or differ: {', '.join(lost)}"
    if more := sorted(shown["refs"].keys() - wanted["refs"].keys()):
        yield f"references are added: {', '.join(more)}"


def _lost_counters(shown: Json, wanted: Json) -> Iterator[str]:
    """Counters that are lower than wanted give numbers out twice; higher ones do no harm."""
    for key in ("next-row-id", "last-sequence-number", "last-column-id", "last-partition-id"):
        if shown.get(key, 0) < wanted.get(key, 0):
            yield f"{key} is {shown.get(key, 0)}, not {wanted[key]}"
