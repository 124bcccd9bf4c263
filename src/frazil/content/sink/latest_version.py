"""Which version of a key is the current one, out of sequences, listings and times."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from frazil.content.arrays import NEVER, Bools, Ints


@dataclass(frozen=True)
class Versions:
    """Versions of some keys: arrays with one entry per version. Times are in microseconds, `NEVER` where unknown.

    Attributes:
        keys: number of the key.
        alive: whether the version is there.
        is_null: whether it is the null version, the only one that can be written more than once.
        created_rank: ranks that compare as the sequences of the last creations.
        created_time: time of that creation's event.
        seen_time: time of the last listing that showed the version.
        says_latest: whether that listing showed it as the current one.
        modified: when it was written, as far as that is known.
        name_rank: decides where nothing else does.
    """

    keys: Ints
    alive: Bools
    is_null: Bools
    created_rank: Ints
    created_time: Ints
    seen_time: Ints
    says_latest: Bools
    modified: Ints
    name_rank: Ints


def find_latest(versions: Versions, skew: int) -> tuple[Bools, Ints]:
    """Returns whether each version is the current one of its key, and when its bucket must be asked to be sure.

    A listing shows the current version of its time. Of the versions that were there then, only the null version can
    become current later without the end of another, because only it is written again. Sequences tell when that was, or,
    where the listed version has none, times.

    Args:
        versions: of some keys, all that are known.
        skew: microseconds within which two times do not tell what came first.
    """
    v = versions
    count = int(v.keys.max()) + 1
    says_latest = v.says_latest & v.alive
    listed = _highest(v.seen_time, says_latest, v.keys, count)[v.keys]
    is_listed = says_latest & (v.seen_time == listed)
    listed_rank = _highest(v.created_rank, is_listed, v.keys, count)[v.keys]
    has_created = v.created_rank != NEVER
    was_there = v.seen_time >= listed
    has_listing = listed != NEVER
    since = np.where(has_listing, listed - skew, NEVER)
    by_time = np.where(was_there, v.created_time > listed, v.created_time >= since)
    by_time &= ~((v.seen_time == listed) & ~v.is_null)
    newer = np.where(v.is_null & (listed_rank != NEVER), v.created_rank > listed_rank, by_time)
    newer = has_listing & v.alive & has_created & (newer | is_listed)
    tier = np.where(newer, 2, np.where(is_listed, 1, 0))
    # Sequences order the versions of a key; where some were only seen, their times have to.
    lacks_sequence = np.zeros(count, bool)
    lacks_sequence[v.keys[v.alive & ~has_created]] = True
    is_dated = lacks_sequence[v.keys] & (tier == 0)
    place = np.where(is_dated, v.modified, v.created_rank)
    order = np.lexsort((v.name_rank, place, tier, v.alive, v.keys))
    last = order[np.append(np.diff(v.keys[order]) != 0, True)]
    latest = np.zeros(len(v.keys), bool)
    latest[last] = True
    unclear = v.alive & was_there & v.is_null & ~is_listed & has_created & has_listing & (listed_rank == NEVER)
    unclear &= np.abs(v.created_time - np.where(has_listing, listed, 0)) <= skew
    check = np.where(unclear, np.maximum(v.created_time, listed) + skew, NEVER)
    return latest & v.alive, np.maximum(check, _check_of_dated(v, order, is_dated & v.alive, skew))


def _highest(values: Ints, rows: Bools, keys: Ints, count: int) -> Ints:
    found = np.full(count, NEVER)
    np.maximum.at(found, keys[rows], values[rows])
    return found


def _check_of_dated(v: Versions, order: Ints, is_dated: Bools, skew: int) -> Ints:
    """When to ask about a current version that only its time makes so, and that is not clearly the newest one."""
    check = np.full(len(v.keys), NEVER)
    before, after = order[:-1], order[1:]
    pair = (v.keys[before] == v.keys[after]) & is_dated[before] & is_dated[after]
    pair &= np.append(v.keys[after][1:] != v.keys[after][:-1], True)
    pair &= v.modified[after] - np.where(pair, v.modified[before], 0) <= skew
    check[after[pair]] = v.modified[after[pair]] + skew
    return check
