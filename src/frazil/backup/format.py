"""The formats of a backup repository, as bytes and back; docs/backup-repository.md describes them byte by byte. Pure.

Every JSON object of a repository is *sealed*: its last field, `sha256`, is the digest of all bytes before that field,
so that a single flipped bit anywhere in it is noticed. The seal, `format` and `features` keep their meaning in all
versions.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import orjson
import pyarrow as pa

from frazil.errors import FrazilError, IntegrityError, UnsupportedError, UsageError

FORMAT = 1
#: Features that this version understands. A repository or record that names another one is refused.
FEATURES: frozenset[str] = frozenset()
DataMode = Literal["copied", "referenced"]
T = TypeVar("T")

#: What to do about a damaged object.
DAMAGED_HINT = "frazil backup verify tells which backups need it; a new backup of the same content replaces it"
#: A skippable frame of zstd with 32 bytes: the SHA-256 of all bytes before it. Tools skip it.
_SKIPPABLE = b"\x50\x2a\x4d\x18\x20\x00\x00\x00"
_TRAILER_SIZE = len(_SKIPPABLE) + 32
_ZSTD_LEVEL = 3
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_BLOB = re.compile(r"(0|[1-9][0-9]{0,18})-([0-9a-f]{64})")
_SEAL = re.compile(rb',\n "sha256": "([0-9a-f]{64})"\n}\n')
_SEAL_SIZE = 82


@dataclass(frozen=True, order=True)
class BlobRef:
    """Content by its size and SHA-256, which is also the name of the object that holds it."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> BlobRef:
        return cls(len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def parse(cls, name: str) -> BlobRef:
        """Reads `<size>-<sha256>`.

        Raises:
            IntegrityError: it is not such a name.
        """
        match = _BLOB.fullmatch(name)
        if match is None:
            raise IntegrityError(f"{name[:200]!r} is not the name of a blob: <size>-<SHA-256 in lower-case hex>")
        return cls(int(match[1]), match[2])

    @property
    def shard(self) -> str:
        """The folder of the blob: the first two hex digits."""
        return self.sha256[:2]

    def __str__(self) -> str:
        return f"{self.size}-{self.sha256}"


@dataclass(frozen=True)
class CopiedFile:
    """One line of a file list: a live file of a manifest.

    Attributes:
        path: as the manifest writes it.
        sha256: of the copy; None: the file is referenced, not copied.
        content: 0 data, 1 position deletes (deletion vectors too), 2 equality deletes.
    """

    path: str
    size: int
    sha256: str | None
    content: int
    format: str

    @property
    def blob(self) -> BlobRef | None:
        return None if self.sha256 is None else BlobRef(self.size, self.sha256)


@dataclass(frozen=True)
class PathBlob:
    """A file of the table's metadata, and its content."""

    path: str
    blob: BlobRef


@dataclass(frozen=True)
class ManifestState:
    """A manifest, and the list of its live files.

    Attributes:
        files: JSON lines of `CopiedFile`; None where the data is referenced.
        content: 0 data, 1 deletes.
        entries: live files.
        bytes: their size.
    """

    path: str
    blob: BlobRef
    files: BlobRef | None
    content: int
    entries: int
    bytes: int


@dataclass(frozen=True)
class TableState:
    """All files of a table at the time of a backup.

    Attributes:
        statistics: statistics and partition statistics; their blobs lie under `data`.
        prefixes: folders that cover every path of the table.
    """

    metadata: PathBlob
    manifest_lists: tuple[PathBlob, ...]
    manifests: tuple[ManifestState, ...]
    statistics: tuple[PathBlob, ...]
    prefixes: tuple[str, ...]


@dataclass(frozen=True)
class BackedUpTable:
    """What a record says of one table.

    Attributes:
        state: a `TableState`.
        metadata_bytes: of metadata.json, manifest lists and manifests.
    """

    identifier: tuple[str, ...]
    catalog: str
    catalog_kind: str
    uuid: str
    location: str
    format_version: int
    current_snapshot_id: int | None
    snapshots: int
    refs: tuple[str, ...]
    files: int
    bytes: int
    new_files: int
    new_bytes: int
    metadata_bytes: int
    state: BlobRef


@dataclass(frozen=True)
class BackupRecord:
    """One backup. It exists as soon as its record does.

    Attributes:
        started_at: by the storage's clock, as `created_at`.
        locked_until: the end of the Object Lock retention of everything that it needs.
        repository: id of the repository; set when the record is written.
    """

    name: str
    id: str
    started_at: datetime
    created_at: datetime
    frazil_version: str
    data: DataMode
    locked_until: datetime | None
    tables: tuple[BackedUpTable, ...]
    features: tuple[str, ...] = ()
    repository: str = ""

    def to_json(self) -> bytes:
        """Returns the record as its sealed JSON."""
        return seal(_plain(self))

    @classmethod
    def parse(cls, data: bytes, where: str) -> BackupRecord:
        """Reads a record.

        Raises:
            IntegrityError: it is damaged, or not a record.
            UnsupportedError: it is newer than this version of Frazil, or needs a feature that this one does not have.
        """
        return _build(cls, unseal(data, where, what="backup record"), where)


@dataclass(frozen=True)
class DamagedRecord:
    """A record that cannot be read, and why."""

    name: str
    error: FrazilError


@dataclass(frozen=True)
class Tombstone:
    """Says that a blob was erased on purpose."""

    blob: BlobRef
    reason: str
    erased_at: datetime

    def to_json(self) -> bytes:
        return seal(_plain(self))

    @classmethod
    def parse(cls, data: bytes, where: str) -> Tombstone:
        return _build(cls, unseal(data, where, what="tombstone"), where)


def check_name(name: str) -> str:
    """Returns the name of a backup.

    Raises:
        UsageError: it cannot be one: `..`, slashes and the like never reach the storage.
    """
    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"backup name {name[:200]!r} is invalid",
            hint="up to 128 letters, digits, '.', '_' and '-', beginning with a letter or digit",
        )
    return name


# -- sealed JSON


def seal(fields: Mapping[str, Any]) -> bytes:
    """Returns a JSON object with `format` first and `sha256`, the digest of all bytes before it, last."""
    text = json.dumps({"format": FORMAT, "features": [], **fields}, indent=1, ensure_ascii=False)
    body = text.removesuffix("\n}").encode()
    return body + b',\n "sha256": "' + hashlib.sha256(body).hexdigest().encode() + b'"\n}\n'


def unseal(data: bytes, where: str, *, what: str) -> dict[str, Any]:
    """Returns the fields of a sealed JSON object.

    Raises:
        IntegrityError: it is damaged, or something else.
        UnsupportedError: it is newer than this version of Frazil, or needs a feature that this one does not have.
    """
    restore = f"restore {where} from a copy of the repository"
    match = _SEAL.fullmatch(data[-_SEAL_SIZE:])
    if match is None:
        if is_json_object(data):
            raise IntegrityError(f"{where} is not a {what} of Frazil: its last field is not its sha256", hint=restore)
        raise IntegrityError(f"{where} is cut off or damaged: a {what} ends with its sha256", hint=restore)
    body = data[:-_SEAL_SIZE]
    if hashlib.sha256(body).hexdigest().encode() != match[1]:
        raise IntegrityError(f"{where} is damaged: its bytes do not have the sha256 that it states", hint=restore)
    try:
        found = json.loads(body + b"\n}")
    except ValueError as error:
        raise IntegrityError(f"{where} is not a {what} of Frazil", hint=restore) from error
    version, features = found.get("format"), found.get("features", [])
    upgrade = "use the version of Frazil that wrote it, or a newer one"
    if not isinstance(version, int) or version < 1 or not isinstance(features, list):
        raise IntegrityError(f"{where} is not a {what} of Frazil: it states no format", hint=restore)
    if version > FORMAT:
        raise UnsupportedError(
            f"{where} has format {version}, which is newer than this version of Frazil",
            cause=f"formats up to {FORMAT} are known",
            hint=upgrade,
        )
    if unknown := sorted(str(f) for f in features if f not in FEATURES):
        raise UnsupportedError(f"{where} needs features that this version lacks: {', '.join(unknown)}", hint=upgrade)
    return found  # type: ignore[no-any-return]


def is_json_object(data: bytes) -> bool:
    try:
        return isinstance(orjson.loads(data), dict)
    except ValueError:
        return False


# -- compression


def compress(data: bytes) -> bytes:
    """Returns data as zstd, and behind it the SHA-256 of that in a frame which zstd's tools skip."""
    frame = bytes(pa.Codec("zstd", _ZSTD_LEVEL).compress(data, asbytes=True))
    return frame + _SKIPPABLE + hashlib.sha256(frame).digest()


def decompress(data: bytes, where: str) -> bytes:
    """Returns what `compress` was given.

    Raises:
        IntegrityError: any bit of it is damaged.
    """
    frame, trailer = data[:-_TRAILER_SIZE], data[-_TRAILER_SIZE:]
    if trailer != _SKIPPABLE + hashlib.sha256(frame).digest():
        raise IntegrityError(f"{where} is cut off or damaged", hint=DAMAGED_HINT)
    try:
        return bytes(pa.CompressedInputStream(pa.BufferReader(frame), "zstd").read())
    except (OSError, ValueError) as error:
        raise IntegrityError(f"{where} is damaged", hint=DAMAGED_HINT) from error


# -- metadata: JSON without a seal, since blobs are named by their digest


def encode_state(state: TableState) -> bytes:
    return json.dumps({"format": FORMAT, **_plain(state)}, indent=1, ensure_ascii=False).encode() + b"\n"


def parse_state(data: bytes, where: str) -> TableState:
    try:
        found = json.loads(data)
    except ValueError as error:
        raise IntegrityError(f"{where} is not a table state") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise UnsupportedError(f"{where} is not a table state of format {FORMAT}", hint="use a newer version of Frazil")
    return _build(TableState, found, where)


def encode_files(files: Iterable[CopiedFile]) -> bytes:
    """Returns a file list: JSON lines."""
    return b"".join(orjson.dumps(file, option=orjson.OPT_APPEND_NEWLINE) for file in files)


def parse_files(data: bytes, where: str) -> Iterator[CopiedFile]:
    """Yields the lines of a file list.

    Raises:
        IntegrityError: a line is not one of a file list.
    """
    for line in data.splitlines():
        try:
            found = orjson.loads(line)
            yield CopiedFile(found["path"], found["size"], found["sha256"], found["content"], found["format"])
        except (ValueError, LookupError, TypeError) as error:
            raise IntegrityError(f"{where} is not a file list") from error


# -- dataclasses as JSON


def _plain(value: Any) -> Any:
    if isinstance(value, BlobRef):
        return str(value)
    if isinstance(value, datetime):
        return value.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    if hasattr(value, "__dataclass_fields__"):
        return {field.name: _plain(getattr(value, field.name)) for field in fields(value)}
    return value


def _build(kind: type[T], found: Mapping[str, Any], where: str) -> T:
    """An object of a dataclass from its JSON. Fields that it does not have are ignored: later versions may add some."""
    try:
        return _read(kind, found)  # type: ignore[no-any-return]
    except (KeyError, TypeError, ValueError, AttributeError, IntegrityError) as error:
        raise IntegrityError(f"{where} lacks a field, or one has another type", cause=str(error)) from error


def _read(kind: Any, value: Any) -> Any:
    """A value of a type that the dataclasses above use."""
    if kind is BlobRef:
        return BlobRef.parse(value)
    if kind is datetime:
        return datetime.fromisoformat(value)
    if is_dataclass(kind):
        hints = _hints(kind)  # type: ignore[arg-type]
        return kind(**{name: _read(hint, value[name]) for name, hint in hints.items() if name in value})  # type: ignore[operator]
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is tuple:
        return tuple(_read(arguments[0], one) for one in value)
    if origin is Literal:
        if value not in arguments:
            raise ValueError(f"{value!r} is none of {', '.join(arguments)}")
        return value
    if arguments:  # X | None
        return None if value is None else _read(arguments[0], value)
    if type(value) is not kind:
        raise TypeError(f"{value!r} is not {kind.__name__}")
    return value


@lru_cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
