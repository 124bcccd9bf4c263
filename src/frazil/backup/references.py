"""What backups need: every object that a record names, directly or through its table states and file lists."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from itertools import chain, islice
from typing import Literal, TypeVar

from frazil.backup.format import BackedUpTable, BackupRecord, BlobRef, ManifestState, TableState
from frazil.backup.repository import Repository, data_key, meta_key
from frazil.errors import FrazilError, IntegrityError, NotFoundError, UnsupportedError

T = TypeVar("T")
Kind = Literal["data", "meta"]
KINDS: tuple[Kind, ...] = ("meta", "data")
#: Blobs up to which each is looked up by itself, rather than in a listing of the whole repository.
_LOOK_UP = 1000
#: Called with the key of metadata that cannot be read, and why.
OnUnreadable = Callable[[str, FrazilError], None]


def key_of(kind: Kind, blob: BlobRef) -> str:
    return data_key(blob) if kind == "data" else meta_key(blob)


def parse_key(kind: Kind, key: str) -> BlobRef | None:
    """Returns the blob that an object is by its key; None: it is something else."""
    name = key.rpartition("/")[2]
    if kind == "meta":
        if not name.endswith(".zst"):
            return None
        name = name.removesuffix(".zst")
    try:
        blob = BlobRef.parse(name)
    except IntegrityError:
        return None
    return blob if key == key_of(kind, blob) else None


def has_blob(repository: Repository, kind: Kind, blob: BlobRef) -> bool:
    return repository.has_data(blob) if kind == "data" else repository.has_meta(blob)


@dataclass
class References:
    """Blobs by their digests: about 100 bytes of memory for each."""

    data: set[bytes] = field(default_factory=set)
    meta: set[bytes] = field(default_factory=set)

    def add(self, kind: Kind, blob: BlobRef) -> None:
        (self.data if kind == "data" else self.meta).add(bytes.fromhex(blob.sha256))

    def discard(self, kind: Kind, blob: BlobRef) -> None:
        (self.data if kind == "data" else self.meta).discard(bytes.fromhex(blob.sha256))

    def has(self, kind: Kind, blob: BlobRef) -> bool:
        return bytes.fromhex(blob.sha256) in (self.data if kind == "data" else self.meta)

    def __len__(self) -> int:
        return len(self.data) + len(self.meta)


def collect_references(
    repository: Repository, records: Iterable[BackupRecord], on_unreadable: OnUnreadable | None = None
) -> References:
    """Returns all that some records need. What several of them share is read once.

    Args:
        repository: the repository.
        records: of it.
        on_unreadable: what to do about damaged or missing metadata; None: it is raised.

    Raises:
        IntegrityError: a table state or file list is damaged.
        NotFoundError: one is missing.
    """
    references = References()
    for record in records:
        try:
            for kind, blob in iterate_references(repository, record.tables, references, on_unreadable):
                references.add(kind, blob)
        except (IntegrityError, NotFoundError, UnsupportedError) as error:
            raise error.adding(f"the backup '{record.name}' needs it", backup=record.name) from error.__cause__
    return references


def iterate_references(
    repository: Repository,
    tables: Iterable[BackedUpTable],
    known: References | None = None,
    on_unreadable: OnUnreadable | None = None,
) -> Iterator[tuple[Kind, BlobRef]]:
    """Yields what tables of a record need, metadata first. What only known states and file lists name is left out."""
    known = References() if known is None else known
    for table in tables:
        if known.has("meta", table.state):
            continue
        state = _attempt(lambda table=table: repository.read_state(table), table.state, on_unreadable)  # type: ignore[misc]
        lists = [] if state is None else _unknown_lists(state, known)
        yield "meta", table.state
        if state is None:
            continue
        yield from _of_state(state)

        def read(manifest: ManifestState) -> list[BlobRef]:
            assert manifest.files is not None
            found = _attempt(
                lambda: [file.blob for file in repository.read_files(manifest) if file.blob is not None],
                manifest.files,
                on_unreadable,
            )
            return found or []

        for blobs in repository.map(read, lists):
            for blob in blobs:
                yield "data", blob


def _unknown_lists(state: TableState, known: References) -> list[ManifestState]:
    """One manifest for each file list that is not known."""
    lists = {manifest.files: manifest for manifest in state.manifests if manifest.files is not None}
    return [manifest for blob, manifest in lists.items() if not known.has("meta", blob)]


def _of_state(state: TableState) -> Iterator[tuple[Kind, BlobRef]]:
    yield "meta", state.metadata.blob
    for one in state.manifest_lists:
        yield "meta", one.blob
    for manifest in state.manifests:
        yield "meta", manifest.blob
        if manifest.files is not None:
            yield "meta", manifest.files
    for one in state.statistics:
        yield "data", one.blob


def _attempt(read: Callable[[], T], blob: BlobRef, on_unreadable: OnUnreadable | None) -> T | None:
    try:
        return read()
    except (IntegrityError, NotFoundError, UnsupportedError) as error:
        if on_unreadable is None:
            raise
        on_unreadable(meta_key(blob), error)
        return None


def find_absent(repository: Repository, needed: Iterable[tuple[Kind, BlobRef]]) -> References:
    """Returns which of these blobs the repository does not have, or has with another size.

    A few are looked up one by one, many in a listing. Memory grows by about 100 bytes for each.
    """
    remaining, absent = iter(needed), References()
    few = list(islice(remaining, _LOOK_UP + 1))
    are_few = len(few) <= _LOOK_UP
    if are_few:
        there = repository.map(lambda one: has_blob(repository, *one), few)
        few = [one for one, exists in zip(few, there, strict=True) if not exists]
    for kind, blob in chain(few, remaining):
        absent.add(kind, blob)
    for kind in () if are_few else KINDS:
        for info in repository.store.list(kind):
            found = parse_key(kind, info.key)
            # Metadata is compressed, so that its size says nothing.
            if found is not None and (kind == "meta" or info.size == found.size):
                absent.discard(kind, found)
    return absent


def find_protected(repository: Repository, tables: Iterable[BackedUpTable], until: datetime) -> References:
    """Returns states and file lists of these tables whose blobs are locked for so long by other backups."""
    references = References()
    wanted = {table.uuid for table in tables}
    for record in repository.list_records():
        if isinstance(record, BackupRecord) and record.locked_until is not None and record.locked_until >= until:
            for table in record.tables:
                if table.uuid in wanted:
                    _add_lists(repository, table, references)
    return references


def _add_lists(repository: Repository, table: BackedUpTable, references: References) -> None:
    references.add("meta", table.state)
    for manifest in repository.read_state(table).manifests:
        if manifest.files is not None:
            references.add("meta", manifest.files)
