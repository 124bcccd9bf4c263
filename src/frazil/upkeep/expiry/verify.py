"""The checker: every file that a table refers to, from any snapshot, branch or tag, is there with the size on record.

The folders of the table are listed once; only what lies elsewhere is asked for one by one.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from frazil.errors import IntegrityError, NotAllowedError, NotFoundError, UnsupportedError
from frazil.tables.metadata.locations import canonical_uri, is_inside, list_own_folders
from frazil.tables.metadata.reachable import (
    Files,
    ReferencedFile,
    find_snapshot_files,
    list_metadata_files,
    load_manifest_list,
    read_live_files,
)

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.snapshots import Snapshot

    from frazil.upkeep.context import UpkeepContext

_AT_ONCE = 8


@dataclass(frozen=True)
class Finding:
    """Something wrong.

    Attributes:
        severity: error: rows cannot be read; warning: only a former metadata.json is missing.
        uri: of the file.
        message: what is wrong with it.
        snapshots: that need it; empty for metadata.
        refs: branches and tags whose own snapshot needs it.
    """

    severity: Literal["error", "warning"]
    uri: str
    message: str
    snapshots: tuple[int, ...] = ()
    refs: tuple[str, ...] = ()


@dataclass
class Verdict:
    """What a check found.

    Attributes:
        table: its name.
        snapshots: looked at.
        refs: branches and tags among these.
        files: that are referred to.
        size: their bytes, as recorded.
        findings: what is wrong.
    """

    table: str
    snapshots: int = 0
    refs: int = 0
    files: int = 0
    size: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not any(finding.severity == "error" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "table": self.table,
            "sound": self.sound,
            "snapshots": self.snapshots,
            "refs": self.refs,
            "files": self.files,
            "bytes": self.size,
            "findings": [vars(finding) for finding in self.findings],
        }


def verify(context: UpkeepContext, table: Table) -> Verdict:
    """Checks a table as it was loaded. Changes nothing.

    Raises:
        UnavailableError: catalog or storage does not answer.
    """
    metadata = table.metadata
    verdict = Verdict(".".join(table.name()), len(metadata.snapshots), len(metadata.refs))
    needed = _needed(context, table, verdict)
    verdict.files, verdict.size = len(needed), sum(file.size or 0 for file in needed.values())
    there = _sizes(context, table, needed)
    wrong = {uri: said for uri, file in needed.items() if (said := _fault(file, there.get(uri))) is not None}
    if wrong:
        users = _users(context, table, set(wrong))
        verdict.findings += [_finding(table, needed[uri], said, users.get(uri, ())) for uri, said in wrong.items()]
    return verdict


def _needed(context: UpkeepContext, table: Table, verdict: Verdict) -> Files:
    """All files. What cannot be read to learn of them is a finding, and the rest goes on."""
    try:
        return find_snapshot_files(context.store, table, table.metadata.snapshots) | list_metadata_files(table)
    except (NotFoundError, IntegrityError):
        found = list_metadata_files(table)
    damaged: dict[str, str] = {}
    for snapshot in table.metadata.snapshots:
        found |= _legible(context, table, snapshot, damaged)
    verdict.findings += [Finding("error", uri, f"cannot be read: {said}") for uri, said in damaged.items()]
    return found


def _legible(context: UpkeepContext, table: Table, snapshot: Snapshot, damaged: dict[str, str]) -> Files:
    """What can be learned of a snapshot's files. A file that is missing is told of when all are looked for."""
    path = snapshot.manifest_list
    found = {canonical_uri(path): ReferencedFile(path, None, "manifest list")}
    try:
        manifests = load_manifest_list(context.store, table.io, path)
    except NotFoundError:
        return found
    except IntegrityError as error:
        damaged[path] = error.message
        return found
    for manifest in manifests:
        path = manifest.manifest_path
        found[canonical_uri(path)] = ReferencedFile(path, manifest.manifest_length, "manifest")
        try:
            found |= {canonical_uri(file.uri): file for file in read_live_files(context.store, table.io, manifest)}
        except NotFoundError:
            continue
        except IntegrityError as error:
            damaged[path] = error.message
    return found


def _sizes(context: UpkeepContext, table: Table, needed: Files) -> dict[str, int]:
    places = context.storage_of(table)
    folders = list_own_folders(table)
    # A folder inside another is in its listing.
    outer = [f for f in folders if not any(f != other and is_inside(f, other) for other in folders)]
    there: dict[str, int] = {}
    with suppress(NotAllowedError, UnsupportedError):  # S3 Tables shows no list; then each file is asked for
        there |= {uri: info.size for folder in outer for uri, info in places.list(folder) if uri in needed}

    def find_size(uri: str) -> tuple[str, int | None]:
        store, key = places.find(uri)
        try:
            return uri, store.head(key).size
        except NotFoundError:
            return uri, None

    # Also those that the listing did not show: a link to a folder, or a file that came after it.
    missing = [uri for uri in needed if uri not in there]
    with ThreadPoolExecutor(_AT_ONCE, "frazil-verify") as pool:
        there |= {uri: size for uri, size in pool.map(find_size, missing) if size is not None}
    return there


def _fault(file: ReferencedFile, size: int | None) -> str | None:
    if size is None:
        return f"the {file.kind} file is missing"
    if file.size is not None and size != file.size:
        return f"the {file.kind} file has {size:,} bytes, and {file.size:,} are on record"
    return None


def _users(context: UpkeepContext, table: Table, wrong: set[str]) -> dict[str, tuple[int, ...]]:
    users: dict[str, tuple[int, ...]] = {}
    for snapshot in table.metadata.snapshots:
        for uri in wrong & _legible(context, table, snapshot, {}).keys():
            users[uri] = (*users.get(uri, ()), snapshot.snapshot_id)
    return users


def _finding(table: Table, file: ReferencedFile, said: str, snapshots: tuple[int, ...]) -> Finding:
    former = file.kind == "metadata" and file.uri != table.metadata_location
    return Finding("warning" if former else "error", file.uri, said, snapshots, _refs(table, set(snapshots)))


def _refs(table: Table, snapshots: set[int]) -> tuple[str, ...]:
    return tuple(name for name, ref in table.metadata.refs.items() if ref.snapshot_id in snapshots)
