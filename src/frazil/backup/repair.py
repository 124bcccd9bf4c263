"""Brings damaged and missing objects of a repository back, from where the same bytes still are.

What an object must hold is known by its name, size and SHA-256. Only content with these is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from frazil.backup.format import BackedUpTable, BackupRecord, BlobRef, Tombstone, compress
from frazil.backup.references import Kind, key_of, parse_key
from frazil.backup.repository import Repository, record_key, tombstone_key
from frazil.errors import FrazilError, IntegrityError, NotFoundError
from frazil.observe.logs import get_logger
from frazil.settings.model import S3Settings
from frazil.storage import bulk
from frazil.storage.bulk import FileSource

log = get_logger(__name__)


@dataclass(frozen=True)
class Repair:
    """An object that can be brought back.

    Attributes:
        key: of the object.
        source: where its bytes are: a file of the table, or an object of another repository.
    """

    key: str
    source: str
    run: Callable[[], object]


def plan_repair(
    repository: Repository,
    keys: Collection[str],
    other: Repository | None,
    s3_of: Callable[[BackedUpTable], S3Settings],
) -> list[Repair]:
    """Returns what can be brought back of damaged and missing objects. Reads its sources; changes nothing.

    Content that was erased stays erased, also where its tombstone is damaged.

    Args:
        repository: that lacks objects.
        keys: of these.
        other: a repository that may have them, such as a copy of this one.
        s3_of: access to the files of a table, as they were at the time of its backup.
    """
    found: dict[str, Repair] = {}
    wanted = {key for key in keys if not _is_erased(repository, key)}
    for key in wanted if other is not None else ():
        assert other is not None
        if (repair := _find_copy(repository, other, key)) is not None:
            found[key] = repair
    records = [record for record in repository.list_records() if isinstance(record, BackupRecord)]
    for table in (table for record in records for table in record.tables):
        for kind, blob, path in _list_files(repository, table) if len(found) < len(wanted) else ():
            key = key_of(kind, blob)
            if key in wanted and key not in found:
                repair = _find_content(repository, kind, blob, path, s3_of(table))
                if repair is not None:
                    found[key] = repair
    return [found[key] for key in sorted(found)]


def run_repair(repository: Repository, repairs: Iterable[Repair]) -> None:
    """Brings objects back, but for content that is erased while it runs.

    Raises:
        IntegrityError: a source has changed since the plan.
    """
    for repair in repairs:
        if not _is_erased(repository, repair.key):
            repair.run()
            if _is_erased(repository, repair.key):  # its tombstone comes first: the removal may have been before us
                repository.remove(repair.key)
                continue
            repository.protect([repair.key])
    repository.flush()


def _is_erased(repository: Repository, key: str) -> bool:
    """Whether content has a tombstone, which may be damaged: that it is there says enough."""
    blob = parse_key("data", key)
    try:
        return blob is not None and bool(repository.store.head(tombstone_key(blob)))
    except NotFoundError:
        return False


def _find_copy(repository: Repository, other: Repository, key: str) -> Repair | None:
    """Returns how to take an object from another repository; None: that does not have it, or it is damaged too."""
    where = f"{other.root}/{key}"
    if (blob := parse_key("data", key)) is not None:
        return _find_content(repository, "data", blob, where, other.access.s3)

    def read() -> bytes:
        if (blob := parse_key("meta", key)) is not None:
            return compress(other.get_meta(blob))
        data = other.store.get(key)
        if key.endswith(".erased"):
            is_same = tombstone_key(Tombstone.parse(data, where).blob) == key
        else:
            record = BackupRecord.parse(data, where)
            is_same = (record_key(record.name), record.repository) == (key, repository.id)
        if not is_same:
            raise IntegrityError(f"{where} is another object than its name says")
        return data

    return _plan_put(repository, key, where, read)


def _plan_put(repository: Repository, key: str, source: str, read: Callable[[], bytes]) -> Repair | None:
    """Returns how to bring an object back that is read and compared again for that: a plan holds no content."""
    try:
        read()
    except FrazilError as error:
        log.info("an object cannot be brought back from there", source=source, reason=error.in_one_line)
        return None
    return Repair(key, source, lambda: repository.store.put(key, read()))


def _find_content(repository: Repository, kind: Kind, blob: BlobRef, uri: str, s3: S3Settings) -> Repair | None:
    """Returns how to take content from a file; None: that is gone, or has other content."""
    key, access = key_of(kind, blob), repository.access
    source = FileSource(uri, blob.size, s3, access.network)
    if kind == "meta":
        return _plan_put(repository, key, uri, lambda: compress(_read_whole(source, blob, uri)))
    digest, size = hashlib.sha256(), 0
    try:
        for chunk in source.read():
            digest.update(chunk)
            size += len(chunk)
    except FrazilError as error:
        log.info("an object cannot be brought back from there", source=uri, reason=error.in_one_line)
        return None
    if BlobRef(size, digest.hexdigest()) != blob:
        return None
    target = f"{repository.root}/{key}"
    return Repair(
        key,
        uri,
        lambda: bulk.write_file(target, source, size, blob.sha256, s3=access.s3, network=access.network),
    )


def _read_whole(source: FileSource, blob: BlobRef, uri: str) -> bytes:
    data = b"".join(map(bytes, source.read()))
    if BlobRef.of(data) != blob:
        raise IntegrityError(f"{uri} has other content")
    return data


def _list_files(repository: Repository, table: BackedUpTable) -> Iterator[tuple[Kind, BlobRef, str]]:
    """Yields the files of a backed up table with their paths, as far as the repository still has lists of them."""
    try:
        state = repository.read_state(table)
    except FrazilError:
        return
    for file in (state.metadata, *state.manifest_lists):
        yield "meta", file.blob, file.path
    for file in state.statistics:
        yield "data", file.blob, file.path
    for manifest in state.manifests:
        yield "meta", manifest.blob, manifest.path
        with suppress(FrazilError):
            for copied in repository.read_files(manifest):
                if copied.blob is not None:
                    yield "data", copied.blob, copied.path
