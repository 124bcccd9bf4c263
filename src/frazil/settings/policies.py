"""Which policies of upkeep the settings have for a table. Sinks ask too: what a policy lets stay, they leave."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence

from frazil.settings.keys import Path
from frazil.settings.load import Settings
from frazil.settings.model import PolicySettings
from frazil.settings.sources import Origin


def policies_for(settings: Settings, name: str) -> Iterator[tuple[Path, PolicySettings]]:
    """Yields the policies of a table with their paths, strongest last: the longest pattern, then the exact name."""
    upkeep = settings.model.upkeep
    yield ("upkeep", "policy"), upkeep.policy
    found = [pattern for pattern in upkeep.tables if _names(pattern, name)]
    for pattern in sorted(found, key=lambda p: (p == name, len(p), p)):
        yield ("upkeep", "tables", pattern), upkeep.tables[pattern]


def snapshots_kept(settings: Settings, name: Sequence[str], own: int) -> int:
    """Returns how many snapshots a sink keeps in a table: `own`, or more if a policy keeps more."""
    most = least = 0
    for _, said in policies_for(settings, ".".join(name)):
        most, least = said.max_snapshots or most, said.min_snapshots or least
    return max(own, most, least)


def idle_patterns(settings: Settings, names: Iterable[str]) -> list[tuple[str, Origin]]:
    """Returns the patterns of `upkeep.tables` that match none of these tables, with their origins."""
    there = list(names)
    tables = settings.model.upkeep.tables
    idle = [pattern for pattern in tables if not any(_names(pattern, name) for name in there)]
    return [(pattern, _place(settings, pattern)) for pattern in idle]


def _names(pattern: str, name: str) -> bool:
    return pattern == name or fnmatch.fnmatchcase(name, pattern)


def _place(settings: Settings, pattern: str) -> Origin:
    """Returns the origin of the first value below a pattern."""
    path = ("upkeep", "tables", pattern)
    return next((o for p, o in settings.origins.items() if p[:3] == path), settings.origin(path))
