"""The files of documents: added to a bucket or folder and registered, and brought back."""

from __future__ import annotations

import hashlib
import mimetypes
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from frazil.atomic_files import replace_file
from frazil.documents.lifecycle import RevisionMismatchError
from frazil.documents.model import TIERS, Document
from frazil.documents.objects import (
    OBJECT_ATTRIBUTE,
    STORAGE_CLASSES,
    bucket_of,
    content_writes,
    id_of_object,
    location_of,
    provider_of,
    tier_of,
)
from frazil.documents.restores import record_restore
from frazil.documents.store import DocumentStore, Time, Write
from frazil.errors import ConflictError, IntegrityError, NotFoundError, UnsupportedError, UsageError
from frazil.settings import SettingsModel
from frazil.storage import Location, parse
from frazil.storage.files import ArchivedError, FileDigests, FileStore, StoredFile, open_files
from frazil.storage.store import check_key

Outcome = Literal["added", "registered", "replaced", "unchanged"]
#: Algorithms whose checksums can be verified.
_ALGORITHMS = frozenset({"sha256", "sha1", "sha512", "md5"})


@dataclass(frozen=True)
class Added:
    """A file with its document.

    Attributes:
        outcome: added: uploaded and registered; registered: the same object was there already; replaced: the document
            has a new object; unchanged: both were there already.
    """

    document: Document
    uri: str
    outcome: Outcome

    def to_dict(self) -> dict[str, Any]:
        return {"outcome": self.outcome, "uri": self.uri, **self.document.to_dict()}


@dataclass(frozen=True)
class AddOptions:
    """How files are added.

    Attributes:
        tier: storage tier of the objects.
        content_type: of the files; by default it is told from their names.
        tags, attributes: of the documents.
        provider: by default it is told from the location.
        replace: an object of this name with another content is replaced.
    """

    tier: str = "standard"
    content_type: str | None = None
    tags: Mapping[str, str] | None = None
    attributes: Mapping[str, Any] | None = None
    provider: str | None = None
    replace: bool = False


@dataclass(frozen=True)
class Fetched:
    """A file that was brought back. `is_verified` is false where the document has no checksum that can be computed."""

    document: Document
    path: Path
    size: int
    is_verified: bool

    def to_dict(self) -> dict[str, Any]:
        return {
            "document_id": self.document.document_id,
            "path": str(self.path),
            "size_bytes": self.size,
            "verified": self.is_verified,
        }


# -- add


def add_file(
    store: DocumentStore, settings: SettingsModel, file: Path, target: str, options: AddOptions | None = None
) -> Added:
    """Uploads a file and registers its document. May be repeated after an interruption, and makes no duplicate.

    The id of the document is derived from the location of its object, so that whatever was done before is found.

    Args:
        store: where the document is registered.
        settings: access to the storage.
        file: a file on this machine.
        target: s3://bucket/prefix or a folder; the object gets the file's name there.
        options: tier, tags and so on.

    Raises:
        ConflictError: an object with another content has this name, and `options.replace` is false.
        IntegrityError: what was stored differs from the file, or the file changed meanwhile.
    """
    options = options or AddOptions()
    if options.tier not in TIERS:
        raise UsageError(f"storage tier '{options.tier}' does not exist", hint=f"one of: {', '.join(TIERS)}")
    if not file.is_file():
        raise NotFoundError(f"{file} is no file", hint="the path of a file that can be read")
    root, key = _target(target, file.name)
    if root.scheme != "s3" and options.tier != "standard":
        raise UnsupportedError(
            f"{root} has no storage tiers", hint="leave out --storage-tier, or a bucket: --to s3://bucket/prefix"
        )
    files = open_files(root, s3=settings.s3, network=settings.network)
    digests = FileDigests.of(file)
    uri = str(root.child(key))
    content_type = options.content_type or mimetypes.guess_type(file.name)[0] or "application/octet-stream"
    found, is_uploaded = _ensure_object(files, key, uri, file, digests, content_type, options)
    provider, bucket = options.provider or provider_of(root, settings.s3), bucket_of(root)
    values = {
        "filename": file.name,
        "content_type": content_type,
        "size_bytes": found.size,
        "checksum": f"sha256:{digests.sha256}",
        "provider": provider,
        "bucket": bucket,
        "object_key": key,
        "version_id": found.version_id or None,
        "storage_tier": tier_of(found.storage_class),
        "tags": dict(options.tags or {}),
        "attributes": {**(options.attributes or {}), OBJECT_ATTRIBUTE: {"etag": found.etag}},
    }
    document_id = id_of_object(provider, bucket, key)
    document, is_new, is_changed = _register(store, document_id, values)
    if is_new:
        return Added(document, uri, "added" if is_uploaded else "registered")
    return Added(document, uri, "replaced" if is_uploaded else "registered" if is_changed else "unchanged")


def _target(target: str, name: str) -> tuple[Location, str]:
    """The bucket or folder, and the key of the object there."""
    location = parse(target)
    if location.scheme == "file":
        return location, check_key(name)
    key = f"{location.key}/{name}" if location.key else name
    return Location(location.scheme, location.authority, ""), check_key(key)


def _ensure_object(
    files: FileStore, key: str, uri: str, file: Path, digests: FileDigests, content_type: str, options: AddOptions
) -> tuple[StoredFile, bool]:
    """Returns the object with the content of the file, and whether it was uploaded just now."""
    found = files.find(key)
    if found is not None and (not options.replace or tier_of(found.storage_class) == options.tier):
        if files.holds(key, found, digests):
            return found, False
        if not options.replace:
            raise _taken(uri, found)
    try:
        made = files.upload(
            key, file, digests,
            storage_class=STORAGE_CLASSES[options.tier], content_type=content_type, replace=found is not None,
        )  # fmt: skip
    except ConflictError:
        found = files.find(key)  # somebody was faster, perhaps with the same file
        if found is None or not files.holds(key, found, digests):
            raise _taken(uri, found) from None
        return found, False
    return made, True


def _taken(uri: str, found: StoredFile | None) -> ConflictError:
    size = f" ({found.size:,} bytes)" if found is not None else ""
    return ConflictError(
        f"{uri} already exists with another content{size}",
        cause="or its content cannot be compared" if found is not None and not found.is_readable else None,
        hint="another --to, or --replace: the document gets a new object",
    )


def _register(store: DocumentStore, document_id: str, values: dict[str, Any]) -> tuple[Document, bool, bool]:
    """Returns the document, whether it is new, and whether it was changed."""
    values = {name: value for name, value in values.items() if value is not None}
    for _ in range(5):
        try:
            current = store.get_metadata(document_id)
        except NotFoundError:
            writes = [Write("put", document_id, values, 0)]
            is_new = True
        else:
            changes = _differences(current, values)
            if not changes:
                return current, False, False
            is_new = False
            has_new_object = bool(changes.keys() & {"checksum", "version_id", "storage_tier"})
            writes = (
                content_writes(current, changes)
                if has_new_object
                else [Write("update", document_id, changes, current.revision)]
            )
        try:
            return store.write(writes)[-1].document, is_new, True
        except RevisionMismatchError:
            continue  # an event of the object, or the same command elsewhere, was faster
    raise ConflictError(f"document '{document_id}' is being changed again and again", hint="repeat the command")


def _differences(current: Document, values: Mapping[str, Any]) -> dict[str, Any]:
    """What of the values the document does not have yet; tags and attributes are added to those that it has."""
    changes = {}
    for name, value in values.items():
        before = current[name]
        if name in ("tags", "attributes"):
            more = {key: part for key, part in value.items() if not _contains(before.get(key), part)}
            if more:
                changes[name] = more
        elif before != value:
            changes[name] = value
    return changes


def _contains(before: Any, part: Any) -> bool:
    if isinstance(before, Mapping) and isinstance(part, Mapping):
        return all(key in before and _contains(before[key], value) for key, value in part.items())
    return bool(before == part)


# -- fetch


def fetch_file(
    store: DocumentStore,
    settings: SettingsModel,
    document_id: str,
    out: Path | None = None,
    *,
    as_of: Time | None = None,
    replace: bool = False,
) -> Fetched:
    """Brings the file of a document back. It appears at `out` whole and verified, or not at all.

    Args:
        store: where the document is registered. It is told of a restore that turns out to be done.
        settings: access to the storage.
        document_id: the document.
        out: a file or a folder; by default a file of the document's name in the current folder.
        as_of: bring the version that the document had at this moment.
        replace: replace a file that exists.

    Raises:
        NotFoundError: there is no such document, or its object does not exist any more.
        ConflictError: the object must be restored first, or `out` exists.
        IntegrityError: the object is not what was registered.
    """
    is_current = as_of is None
    document = store.get_metadata(document_id) if as_of is None else store.get_time_travel_snapshot(document_id, as_of)
    path = _path_for(document, out, replace=replace)
    root, key = location_of(document)
    uri = str(root.child(key))
    files = open_files(root, s3=settings.s3, network=settings.network)
    found = files.find(key, document.version_id or "")
    if found is None:
        version = f", version {document.version_id}" if document.version_id else ""
        raise NotFoundError(
            f"the object of document '{document_id}' does not exist: {uri}{version}",
            hint=f"where it was before: frazil docs history {document_id}",
        )
    if is_current:
        document = record_restore(store, document, found)
    try:
        with replace_file(path.resolve()) as file:
            is_verified = _copy(files.read(key, found), file, document, uri)
    except ArchivedError:  # some servers have the storage class, and read it nevertheless: the attempt decides
        raise _archived(document, found) from None
    return Fetched(document, path, found.size, is_verified)


def _copy(chunks: Iterator[bytes], file: BinaryIO, document: Document, uri: str) -> bool:
    """Writes the chunks, and returns whether they were compared with the document's checksum."""
    algorithm, _, wanted = (document.checksum or "").partition(":")
    digest = hashlib.new(algorithm, usedforsecurity=False) if algorithm in _ALGORITHMS else None
    for chunk in chunks:
        file.write(chunk)
        if digest is not None:
            digest.update(chunk)
    if digest is not None and digest.hexdigest() != wanted.lower():
        raise IntegrityError(
            f"{uri} is not what was registered: {algorithm} {digest.hexdigest()}, expected {wanted}",
            hint=f"nothing was written; which versions there were: frazil docs history {document.document_id}",
        )
    return digest is not None


def _path_for(document: Document, out: Path | None, *, replace: bool) -> Path:
    # The name may come from a stranger: nothing of it leads out of the folder.
    name = re.split(r"[/\\]", document.filename)[-1].strip()
    name = name if name not in ("", ".", "..") else document.document_id
    path = Path(name) if out is None else out / name if out.is_dir() else out
    if path.exists() and not replace:
        raise ConflictError(f"{path} exists", hint="--out FILE, or --replace")
    if not path.resolve().parent.is_dir():
        raise NotFoundError(f"folder {path.parent} does not exist", hint=f"mkdir -p {path.parent}, or another --out")
    return path


def _archived(document: Document, found: StoredFile) -> ConflictError:
    document_id = document.document_id
    tier = tier_of(found.storage_class)
    if found.restored is not None and found.restored.is_ongoing:
        return ConflictError(
            f"document '{document_id}' is in tier '{tier}', and its restore is under way",
            hint="again later: a restore takes minutes to two days, by its tier",
        )
    return ConflictError(
        f"document '{document_id}' is in tier '{tier}' and must be restored before it can be read",
        hint=f"frazil docs restore-request {document_id} --days 7, and fetch it when it is restored",
    )
