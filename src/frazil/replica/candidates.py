"""Finds the metadata files of a table in a replicated folder: the versions among which one is chosen."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from frazil.errors import IntegrityError, NotFoundError, UsageError
from frazil.replica.choose import ServedVersion, Version, number_of
from frazil.replica.scan import ReplicaFiles, canonical_path
from frazil.tables.metadata.locations import is_inside
from frazil.tables.relocation import PrefixMap
from frazil.tables.relocation.table_metadata import TableMetadata, parse_metadata

_METADATA = re.compile(r"[^.].*\.metadata\.json(?:\.gz)?")
#: What a commit to a Hadoop table is called before it is renamed; it stays where the commit was lost.
_TEMPORARY = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}(?:\.gz)?\.metadata\.json(?:\.gz)?")
_HINT = "version-hint.text"
_FOLDER = "metadata"
#: Tables that an error names.
_NAMED = 5
_GIVE_PATH = "give the path of the table's own folder"


@dataclass(frozen=True)
class MetadataFile:
    """A metadata.json by its name, not read yet.

    Attributes:
        path: canonical URI in the replicated folder.
        name: of the file.
        number: its version.
        size: in bytes.
    """

    path: str
    name: str
    number: int
    size: int


@dataclass(frozen=True)
class MetadataCandidate:
    """A metadata.json that has arrived.

    Attributes:
        file: where it landed.
        version: its place in the table's history.
        uuid: of the table; empty where format version 1 has none.
        metadata: its content, as the source wrote it.
        source_path: where the source has it.
    """

    file: MetadataFile
    version: Version
    uuid: str
    metadata: TableMetadata = field(repr=False, compare=False)
    source_path: str = ""

    def to_served(self, *, witnessed: bool) -> ServedVersion:
        """Returns what the state records when this version is served."""
        version = self.version
        return ServedVersion(version.name, version.updated_ms, self.uuid, witnessed, version.parent)


@dataclass(frozen=True)
class UnreadableMetadata:
    """A file named like metadata that cannot be read: cut off, damaged, or something else.

    Attributes:
        file: which.
        reason: why.
    """

    file: MetadataFile
    reason: str


@dataclass(frozen=True)
class MetadataFolder:
    """The metadata files of a table.

    Attributes:
        folder: of the table.
        files: newest version first.
        hint: the file that names the version of a Hadoop table, if there is one.
    """

    folder: str
    files: tuple[MetadataFile, ...]
    hint: str | None = None


def find_table_folder(files: ReplicaFiles, identifier: tuple[str, ...] = ()) -> str:
    """Returns the folder of a table: the replicated folder itself, or the one below it that has metadata.

    Below a warehouse, `<namespace>/<table>` and `<namespace>.db/<table>` are tried first; then everything is listed.

    Raises:
        NotFoundError: there is no Iceberg metadata, or none of this table.
        UsageError: there are several tables; names them.
    """
    if _has_metadata(files, files.root):
        return files.root
    for folder in _usual_folders(identifier):
        if _has_metadata(files, f"{files.root}/{folder}"):
            return f"{files.root}/{folder}"
    found = sorted({_table_folder_of(file.path) for file in files.list() if _is_metadata(_name_of(file.path))})
    if not found:
        raise NotFoundError(
            f"there is no Iceberg table in {files.root}",
            cause="no file in it is called *.metadata.json",
            hint="check the path, and whether the replication has begun",
        )
    named = [folder for folder in found if identifier and _is_named(_name_of(folder), identifier[-1])]
    if len(named) == 1 or (len(found) == 1 and not identifier):
        return (named or found)[0]
    listed = ", ".join((named or found)[:_NAMED]) + (", …" if len(named or found) > _NAMED else "")
    if identifier and not named:
        raise NotFoundError(
            f"the table {'.'.join(identifier)} does not exist in {files.root}",
            cause=f"found: {listed}",
            hint=_GIVE_PATH,
        )
    raise UsageError(f"there are {len(named or found)} tables in {files.root}", cause=listed, hint=_GIVE_PATH)


def list_metadata_files(files: ReplicaFiles, folder: str) -> MetadataFolder:
    """Returns the metadata files of the table in a folder. Lists `<folder>/metadata`, or if that has none, the folder.

    Folders below these, such as those of data, are not listed where the storage has folders.
    """
    hint, found = None, list[MetadataFile]()
    for place in (f"{folder}/{_FOLDER}", folder):
        for file in files.list(place, recursive=False):
            name = _name_of(file.path)
            if _is_metadata(name):
                found.append(MetadataFile(file.path, name, number_of(name), file.size))
            elif name == _HINT:
                hint = file.path
        if found:
            break
    found.sort(key=lambda file: (file.number, file.name), reverse=True)
    return MetadataFolder(folder, tuple(found), hint)


def read_hint(files: ReplicaFiles, hint: str) -> tuple[str, ...]:
    """Returns the possible names of the version that a Hadoop table's hint names; none if it cannot be read."""
    try:
        text = files.read(hint).decode().strip()
    except (NotFoundError, UnicodeDecodeError):
        return ()
    stem = f"v{text}" if text.isdecimal() else text
    return tuple(f"{stem}{end}" for end in (".metadata.json", ".gz.metadata.json", ".metadata.json.gz")) if stem else ()


def load_candidate(files: ReplicaFiles, file: MetadataFile) -> MetadataCandidate | UnreadableMetadata:
    """Reads a metadata file.

    Raises:
        UnsupportedError: it is of a newer format version, or the table is encrypted.
    """
    try:
        data = files.read(file.path)
        metadata = parse_metadata(data, file.path)
        log = tuple(_name_of(entry["metadata-file"]) for entry in metadata.get("metadata-log") or ())
        version = Version(file.name, int(metadata["last-updated-ms"]), log)
        source = f"{_source_folder(metadata)}/{file.name}"
        return MetadataCandidate(file, version, str(metadata.get("table-uuid") or ""), metadata, source)
    except NotFoundError:
        return UnreadableMetadata(file, "it was removed since it was listed")
    except (IntegrityError, KeyError, TypeError, ValueError) as error:
        cause = error.cause if isinstance(error, IntegrityError) else None
        return UnreadableMetadata(file, cause or "it is not table metadata")


def complete_prefixes(candidate: MetadataCandidate, pairs: tuple[tuple[str, str], ...] = ()) -> PrefixMap:
    """Returns the map from the source's paths to where they landed: the given pairs, and the table's own folder.

    A pair of the same place keeps the spelling of paths.

    Raises:
        UsageError: the table's metadata lies outside its location, and no pair covers the location.
    """
    location = str(candidate.metadata["location"]).rstrip("/")
    given = [(source, source if _is_same(source, target) else target) for source, target in pairs]
    if given and PrefixMap(given).covers(location):
        return PrefixMap(given)
    source = _source_folder(candidate.metadata)
    landed = candidate.file.path.rpartition("/")[0]
    below = source[len(location) :]
    if not is_inside(source, location) or not landed.endswith(below):
        raise UsageError(
            f"it is not known where the files of {location} landed",
            cause=f"its metadata lies in {source}, and landed in {landed}",
            hint=f"give a source prefix: {location}=FOLDER",
        )
    root = landed.removesuffix(below)
    return PrefixMap([*given, (location, location if _is_same(location, root) else root)])


def _source_folder(metadata: TableMetadata) -> str:
    """Where the source writes its metadata files."""
    named = (metadata.get("properties") or {}).get("write.metadata.path")
    return str(named).rstrip("/") if named else f"{str(metadata['location']).rstrip('/')}/{_FOLDER}"


def _is_same(source: str, target: str) -> bool:
    try:
        return canonical_path(source) == canonical_path(target)
    except UsageError:  # a storage that Frazil does not know
        return False


def _has_metadata(files: ReplicaFiles, folder: str) -> bool:
    found = (file for place in (f"{folder}/{_FOLDER}", folder) for file in files.list(place, recursive=False))
    return any(_is_metadata(_name_of(file.path)) for file in found)


def _usual_folders(identifier: tuple[str, ...]) -> Iterator[str]:
    if identifier:
        *namespace, name = identifier
        yield "/".join((*namespace, name))
        if namespace:
            yield f"{'.'.join(namespace)}.db/{name}"


def _is_named(folder: str, table: str) -> bool:
    """Whether a folder is called like a table, perhaps with the UUID that some catalogs append."""
    pattern = rf"{re.escape(table)}([-_][0-9a-f-]{{8,}})?"
    return re.fullmatch(pattern, folder, re.IGNORECASE) is not None


def _is_metadata(name: str) -> bool:
    return _METADATA.fullmatch(name) is not None and _TEMPORARY.fullmatch(name) is None


def _table_folder_of(path: str) -> str:
    folder = path.rpartition("/")[0]
    return folder.removesuffix(f"/{_FOLDER}")


def _name_of(path: str) -> str:
    return path.rpartition("/")[2]


def list_uuids(candidates: Iterable[MetadataCandidate]) -> dict[str, list[str]]:
    """Returns the tables that metadata is of, each with the names of its files."""
    found: dict[str, list[str]] = defaultdict(list)
    for candidate in candidates:
        if candidate.uuid:
            found[candidate.uuid].append(candidate.file.name)
    return dict(found)
