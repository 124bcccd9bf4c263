"""Decides which version of a table is served. Pure: no storage, no catalog.

Losers of a commit race leave metadata files behind, so that a file alone proves nothing. A version is *witnessed* by a
later metadata log, by a beacon, or by the version hint of a Hadoop table. A log names committed versions only, even the
log of a loser: it based its commit on what the catalog named.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key
from typing import Literal

Witness = Literal["later-log", "beacon", "version-hint"]

_NUMBER = re.compile(r"v?(\d+)(?:[-.]|\Z)")


@dataclass(frozen=True)
class Version:
    """What a metadata file says of its place in the table's history.

    Attributes:
        name: of the file, without its folder. Catalogs put a UUID into it, so that it is unique.
        updated_ms: `last-updated-ms`.
        log: names of former versions, oldest first; the last one is its parent.
    """

    name: str
    updated_ms: int = 0
    log: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return number_of(self.name)

    @property
    def parent(self) -> str | None:
        return self.log[-1] if self.log else None


@dataclass(frozen=True)
class ServedVersion:
    """The version that a replica serves, as its state recorded it.

    Attributes:
        name: of the source's metadata file.
        updated_ms: `last-updated-ms`.
        uuid: of the table.
        witnessed: whether it was known to be committed.
        parent: name of the version before it.
    """

    name: str
    updated_ms: int = 0
    uuid: str = ""
    witnessed: bool = True
    parent: str | None = None


@dataclass(frozen=True)
class Choice:
    """The version to serve.

    Attributes:
        name: None: the served version stays.
        witness: what proves that it was committed; None: nothing yet.
        reasons: why newer versions were not chosen, one sentence each, newest first.
        is_contested: versions without a witness exist, of which one at most was committed.
        served_lost: the served version was never committed: it lost a commit race.
    """

    name: str | None
    witness: Witness | None = None
    reasons: tuple[str, ...] = ()
    is_contested: bool = False
    served_lost: bool = False


def number_of(name: str) -> int:
    """Returns the version in the name of a metadata file, -1 if there is none: `00012-….metadata.json`, `v12.…`."""
    match = _NUMBER.match(name)
    return int(match[1]) if match else -1


def choose_version(
    versions: Sequence[Version],
    served: ServedVersion | None,
    *,
    witnesses: Mapping[str, Witness] | None = None,
    unreadable: Collection[str] = (),
    is_complete: Callable[[str], bool],
    witnessed_only: bool = False,
) -> Choice:
    """Returns the newest committed version whose files have all arrived, never one before the served version.

    Args:
        versions: of one table, with every file from the oldest one here to the newest.
        served: by the replica; None: nothing yet.
        witnesses: names that a beacon or a version hint proves; logs of the versions are read here.
        unreadable: names of metadata files that have not (completely) arrived.
        is_complete: whether all files of a version have arrived. Called for the newest first, and no more than needed.
        witnessed_only: never choose a version without a witness.
    """
    raise NotImplementedError
