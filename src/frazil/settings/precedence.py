"""Which of several values for a setting is used, and what is said aloud about the others."""

from __future__ import annotations

from collections.abc import Callable
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
    """Half of one pair with half of another opens nothing, so a secret that has a key beside it stays with that key.

    A secret alone (the key in a file, the secret in the environment) goes with the key, by the usual order.
    """
    section, key = path[:-1], by_path[path][0]
    profile = by_path.get((*section, "profile"), [key])[0]
    if profile.rank == OWN and profile.strength < key.strength:
        for name in ("access_key", "secret_key", "session_token"):
            by_path.pop((*section, name), None)
        return []
    others = {a.family for a in by_path[path]} - {key.family}
    notices = _keep(by_path, (*section, "secret_key"), key, lambda a: a.family not in others)
    secret = by_path.get((*section, "secret_key"), [key])[0]
    return notices + _keep(by_path, (*section, "session_token"), key, lambda a: a.family in (key.family, secret.family))


def _keep(by_path: _ByPath, path: keys.Path, key: Assignment, fits: Callable[[Assignment], bool]) -> list[Notice]:
    """Of the values for a secret leaves those that fit its access key, and says so where a stronger one does not."""
    found = by_path.pop(path, [])
    fitting = [a for a in found if fits(a)]
    if fitting:
        by_path[path] = fitting
    if not found or found[0] in fitting:
        return []
    left_out = found[0]
    if path[-1] == "secret_key" and not fitting:
        raise ConfigError(
            f"{keys.dotted(key.path)} comes from {key.origin}, but {keys.dotted(path)} from {left_out.origin}",
            cause="that secret belongs to another access key in the same source",
            hint="set both in one source",
        )
    if left_out.strength > key.strength:
        return []
    told = f"{keys.dotted(path)} of {left_out.origin} is ignored: {keys.dotted(key.path)} comes from {key.origin}"
    return [Notice(path[0], told)]


def _contradictions(path: keys.Path, winner: Assignment, others: list[Assignment]) -> list[Notice]:
    notices = []
    for other in others:
        if other.origin.layer != winner.origin.layer or _same(other, winner):
            continue
        told = f"{keys.dotted(path)}: {winner.origin} says {_shown(winner)}, {other.origin} says {_shown(other)}"
        if winner.origin.layer in (Layer.PROJECT, Layer.USER) and winner.rank == other.rank:
            raise ConfigError(told, hint="remove one of the two")
        notices.append(Notice(path[0], f"{told}; the first takes precedence"))
    return notices


def _announcement(winner: Assignment, others: list[Assignment]) -> list[Notice]:
    """Names that many programs share are said aloud when they are used, with what they override."""
    if winner.origin.layer is not Layer.ENVIRONMENT or winner.rank == OWN:
        return []
    hidden = next((a for a in others if a.origin.layer > Layer.ENVIRONMENT and not _same(a, winner)), None)
    if not (winner.origin.announce or hidden):
        return []
    over = f", which overrides {_shown(hidden)} of {hidden.origin}" if hidden else ""
    said = f"{keys.dotted(winner.path)} is {_shown(winner)}, from {winner.origin}{over}"
    return [Notice(winner.path[0], said)]


def _same(one: Assignment, other: Assignment) -> bool:
    return one.value.rstrip("/") == other.value.rstrip("/")


def _shown(assignment: Assignment) -> str:
    return f"'{masked(assignment.path, assignment.value)}'"
