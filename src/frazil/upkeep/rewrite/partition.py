"""Changes how a table is partitioned. Old files stay as they are, and are read as before, until they shall follow.

A spec is written as in the setting `topics.partition`: `day(publish_time), bucket(16, id)`; `none` for no partitions.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestContent
from pyiceberg.transforms import BucketTransform, IdentityTransform, TruncateTransform, VoidTransform

from frazil.catalogs import flavor_of
from frazil.errors import ConflictError, FrazilError, UnsupportedError, UsageError
from frazil.observe.faultpoints import reach
from frazil.tables import parse_partition_spec
from frazil.tables.commit_retry import commit_with_retry, is_conflict
from frazil.tables.durability import sync_metadata
from frazil.upkeep import java
from frazil.upkeep.model import Outcome
from frazil.upkeep.rewrite.grouping import first_ones, locations, picked
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError, RewriteCommit, run_rewrite
from frazil.upkeep.rewrite.rewriting import Group, Shape, Way, commit, rewrite

if TYPE_CHECKING:
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_TRIES = 5
_FILES_AT_ONCE = 5000
_GIB = 1024**3
_TARGET = 128 * 1024**2


@dataclass(frozen=True)
class Applied:
    """What came of a change.

    Attributes:
        before: the spec, as people write it.
        after: likewise.
        spec_id: of the spec that new files have from now on.
        changed: False where the table was partitioned so already.
        outcomes: of the commits in which old files were written anew, if that was asked for.
        left: data files that are still in older specs.
    """

    before: str
    after: str
    spec_id: int
    changed: bool
    outcomes: tuple[Outcome, ...] = field(default_factory=tuple)
    left: int = 0


def terms_of(schema: Schema, spec: PartitionSpec) -> list[str]:
    """A spec as people write it."""
    return [_term(schema, part) for part in spec.fields if not isinstance(part.transform, VoidTransform)]


def text_of(schema: Schema, spec: PartitionSpec) -> str:
    return ", ".join(terms_of(schema, spec)) or "none"


def parse(table: Table, text: str) -> PartitionSpec:
    """What a text means for a table.

    Raises:
        UsageError: it names no column of the table, or a transform that there is not, or one twice.
    """
    stripped = text.strip()
    terms = [] if stripped.lower() == "none" else [part.strip() for part in re.split(r",(?![^(]*\))", stripped)]
    if stripped == "" or not all(terms):
        raise UsageError(f"'{text}' is not a partition spec", hint="such as: day(time), bucket(16, id); or none")
    spec = parse_partition_spec(table.schema(), terms)
    kinds = [_kind(part) for part in spec.fields]
    if len(set(kinds)) < len(kinds):
        raise UsageError(f"'{text}' names the same partition twice", hint="name each once")
    return spec


def apply(
    context: UpkeepContext,
    table: Table,
    spec_text: str,
    *,
    rewrite: bool = False,
    budget: int = _GIB,
    target: int | None = None,
) -> Applied:
    """Gives the table a new spec, for all that is written from now on.

    Args:
        context: where.
        table: may be out of date.
        spec_text: `day(publish_time), bucket(16, id)`.
        rewrite: files of older specs are written anew, commit by commit.
        budget: bytes of one such commit.
        target: bytes of a new file; by default the table's own.

    Raises:
        UsageError: the text fits no column, or is none. Nothing has changed.
        UnsupportedError: the catalog cannot have such partitions. Nothing has changed.
        ConflictError: other writers changed the spec too often. Nothing has changed.
    """
    wanted = parse(table, spec_text)
    require_possible(context, wanted)
    before = text_of(table.schema(), table.spec())
    changed = _evolve(context, table, wanted)
    fresh = context.store.load(table.name())
    outcomes = tuple(_follow(context, fresh, budget, target or _target(fresh))) if rewrite else ()
    fresh = context.store.load(table.name())
    left = len(files_of_older_specs(context, fresh))
    return Applied(before, text_of(fresh.schema(), fresh.spec()), fresh.spec().spec_id, changed, outcomes, left)


def require_possible(context: UpkeepContext, wanted: PartitionSpec) -> None:
    """Raises UnsupportedError for partitions that the catalog is known to refuse."""
    flavor = flavor_of(context.catalog, dict(context.store.catalog.properties))
    if flavor == "s3tables" and any(isinstance(part.transform, BucketTransform) for part in wanted.fields):
        raise UnsupportedError(
            f"the catalog '{context.catalog.name}' cannot do bucket partitions",
            cause="SeaweedFS refuses them when Spark writes",
            hint="partition by time, or by truncate(N, column)",
        )


def files_of_older_specs(context: UpkeepContext, table: Table) -> set[str]:
    """The data files that are partitioned otherwise than new ones are."""
    snapshot = table.metadata.current_snapshot()
    if snapshot is None:
        return set()
    return {
        str(entry.data_file.file_path)
        for manifest in context.store.read_manifests(table.io, snapshot.manifest_list)
        if manifest.content == ManifestContent.DATA and manifest.partition_spec_id != table.spec().spec_id
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
    }


def _evolve(context: UpkeepContext, table: Table, wanted: PartitionSpec) -> bool:
    is_changed = False

    def prepare(now: Table) -> tuple[list[PartitionField], list[PartitionField]] | None:
        there = [part for part in now.spec().fields if not isinstance(part.transform, VoidTransform)]
        going = [part for part in there if _kind(part) not in map(_kind, wanted.fields)]
        coming = [part for part in wanted.fields if _kind(part) not in map(_kind, there)]
        return (going, coming) if going or coming else None

    def commit(now: Table, fields: tuple[list[PartitionField], list[PartitionField]]) -> Table:
        nonlocal is_changed
        is_changed = True
        reach("upkeep.partition.commit.before")
        try:
            _commit(context, now, *fields)
        except FrazilError as error:
            # Java has its own words for a field that another writer has added or removed since.
            moved = context.store.load(now.name()).metadata.default_spec_id != now.metadata.default_spec_id
            if moved and not isinstance(error, ConflictError):
                raise ConflictError(error.message, cause=error.cause, hint=error.hint) from error
            raise
        reach("upkeep.partition.commit.after")
        return now

    fresh = context.store.load(table.name())
    commit_with_retry(context.store, fresh, prepare, commit, tries=_TRIES, may_repeat=is_conflict)
    if is_changed:
        sync_metadata(context.store.load(table.name()))
    return is_changed


def _commit(
    context: UpkeepContext, table: Table, going: Sequence[PartitionField], coming: Sequence[PartitionField]
) -> None:
    jvm = context.spark()._jvm
    with java.translated(table):
        update = java.load(context, table).updateSpec()
        for part in going:
            update = update.removeField(part.name)
        for part in coming:
            update = update.addField(_java_term(jvm, table.schema(), part))
        update.commit()


def _java_term(jvm: Any, schema: Schema, part: PartitionField) -> Any:
    expressions, name = jvm.org.apache.iceberg.expressions.Expressions, schema.find_column_name(part.source_id)
    match part.transform:
        case BucketTransform() as bucket:
            return expressions.bucket(name, bucket.num_buckets)
        case TruncateTransform() as truncate:
            return expressions.truncate(name, truncate.width)
        case IdentityTransform():
            return expressions.ref(name)
    return getattr(expressions, str(part.transform))(name)


def _follow(context: UpkeepContext, table: Table, budget: int, target: int) -> Iterator[Outcome]:
    """One commit after the other, until no file is left, one makes no progress, or it shall stop."""
    while not context.stop.is_set():
        outcome = run_rewrite(context, table, "compact", lambda turn: _rewrite(turn, budget, target))
        if outcome.result == "nothing":
            return
        yield outcome
        if outcome.result != "done":
            return


def _rewrite(turn: RewriteCommit, budget: int, target: int) -> None:
    with turn.step("plan"):
        group = _group(turn, budget)
    if group is None:
        raise NothingToDoError("every file is partitioned as the table is")
    commit(turn, rewrite(turn, [group], Shape(target)))


def _group(turn: RewriteCommit, budget: int) -> Group | None:
    older = files_of_older_specs(turn.context, turn.table)
    if not older:
        return None
    planner = turn.jvm.org.apache.iceberg.actions.BinPackRewriteFilePlanner(
        turn.java, turn.jvm.org.apache.iceberg.expressions.Expressions.alwaysTrue(), turn.start, True
    )
    planner.init(java.java_map(turn.jvm, {"rewrite-all": True, "max-file-group-input-files": _FILES_AT_ONCE}))
    spec = turn.table.spec()
    # Without partitions or an order nothing is shuffled, and files can follow one another as they are.
    way: Way = "range" if spec.fields or not turn.table.sort_order().is_unsorted else "joined"
    for found in java.items(planner.plan().groups()):
        tasks = found.fileScanTasks()
        places = [i for i, path in enumerate(locations(tasks)) if path in older]
        if places:
            sizes = {i: int(tasks.get(i).length()) for i in places}
            chosen = first_ones(places, sizes, budget)
            return Group(
                picked(turn, tasks, chosen),
                len(chosen),
                sum(sizes[i] for i in chosen),
                way,
                spec.spec_id,
            )
    return None


def _target(table: Table) -> int:
    return int(table.metadata.properties.get("write.target-file-size-bytes", _TARGET))


def _kind(part: PartitionField) -> tuple[int, str]:
    return part.source_id, str(part.transform)


def _term(schema: Schema, part: PartitionField) -> str:
    name = schema.find_column_name(part.source_id) or part.name
    match part.transform:
        case IdentityTransform():
            return name
        case BucketTransform() as bucket:
            return f"bucket({bucket.num_buckets}, {name})"
        case TruncateTransform() as truncate:
            return f"truncate({truncate.width}, {name})"
    return f"{part.transform}({name})"
