"""How a table is: what its census says, in the words and numbers that people and programs ask for."""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.partitioning import PartitionSpec

from frazil.tables.position import list_ancestors
from frazil.upkeep.expiry.expire import PIN_PREFIX
from frazil.upkeep.model import Kind, Step
from frazil.upkeep.plans.plan_notes import held_back, on_request
from frazil.upkeep.rewrite.rewrite_commit import KIND

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.types import IcebergType

    from frazil.upkeep.context import UpkeepContext
    from frazil.upkeep.plans.census import Census
    from frazil.upkeep.plans.groups import Group
    from frazil.upkeep.plans.manifest_stats import ManifestStatsCache
    from frazil.upkeep.policy import Policy

#: Partitions that are told one by one.
_LARGEST = 5


@dataclass(frozen=True)
class Tier:
    """Data files between two sizes; `below` is None for those that are large enough."""

    at_least: int
    below: int | None
    files: int
    bytes: int


@dataclass(frozen=True)
class Partition:
    """`partition` as people read it: `{"publish_time_day": "2026-01-01"}`."""

    spec_id: int
    partition: Mapping[str, str]
    files: int
    small_files: int
    bytes: int
    rows: int
    deleted_rows: int


@dataclass(frozen=True)
class Ref:
    """A branch or tag; a pin is a tag of somebody who works with the snapshot right now."""

    name: str
    kind: str
    snapshot_id: int
    age_s: float | None
    pin: bool


@dataclass(frozen=True)
class Health:
    """What `frazil table health` tells; its JSON is exactly this. Sizes are bytes, ages seconds.

    Attributes:
        table: `namespace.table`.
        format_version: 1, 2 or 3.
        taken_at: when it was looked at.
        snapshot_id: that was looked at; None: nothing was written yet.
        rows: in data files, deleted ones too.
        deleted_rows: by position deletes and deletion vectors.
        delete_ratio: of the rows.
        files: data files: count, bytes, small (below three quarters of the target), least, median, most, target.
        tiers: data files by size.
        deletes: position_files, position_bytes, vectors, vector_bytes, rows, equality_files, equality_bytes, dangling.
        partitions: how many there are.
        largest: those with the most bytes.
        specs: ids of the partitionings that files were written under.
        manifests: count, bytes, small, small_bytes, target.
        snapshots: count, oldest_age_s.
        refs: branches and tags.
        metadata: bytes (all that follows, and statistics), json_bytes, list_bytes, versions (that are kept).
        statistics: snapshot_id and bytes of each file.
        expired: lists of files that wait for deletion: count, oldest_age_s.
        growth: per day, over the kept history: over_s, commits, rows, bytes, files; None without a history.
        last_upkeep: kind, snapshot_id and at, of the last step that shows in the history; None without one.
        steps: what the policy will do next, in that order.
        policy: each setting with value and source.
        notes: what these steps leave out, and why.
    """

    table: str
    format_version: int
    taken_at: str
    snapshot_id: int | None
    rows: int
    deleted_rows: int
    delete_ratio: float
    files: Mapping[str, int]
    tiers: Sequence[Tier]
    deletes: Mapping[str, int]
    partitions: int
    largest: Sequence[Partition]
    specs: Sequence[int]
    manifests: Mapping[str, int]
    snapshots: Mapping[str, Any]
    refs: Sequence[Ref]
    metadata: Mapping[str, Any]
    statistics: Sequence[Mapping[str, int]]
    expired: Mapping[str, Any]
    growth: Mapping[str, float] | None
    last_upkeep: Mapping[str, Any] | None
    steps: Sequence[Step] = ()
    policy: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def examine(
    context: UpkeepContext,
    name: str,
    *,
    last: Mapping[Kind, float] | None = None,
    known: ManifestStatsCache | None = None,
) -> Health:
    """Looks at a table. Changes nothing, and starts no JVM.

    Args:
        context: of which catalog.
        name: `namespace.table`.
        last: when steps of a kind were last done, see `plan`.
        known: counts of manifests from former looks.

    Raises:
        NotFoundError: there is no such table.
        ConfigError: its policy contradicts itself.
    """
    from frazil.upkeep.plans.census import take
    from frazil.upkeep.plans.plan import plan
    from frazil.upkeep.policy import policy_for

    table = context.load(name)
    policy = policy_for(context.settings, table)
    census = take(context, table, policy, known=known)
    return health_of(census, policy, plan(census, policy, last=last))


def health_of(census: Census, policy: Policy, steps: Sequence[Step] = ()) -> Health:
    """The health of a table that was counted. Pure."""
    metadata, now = census.metadata, census.taken_ms
    oldest = min((s.timestamp_ms for s in metadata.snapshots), default=None)
    statistics = [*metadata.statistics, *metadata.partition_statistics]
    return Health(
        table=census.table,
        format_version=metadata.format_version,
        taken_at=_moment(now),
        snapshot_id=metadata.current_snapshot_id,
        rows=census.rows,
        deleted_rows=census.deleted_rows,
        delete_ratio=round(census.delete_ratio, 4),
        files={
            "count": census.files, "bytes": census.bytes, "small": census.small_files,
            **asdict(census.sizes), "target": policy.target_file_size,
        },
        tiers=_tiers(census),
        deletes=asdict(census.deletes),
        partitions=len(census.groups),
        largest=[_partition(metadata, g) for g in sorted(census.groups, key=lambda g: -sum(g.bytes))[:_LARGEST]],
        specs=sorted({group.spec_id for group in census.groups}),
        manifests=asdict(census.manifests),
        snapshots={"count": census.snapshots, "oldest_age_s": None if oldest is None else (now - oldest) / 1000},
        refs=_refs(metadata, now),
        metadata={
            "bytes": census.metadata_bytes, "json_bytes": census.json_bytes, "list_bytes": census.list_bytes,
            "versions": len(metadata.metadata_log) + 1,
        },
        statistics=[{"snapshot_id": s.snapshot_id, "bytes": s.file_size_in_bytes} for s in statistics],
        expired={
            "count": len(census.expired),
            "oldest_age_s": (now - census.expired[0].written_ms) / 1000 if census.expired else None,
        },
        growth=None if census.growth is None else {k: round(v, 3) for k, v in asdict(census.growth).items()},
        last_upkeep=_last_upkeep(metadata),
        steps=tuple(steps),
        policy=_describe_policy(policy),
        notes=(*held_back(metadata, census.table, policy, now), *on_request(metadata, policy)),
    )  # fmt: skip


def _tiers(census: Census) -> list[Tier]:
    edges: list[int | None] = [0, *census.bounds, None]
    return [
        Tier(
            edges[tier] or 0,
            edges[tier + 1],
            sum(group.files[tier] for group in census.groups),
            sum(group.bytes[tier] for group in census.groups),
        )
        for tier in range(len(edges) - 1)
    ]


def _partition(metadata: TableMetadata, group: Group) -> Partition:
    return Partition(
        group.spec_id,
        _named(metadata, metadata.specs()[group.spec_id], group.partition),
        sum(group.files),
        group.small_files,
        sum(group.bytes),
        group.rows,
        group.deleted_rows,
    )


def _named(metadata: TableMetadata, spec: PartitionSpec, values: tuple[Any, ...]) -> dict[str, str]:
    found = {}
    for part, value in zip(spec.fields, values, strict=True):
        source = _type_of(metadata, part.source_id)
        found[part.name] = str(value) if source is None else part.transform.to_human_string(source, value)
    return found


def _type_of(metadata: TableMetadata, column: int) -> IcebergType | None:
    """The type of a column, of one that was dropped too: the files of its time are still partitioned by it."""
    for schema in sorted(metadata.schemas, key=lambda s: s.schema_id, reverse=True):
        if schema.find_column_name(column) is not None:
            return schema.find_type(column)
    return None


def _refs(metadata: TableMetadata, now_ms: int) -> list[Ref]:
    times = {s.snapshot_id: s.timestamp_ms for s in metadata.snapshots}
    return [
        Ref(
            name,
            str(ref.snapshot_ref_type),
            ref.snapshot_id,
            (now_ms - times[ref.snapshot_id]) / 1000 if ref.snapshot_id in times else None,
            name.startswith(PIN_PREFIX),
        )
        for name, ref in sorted(metadata.refs.items())
    ]


def _last_upkeep(metadata: TableMetadata) -> dict[str, Any] | None:
    for snapshot in list_ancestors(metadata):
        kind = snapshot.summary.get(KIND) if snapshot.summary is not None else None
        if kind is not None:
            return {"kind": kind, "snapshot_id": snapshot.snapshot_id, "at": _moment(snapshot.timestamp_ms)}
    return None


def _describe_policy(policy: Policy) -> dict[str, dict[str, Any]]:
    values = {name: value for name, value in vars(policy).items() if name != "sources"}
    return {
        name: {"value": list(value) if isinstance(value, tuple) else value, "source": policy.source(name)}
        for name, value in values.items()
    }


def _moment(milliseconds: int) -> str:
    return datetime.datetime.fromtimestamp(milliseconds / 1000, tz=datetime.UTC).isoformat(timespec="milliseconds")
