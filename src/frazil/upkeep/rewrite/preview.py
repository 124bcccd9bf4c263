"""What a rewrite that is asked for by hand would do, by metadata alone: which files it would take, and make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.expressions import AlwaysTrue, BooleanExpression
from pyiceberg.expressions.parser import parse
from pyiceberg.expressions.visitors import bind
from pyiceberg.manifest import ManifestContent
from pyiceberg.table import ManifestGroupPlanner

from frazil.errors import UsageError, first_line
from frazil.upkeep.model import Kind
from frazil.upkeep.plans.format_amounts import format_count, format_size
from frazil.upkeep.plans.groups import Removed
from frazil.upkeep.plans.manifest_stats import count_deletes
from frazil.upkeep.rewrite.compact import Options
from frazil.upkeep.rewrite.rewriting import expected_files

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry, ManifestFile
    from pyiceberg.table import Table

    from frazil.upkeep.context import UpkeepContext

_MANIFEST = 8 * 1024 * 1024


@dataclass(frozen=True)
class Preview:
    """What would be done.

    Attributes:
        kind: of step.
        why: in words.
        files: that would be taken.
        becoming: files that there would be instead, about.
        bytes: to be read.
    """

    kind: Kind
    why: str
    files: int
    becoming: int
    bytes: int


def preview(context: UpkeepContext, table: Table, kind: Kind, options: Mapping[str, Any]) -> Preview:
    """Raises UsageError for a condition that only Spark understands."""
    if kind == "compact":
        return _compact(context, table, Options.of(options))
    if kind == "manifests":
        return _manifests(context, table, int(options["small"]))
    summary: Any = snapshot.summary if (snapshot := table.metadata.current_snapshot()) is not None else None
    size = int((summary or {}).get("total-files-size") or 0)
    return Preview(
        "stats", f"all rows would be read: {format_size(size)} of files, less for single columns", 0, 1, size
    )


def _compact(context: UpkeepContext, table: Table, options: Options) -> Preview:
    """As Iceberg's planner chooses, and `grouping` of that: files that are small, or have lost many rows."""
    taken = [sizes for sizes in _candidates(context, table, options) if _is_taken(sizes, options)]
    files, size = sum(map(len, taken)), sum(sum(sizes) for sizes in taken)
    becoming = sum(expected_files(sum(sizes), options.target) for sizes in taken)
    where = format_count(len(taken), "partition")
    why = f"{format_count(files, 'file')} ({format_size(size)}) in {where} would become about {becoming:,}"
    return Preview("compact", why, files, becoming, size)


class _Sizes(list[int]):
    """Of the files of one partition that may be taken; `dirty` if one of them is so for its deletes."""

    dirty = False


def _is_taken(sizes: _Sizes, options: Options) -> bool:
    enough = len(sizes) >= options.min_files or sum(sizes) > options.target
    return sizes.dirty or (enough and len(sizes) > expected_files(sum(sizes), options.target))


def _candidates(context: UpkeepContext, table: Table, options: Options) -> Iterable[_Sizes]:
    found: dict[tuple[int, str], _Sizes] = defaultdict(_Sizes)
    manifests = list(_manifests_of(context, table))
    _, removed = count_deletes(context.store, table, [m for m in manifests if m.content != ManifestContent.DATA])
    current = table.spec().spec_id
    for entry in _entries(context, table, options, [m for m in manifests if m.content == ManifestContent.DATA]):
        file = entry.data_file
        dirty = _is_dirty(removed, entry, options)
        if dirty or file.file_size_in_bytes < options.below:
            place = (current, repr(file.partition)) if file.spec_id == current else (-1, "")
            found[place].append(file.file_size_in_bytes)
            found[place].dirty |= dirty
    return found.values()


def _is_dirty(removed: Removed, entry: ManifestEntry, options: Options) -> bool:
    file = entry.data_file
    target = removed.by_file.get(file.file_path)
    if target is not None and target.rows >= options.delete_ratio * file.record_count:
        return True
    key = (file.spec_id, tuple(file.partition[i] for i in range(len(file.partition))))
    ranges = removed.ranges(removed.columns, file.lower_bounds, file.upper_bounds)
    applying = removed.applying(key, file.file_path, entry.sequence_number or 0, ranges, options.delete_files)
    return applying >= options.delete_files


def _entries(
    context: UpkeepContext, table: Table, options: Options, manifests: Sequence[ManifestFile]
) -> Iterator[ManifestEntry]:
    """Of the data files that may have rows for which the condition holds."""
    planner = ManifestGroupPlanner(table.metadata, table.io, _condition(table, options.partition), case_sensitive=False)
    for entries in context.store.call(
        lambda: list(planner.plan_manifest_entries(manifests)), "read_manifest", "storage"
    ):
        yield from entries


def _condition(table: Table, text: str | None) -> BooleanExpression:
    """A condition in words that PyIceberg knows; Spark knows more."""
    if not text:
        return AlwaysTrue()
    try:
        found = parse(text)
        bind(table.schema(), found, case_sensitive=False)
    except Exception as error:  # the parser's own, and whatever comes of a value that does not fit its column
        raise UsageError(
            f"a dry run does not understand the condition {text}",
            cause=first_line(error),
            hint="with --dry-run only columns, numbers and 'texts' with =, <, IN, LIKE, IS NULL, AND, OR, NOT; "
            "dates as '2026-01-31'",
        ) from error
    return found


def _manifests(context: UpkeepContext, table: Table, small: int) -> Preview:
    target = int(table.metadata.properties.get("commit.manifest.target-size-bytes", _MANIFEST))
    found: dict[int, list[int]] = defaultdict(list)
    for manifest in _manifests_of(context, table):
        if manifest.manifest_length * 2 < target:
            found[manifest.partition_spec_id].append(manifest.manifest_length)
    taken = [sizes for sizes in found.values() if len(sizes) >= max(2, small)]
    files, size = sum(map(len, taken)), sum(map(sum, taken))
    becoming = sum(-(-sum(sizes) // target) for sizes in taken)
    why = f"{format_count(files, 'small manifest')} ({format_size(size)}) would become about {becoming:,}"
    return Preview("manifests", why, files, becoming, size)


def _manifests_of(context: UpkeepContext, table: Table) -> Iterator[ManifestFile]:
    snapshot = table.metadata.current_snapshot()
    if snapshot is not None:
        yield from context.store.read_manifests(table.io, snapshot.manifest_list)
