"""Folders that cover every path of a table, so that a restore can map each of them to another place."""

from __future__ import annotations

from collections.abc import Iterable

from frazil.errors import UsageError
from frazil.tables.relocation import PrefixMap

#: Folders beyond those that the table names, from which on they are merged into common ones: a table whose former
#: object-store layout is not in its properties any more has thousands.
_MOST = 16


class CoveringFolders:
    """Collects folders.

    Args:
        named: the table's own folders, which stay as they are.
        known: of an earlier backup of the table.
    """

    def __init__(self, named: Iterable[str], known: Iterable[str] = ()) -> None:
        self._named = list(dict.fromkeys(folder.rstrip("/") for folder in named))
        self._further: list[str] = []
        self._update()
        for folder in known:
            self.cover(f"{folder}/x")

    def cover(self, path: str) -> bool:
        """Adds the folder of a path, unless it is covered.

        Returns:
            False if no folder covers it, because it is relative or contains '.', '..' or an empty component.
        """
        if self._map.covers(path):
            return True
        folder = path.rpartition("/")[0]
        try:
            if not PrefixMap([(folder, folder)]).covers(path):
                return False
        except UsageError:
            return False
        self._further.append(folder)
        if len(self._further) > _MOST:
            self._further = _merge(self._further)
        self._update()
        return True

    def list(self) -> tuple[str, ...]:
        return (*self._named, *self._further)

    def _update(self) -> None:
        self._map = PrefixMap([(folder, folder) for folder in (*self._named, *self._further)])


def _merge(folders: list[str]) -> list[str]:
    """Common folders of those below the same folder at the top of a bucket or disk."""
    groups: dict[tuple[str, ...], list[tuple[str, ...]]] = {}
    for folder in folders:
        parts = tuple(folder.split("/"))
        # `s3://bucket/a` has four parts with three slashes, `file:///a` too, `/a` two and `file:/a` two.
        top = 4 if "://" in folder else 2
        groups.setdefault(parts[:top], []).append(parts)
    return ["/".join(members[0][: _shared_length(members)]) for members in groups.values()]


def _shared_length(members: list[tuple[str, ...]]) -> int:
    length = 0
    for names in zip(*members, strict=False):
        if len(set(names)) > 1:
            break
        length += 1
    return length
