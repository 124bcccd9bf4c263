"""What a rewrite that is asked for by hand would do, by metadata alone: which files it would take, and make."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyiceberg.manifest import ManifestContent

from frazil.errors import UsageError
from frazil.upkeep.model import Kind
from frazil.upkeep.plans import words
from frazil.upkeep.rewrite.compact import Options
from frazil.upkeep.rewrite.rewriting import expected_files

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table

    from frazil.upkeep.care import Care

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


def preview(care: Care, table: Table, kind: Kind, options: Mapping[str, Any]) -> Preview:
    """Raises UsageError for a condition, which only Spark understands."""
    if kind == "compact":
        return _compact(care, table, Options.of(options))
    if kind == "manifests":
        return _manifests(care, table, int(options["small"]))
    summary: Any = snapshot.summary if (snapshot := table.metadata.current_snapshot()) is not None else None
    size = int((summary or {}).get("total-files-size") or 0)
    return Preview("stats", f"all rows would be read: {words.size(size)} of files, less for single columns", 0, 1, size)


def _compact(care: Care, table: Table, options: Options) -> Preview:
    """As Iceberg's planner chooses by size. What is taken for its deletes alone is not counted."""
    if options.partition:
        raise UsageError("--dry-run cannot tell what a condition holds of", hint="without --where it shows all")
    small: dict[tuple[int, str], list[int]] = defaultdict(list)
    current = table.spec().spec_id
    for manifest in _manifests_of(care, table):
        if manifest.content != ManifestContent.DATA:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.file_size_in_bytes < options.below:
                same = manifest.partition_spec_id == current
                place = (current, repr(entry.data_file.partition)) if same else (-1, "")
                small[place].append(entry.data_file.file_size_in_bytes)
    taken = [
        sizes
        for sizes in small.values()
        if len(sizes) > 1 and (len(sizes) >= options.min_files or sum(sizes) > options.target)
    ]
    files, size = sum(map(len, taken)), sum(map(sum, taken))
    becoming = sum(expected_files(sum(sizes), options.target) for sizes in taken)
    where = words.count(len(taken), "partition")
    why = f"{words.count(files, 'file')} ({words.size(size)}) in {where} would become about {becoming:,}"
    return Preview("compact", why, files, becoming, size)


def _manifests(care: Care, table: Table, small: int) -> Preview:
    target = int(table.metadata.properties.get("commit.manifest.target-size-bytes", _MANIFEST))
    found: dict[int, list[int]] = defaultdict(list)
    for manifest in _manifests_of(care, table):
        if manifest.manifest_length * 2 < target:
            found[manifest.partition_spec_id].append(manifest.manifest_length)
    taken = [sizes for sizes in found.values() if len(sizes) >= max(2, small)]
    files, size = sum(map(len, taken)), sum(map(sum, taken))
    becoming = sum(-(-sum(sizes) // target) for sizes in taken)
    why = f"{words.count(files, 'small manifest')} ({words.size(size)}) would become about {becoming:,}"
    return Preview("manifests", why, files, becoming, size)


def _manifests_of(care: Care, table: Table) -> Iterator[ManifestFile]:
    snapshot = table.metadata.current_snapshot()
    if snapshot is not None:
        yield from care.store.manifests(table.io, snapshot.manifest_list)
