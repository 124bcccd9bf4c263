"""Pairs of path prefixes: where files are, and where they will be."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

from frazil.errors import IntegrityError, UsageError

#: How writers spell the beginning of a path in the same store. Spark and PyIceberg mix them within one table.
_SPELLINGS = {"file": ("", "file:", "file://"), "s3": ("s3:", "s3a:", "s3n:")}
_SAME_SCHEMES = {"s3a": "s3", "s3n": "s3"}
_URI = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://([^/]*))?(/.*)?", re.DOTALL)
#: An empty component, '.' or '..'. A single '/' at the end is none of these.
_UNSAFE = re.compile(r"(?:\A|/)(?:/|\.\.?(?:/|\Z))")


class UnmappedPathError(IntegrityError):
    """A path that no prefix covers, or that none can cover: it is relative or contains '..' or an empty component."""


class PrefixMap:
    """Maps paths from one set of folders to another. Immutable, hashable, picklable.

    The longest source prefix that covers a path decides; among equal ones, the first. A prefix ends at a '/': `/a/b`
    covers `/a/b/c`, not `/a/bc`. `/x`, `file:/x` and `file:///x` are one place, and so are `s3`, `s3a` and `s3n`. The
    result has the spelling of the target prefix. Where source and target are the same text, a path stays as it is.

    Args:
        pairs: source and target prefixes.
        strays: folder for paths that cannot be mapped otherwise, each under a unique name; None: they are an error.

    Raises:
        UsageError: a prefix is relative, or contains '.', '..' or an empty component.
    """

    __slots__ = ("_folders", "_rules", "pairs", "strays")

    pairs: tuple[tuple[str, str], ...]

    def __init__(self, pairs: Sequence[tuple[str, str]], strays: str | None = None) -> None:
        self.strays = strays
        self.pairs = tuple((source, target) for source, target in pairs)
        places = [(_place_of_prefix(source), source, target) for source, target in self.pairs]
        for _, target in self.pairs:
            _place_of_prefix(target)
        places.sort(key=lambda rule: sum(map(len, rule[0])), reverse=True)  # stable: equal ones stay in their order
        rules: dict[str, str | None] = {}
        for (root, folder), source, target in places:
            kept = None if source == target else target.rstrip("/")
            for spelling in _spell(root):
                rules.setdefault(f"{spelling}{folder}/", kept)
        self._rules = tuple(rules.items())
        self._folders = {prefix[:-1]: target for prefix, target in self._rules}

    def map(self, path: str) -> str:
        """Returns where a path leads after relocation.

        Raises:
            UnmappedPathError: no prefix covers it, or it is relative or contains '.', '..' or an empty component.
        """
        if path not in self._folders:
            for prefix, target in self._rules:
                if path.startswith(prefix):
                    rest = path[len(prefix) :]
                    if _UNSAFE.search(rest):
                        break
                    return path if target is None else f"{target}/{rest}"
        return self._map_rare(path)

    def covers(self, path: str) -> bool:
        """Whether `map` has a result for a path."""
        try:
            self.map(path)
        except UnmappedPathError:
            return False
        return True

    @property
    def is_identity(self) -> bool:
        """Whether every path that is covered stays as it is."""
        return all(source == target for source, target in self.pairs)

    def keeps_order(self, low: str, high: str) -> bool:
        """Whether each path from `low` to `high`, in the order of text, is mapped to one between their results."""
        if low == high:
            return True
        for prefix, _ in self._rules:
            if low.startswith(prefix) or high.startswith(prefix):
                inside = low.startswith(prefix) and high.startswith(prefix)
                return inside and not any(other != prefix and other.startswith(prefix) for other, _ in self._rules)
        return False

    def _map_rare(self, path: str) -> str:
        """Maps a prefix itself, or a path in a rare spelling such as `FILE:/x` or `file://localhost/x`."""
        place = _place_of(path)
        if place is None or _UNSAFE.search(place[1][1:]):
            if self.strays is not None:
                return self._map_stray(path)
            raise UnmappedPathError(
                f"the path '{path}' cannot be relocated",
                cause="it is relative, or contains '.', '..' or an empty component",
                hint="rewrite the file that has it, or expire the snapshots that refer to it",
            )
        canonical = "".join(place)
        if canonical in self._folders:
            target = self._folders[canonical]
            return path if target is None else target or "/"
        for prefix, target in self._rules:
            if canonical.startswith(prefix):
                return path if target is None else f"{target}/{canonical[len(prefix) :]}"
        if self.strays is not None:
            return self._map_stray(canonical)
        known = ", ".join(f"'{source}'" for source, _ in self.pairs) or "none"
        raise UnmappedPathError(
            f"no prefix covers the path '{path}'", cause=f"prefixes: {known}", hint="add a prefix that covers it"
        )

    def _map_stray(self, path: str) -> str:
        return f"{self.strays}/{hashlib.sha256(path.encode()).hexdigest()[:32]}"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PrefixMap) and (self.pairs, self.strays) == (other.pairs, other.strays)

    def __hash__(self) -> int:
        return hash((self.pairs, self.strays))

    def __reduce__(self) -> tuple[type[PrefixMap], tuple[tuple[tuple[str, str], ...], str | None]]:
        return PrefixMap, (self.pairs, self.strays)

    def __repr__(self) -> str:
        return f"PrefixMap({list(self.pairs)!r})"


def _place_of(path: str) -> tuple[str, str] | None:
    """Splits a path into its store, in the first spelling of `_spell`, and the path there; None for a relative path."""
    if path.startswith("/"):
        return "", path
    match = _URI.fullmatch(path)
    if match is None:
        return None
    scheme, authority, rest = match[1].lower(), match[2], match[3] or ""
    if scheme == "file" and authority in (None, "", "localhost"):
        return ("", rest) if rest else None
    scheme = _SAME_SCHEMES.get(scheme, scheme)
    if authority is None or (scheme == "s3" and not authority):
        return None
    return f"{scheme}://{authority}", rest


def _place_of_prefix(prefix: str) -> tuple[str, str]:
    place = _place_of(prefix)
    if place is None or _UNSAFE.search(place[1][1:]):
        raise UsageError(
            f"'{prefix}' cannot be the prefix of paths",
            cause="it is relative, or contains '.', '..' or an empty component",
            hint="use an absolute path or a URI, for example /data/sales or s3://bucket/sales",
        )
    return place[0], place[1].rstrip("/")


def _spell(root: str) -> tuple[str, ...]:
    """Returns the spellings of a store, the canonical one first."""
    if not root:
        return _SPELLINGS["file"]
    scheme, _, rest = root.partition(":")
    return tuple(f"{other}{rest}" for other in _SPELLINGS.get(scheme, (f"{scheme}:",)))
