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

#: By how much `last-updated-ms` may be lower than that of an earlier version: Iceberg's own limit.
CLOCK_TOLERANCE_MS = 60_000

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
    history = _History(versions, served, witnesses or {}, unreadable)
    heads = history.find_heads()
    contested = len(heads) > 1
    lost = served is not None and history.has_lost(served)
    reasons: list[str] = []
    if contested:
        reasons.append(f"one of {', '.join(heads)} at most was committed, and no later version says which")
    for version in history.list_eligible(heads):
        if served is not None and not history.is_after(version, served, lost=lost):
            continue
        witness = history.proven.get(version.name)
        if witness is None and witnessed_only:
            reasons.append(f"{version.name} has no witness yet")
        elif is_complete(version.name):
            return Choice(version.name, witness, tuple(reasons), contested, lost)
        else:
            reasons.append(f"files of {version.name} are missing")
    kept = history.proven.get(served.name) if served is not None else None
    return Choice(None, kept, tuple(reasons), contested, lost)


class _History:
    """What a set of versions and witnesses says of the commits of one table."""

    def __init__(
        self,
        versions: Sequence[Version],
        served: ServedVersion | None,
        witnesses: Mapping[str, Witness],
        unreadable: Collection[str],
    ) -> None:
        self.versions = {version.name: version for version in versions}
        self.unreadable = frozenset(unreadable)
        #: Committed versions, also those whose file is not here.
        self.proven: dict[str, Witness] = dict.fromkeys((name for v in versions for name in v.log), "later-log")
        for name, witness in witnesses.items():
            self.proven.setdefault(name, witness)
        known = {served.name} if served is not None and served.witnessed else set[str]()
        self._numbers: dict[int, set[str]] = {}
        for name in self.proven.keys() | known:
            self._numbers.setdefault(number_of(name), set()).add(name)
        self._ancestors: dict[str, frozenset[str]] = {}

    def find_heads(self) -> tuple[str, ...]:
        """Returns the versions of the highest number that may be the newest, but have no witness."""
        found = [name for name in (*self.versions, *self.unreadable) if self._may_be_newest(name)]
        highest = max(map(number_of, found), default=-1)
        return tuple(sorted(name for name in found if number_of(name) == highest))

    def list_eligible(self, heads: Collection[str]) -> list[Version]:
        """Returns the committed versions, and the head if there is but one, newest first."""
        sole = set(heads) if len(heads) == 1 else set()
        eligible = [version for name, version in self.versions.items() if name in self.proven or name in sole]
        return sorted(eligible, key=cmp_to_key(self._compare), reverse=True)

    def has_lost(self, served: ServedVersion) -> bool:
        """Whether the served version was not committed, because another one of its number was."""
        if served.witnessed or served.name in self.proven:
            return False
        rivals = self._numbers.get(number_of(served.name), set())
        return bool(rivals - {served.parent} - self._list_ancestors(served.name))

    def is_after(self, version: Version, served: ServedVersion, *, lost: bool) -> bool:
        """Whether a version comes after the served one. If that was lost: after its parent, or the parent itself."""
        ancestors = self._list_ancestors(version.name)
        if served.name in ancestors:
            return True
        if version.name == served.name or version.name in self._list_ancestors(served.name):
            return lost and version.name == served.parent
        if served.parent is not None and (version.name == served.parent or served.parent in ancestors):
            # Beside the served version: a commit that replaces it only if it was lost.
            return lost or (version.name != served.parent and version.number > number_of(served.name))
        if version.updated_ms < served.updated_ms - CLOCK_TOLERANCE_MS:
            return False
        return version.number - number_of(served.name) >= (0 if lost else 1)

    def _may_be_newest(self, name: str) -> bool:
        """Whether no version of its number or a higher one was committed, except before it: numbers may restart."""
        if name in self.proven:
            return False
        number, ancestors = number_of(name), self._list_ancestors(name)
        return all(at < number or names <= ancestors for at, names in self._numbers.items())

    def _compare(self, one: Version, other: Version) -> int:
        """Compares by the logs, or if these do not reach so far, by number and time."""
        if one.name in self._list_ancestors(other.name):
            return -1
        if other.name in self._list_ancestors(one.name):
            return 1
        left, right = (one.number, one.updated_ms, one.name), (other.number, other.updated_ms, other.name)
        return (left > right) - (left < right)

    def _list_ancestors(self, name: str) -> frozenset[str]:
        """Returns the versions before one, through the logs of all versions that are here."""
        if name not in self._ancestors:
            found: set[str] = set()
            start: list[str] = [name]
            while start:
                version = self.versions.get(start.pop())
                if version is not None:
                    new = [former for former in version.log if former not in found]
                    found.update(new)
                    start += new
            self._ancestors[name] = frozenset(found - {name})
        return self._ancestors[name]
