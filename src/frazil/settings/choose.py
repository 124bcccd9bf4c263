"""Which of several values for a setting is used, and what is said aloud about the others."""

from __future__ import annotations

from dataclasses import dataclass

from frazil.errors import ConfigError
from frazil.settings import keys
from frazil.settings.masking import masked
from frazil.settings.sources import OWN, Assignment, Layer

_ByPath = dict[keys.Path, list[Assignment]]


@dataclass(frozen=True)
class Notice:
    """Something about the sources that a user should know: the section it concerns (or `pyiceberg`), and a sentence."""

    section: str
    text: str


def choose(found: list[Assignment]) -> tuple[list[Assignment], list[Notice]]:
    """The strongest assignment of each setting.

    Raises:
        ConfigError: one file says two things, or an access key would meet the secret of another.
    """
    by_path: _ByPath = {}
    for assignment in sorted(found, key=lambda a: a.strength):
        by_path.setdefault(assignment.path, []).append(assignment)
    notices = [notice for path in list(by_path) if path[-2:] == ("s3", "access_key") for notice in _pair(by_path, path)]
    chosen: list[Assignment] = []
    for path, (winner, *others) in by_path.items():
        chosen.append(winner)
        notices += _contradictions(path, winner, others)
        notices += _announcement(winner, others)
    return chosen, notices


def _pair(by_path: _ByPath, path: keys.Path) -> list[Notice]:
    """Keeps of secrets only those of the access key's family: half of one pair with half of another opens nothing."""
    section, key = path[:-1], by_path[path][0]
    profile = by_path.get((*section, "profile"), [key])[0]
    if profile.rank == OWN and profile.strength < key.strength:
        for name in ("access_key", "secret_key", "session_token"):
            by_path.pop((*section, name), None)
        return []
    notices: list[Notice] = []
    for name in ("secret_key", "session_token"):
        secret = (*section, name)
        all_of_them = by_path.pop(secret, [])
        own = [a for a in all_of_them if a.family == key.family]
        if own:
            by_path[secret] = own
        if not all_of_them or all_of_them[0] in own:
            continue
        other = all_of_them[0]
        if name == "secret_key" and not own:
            raise ConfigError(
                f"{keys.dotted(path)} comes from {key.origin}, but {keys.dotted(secret)} from {other.origin}",
                cause="a key and its secret are used together only when they come from the same source",
                hint="give both in one place",
            )
        if other.strength < key.strength:
            left_out = f"{keys.dotted(secret)} of {other.origin} is left out"
            notices.append(Notice(path[0], f"{left_out}: {keys.dotted(path)} comes from {key.origin}"))
    return notices


def _contradictions(path: keys.Path, winner: Assignment, others: list[Assignment]) -> list[Notice]:
    notices = []
    for other in others:
        if other.origin.layer != winner.origin.layer or _same(other, winner):
            continue
        told = f"{keys.dotted(path)}: {winner.origin} says {_shown(winner)}, {other.origin} says {_shown(other)}"
        if winner.origin.layer in (Layer.PROJECT, Layer.USER) and winner.rank == other.rank:
            raise ConfigError(told, hint="keep one of the two")
        notices.append(Notice(path[0], f"{told}; the first is used"))
    return notices


def _announcement(winner: Assignment, others: list[Assignment]) -> list[Notice]:
    """Names that many programs share are said aloud when they are used, with what they override."""
    if winner.origin.layer is not Layer.ENVIRONMENT or winner.rank == OWN:
        return []
    hidden = next((a for a in others if a.origin.layer > Layer.ENVIRONMENT and not _same(a, winner)), None)
    if not (winner.origin.announce or hidden):
        return []
    over = f", which overrides {_shown(hidden)} of {hidden.origin}" if hidden else ""
    said = f"{keys.dotted(winner.path)} is {_shown(winner)}: from {winner.origin}{over}"
    return [Notice(winner.path[0], said)]


def _same(one: Assignment, other: Assignment) -> bool:
    return one.value.rstrip("/") == other.value.rstrip("/")


def _shown(assignment: Assignment) -> str:
    return f"'{masked(assignment.path, assignment.value)}'"
