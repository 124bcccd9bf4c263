"""Makes sure that a new backup is complete, also in what it shares with earlier ones.

A create copies nothing that an earlier record lists. If such an object was lost since, by a fault of the storage or by
hand, the new backup would lack it too, and would never say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from frazil.backup.format import BackedUpTable, BlobRef
from frazil.backup.prune import parse_key
from frazil.backup.references import KINDS, Kind, References, iterate_references
from frazil.backup.repository import Repository
from frazil.errors import FrazilError, NotFoundError

#: Objects up to which each is looked up by itself, rather than in a listing of the whole repository.
_LOOK_UP = 1000


def find_absent(repository: Repository, tables: Sequence[BackedUpTable]) -> list[BlobRef]:
    """Returns what tables of a new record need and the repository does not have, or has with another size.

    Memory grows with the files of the tables, about 100 bytes for each.
    """
    shared = [table for table in tables if table.new_files < table.files]
    few = list(islice(_iterate_needed(repository, shared), _LOOK_UP + 1))
    if len(few) <= _LOOK_UP:
        there = repository.map(lambda one: _exists(repository, *one), few)
        return [blob for (_, blob), exists in zip(few, there, strict=True) if not exists]
    absent = References()
    for kind, blob in _iterate_needed(repository, shared):
        absent.add(kind, blob)
    for kind in KINDS:
        digests = absent.data if kind == "data" else absent.meta
        for info in repository.store.list(kind):
            found = parse_key(kind, info.key)
            # Metadata is compressed, so that its size says nothing.
            if found is not None and (kind == "meta" or info.size == found.size):
                digests.discard(bytes.fromhex(found.sha256))
    if not absent.data and not absent.meta:
        return []
    return [blob for kind, blob in _iterate_needed(repository, shared) if absent.has(kind, blob)]


def _iterate_needed(repository: Repository, tables: Sequence[BackedUpTable]) -> Iterator[tuple[Kind, BlobRef]]:
    return iterate_references(repository, tables, None, _require_missing)


def _require_missing(key: str, error: FrazilError) -> None:
    """A list that is missing is found by its own name; one that is damaged is an error."""
    del key
    if not isinstance(error, NotFoundError):
        raise error


def _exists(repository: Repository, kind: Kind, blob: BlobRef) -> bool:
    return repository.has_data(blob) if kind == "data" else repository.has_meta(blob)
