"""Pictures that look alike: groups of perceptual hashes that differ in few bits.

Comparing each with each would take days for a million. Hashes that differ in d bits, cut into m parts, agree in one of
these up to d / m bits: only those are compared. Which m is cheapest, the hashes themselves tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, pairwise
from math import comb
from typing import Any

import numpy as np

from frazil.content.query.duplicates import MAX_NAMED, Duplicates, named_members
from frazil.content.query.filters import Search, Similar
from frazil.content.query.objects import require_bucket
from frazil.content.query.page import Hits
from frazil.content.tables import ContentTables
from frazil.errors import UsageError
from frazil.tables.cache import ByteCache

#: Pairs that are compared at most: a minute or so.
MAX_PAIRS = 1_000_000_000
_AT_ONCE = 4_000_000
#: What it takes to look a hash up, in pairs that could be compared meanwhile.
_STEP = 20
#: Bits of 64 in which pictures of a group may differ by default.
DISTANCE = 4


def similar_groups(
    tables: ContentTables, search: Search, distance: int = DISTANCE, limit: int = 100, *, cache: ByteCache | None = None
) -> Duplicates:
    """Hits that look alike. A group is a chain: each is like another of it, the first and the last need not be.

    Args:
        tables: where.
        search: which objects.
        distance: bits in which two may differ.
        limit: at most so many groups.
        cache: what was decoded before.

    Raises:
        NotFoundError: the bucket is unknown, or the table does not exist yet.
        UsageError: so many pictures cannot be compared with this distance.
    """
    Similar(0, distance)
    found = tables.read(tables.objects, lambda table: _alike(Hits(tables, table, search, cache), distance, limit))
    if not found.groups and search.bucket is not None:
        require_bucket(tables, search.bucket)
    return found


def _alike(hits: Hits, distance: int, limit: int) -> Duplicates:
    hashes, sizes, places = _hashes(hits)
    distinct, of_row = np.unique(hashes, return_inverse=True)
    group = components(len(distinct), pairs_within(distinct, distance))[of_row] if len(distinct) else of_row
    names, counts = np.unique(group, return_counts=True)
    shared = names[counts > 1]
    inside = np.isin(group, shared)
    group, sizes, places = np.searchsorted(shared, group[inside]), sizes[inside], places[inside]
    objects = np.bincount(group, minlength=len(shared))
    total = np.zeros(len(shared), np.int64)
    np.add.at(total, group, sizes)
    most = np.zeros(len(shared), np.int64)
    np.maximum.at(most, group, sizes)
    wasted = total - most
    worst = np.lexsort((np.arange(len(shared)), -wasted))[:limit]
    members = []
    for number in worst:
        chosen = places[group == number][:MAX_NAMED]
        members += [(int(number), int(file), int(position)) for file, position in chosen]
    named = named_members(hits, members)
    groups = [
        {
            "by": "similar",
            "size": int(most[n]),
            "objects": int(objects[n]),
            "wasted_bytes": int(wasted[n]),
            "members": named[int(n)],
        }
        for n in worst
    ]
    return Duplicates(groups, len(shared), int((objects - 1).sum()), int(wasted.sum()))


def _hashes(hits: Hits) -> tuple[Any, Any, Any]:
    """Of all hits that have one: hash, size, and place (file, position)."""
    hashes, sizes, places = [np.empty(0, np.uint64)], [np.empty(0, np.int64)], [np.empty((0, 2), np.int64)]
    for block, at in hits if "perceptual_hash" in hits.schema.names else ():
        found, size = block.rows_of(("perceptual_hash", "size"), at)
        there = found.is_valid().to_numpy(zero_copy_only=False)
        hashes.append(found.fill_null(0).to_numpy(zero_copy_only=False).view(np.uint64)[there])
        sizes.append(size.fill_null(0).to_numpy(zero_copy_only=False)[there])
        positions = at[there] + block.start
        places.append(np.stack([np.full(len(positions), block.number), positions], axis=1))
    return np.concatenate(hashes), np.concatenate(sizes), np.concatenate(places)


def pairs_within(hashes: Any, distance: int) -> Iterator[tuple[Any, Any]]:
    """Pairs of distinct hashes that differ in at most so many bits, by their numbers, in pieces; some come twice.

    Raises:
        UsageError: too many would have to be compared.
    """
    if distance == 0 or len(hashes) < 2:
        return
    plans = {parts: _cost(hashes, distance, parts) for parts in range(1, min(distance + 1, 16) + 1)}
    parts = min(plans, key=lambda p: plans[p])
    if plans[parts] > MAX_PAIRS:
        raise UsageError(
            f"{len(hashes):,} pictures cannot be compared in up to {distance} bits: {plans[parts]:,.0f} pairs",
            hint="a smaller distance, or fewer pictures: a bucket, a year, a camera",
        )
    for shift, width in _cuts(parts):
        part = _part(hashes, shift, width)
        order = np.argsort(part, kind="stable")
        for mask in _masks(width, distance // parts):
            for left, right in _neighbours(part[order], np.uint64(mask)):
                left, right = order[left], order[right]
                near = np.bitwise_count(hashes[left] ^ hashes[right]) <= distance
                yield left[near], right[near]


def _cuts(parts: int) -> list[tuple[int, int]]:
    """Where 64 bits are cut: first bit and width of each part. One part is none: each is compared with each."""
    if parts == 1:
        return [(0, 0)]
    edges = [64 * number // parts for number in range(parts + 1)]
    return [(first, last - first) for first, last in pairwise(edges)]


def _part(hashes: Any, shift: int, width: int) -> Any:
    return (hashes >> np.uint64(shift)) & np.uint64(2**width - 1)


def _masks(width: int, bits: int) -> Iterator[int]:
    for count in range(bits + 1):
        for chosen in combinations(range(width), count):
            yield sum(1 << bit for bit in chosen)


def _cost(hashes: Any, distance: int, parts: int) -> float:
    """Pairs to be compared, and what the steps themselves cost, with so many parts."""
    pairs = 0.0
    for shift, width in _cuts(parts):
        masks = sum(comb(width, count) for count in range(distance // parts + 1))
        _, counts = np.unique(_part(hashes, shift, width), return_counts=True)
        # Those that differ in some bits of the part are as many as those that agree, or fewer.
        pairs += masks * (float((counts.astype(np.float64) ** 2).sum()) / 2 + _STEP * len(hashes))
    return pairs


def _neighbours(part: Any, mask: Any) -> Iterator[tuple[Any, Any]]:
    """Places in a sorted array of parts that differ by exactly a mask, each pair once, in pieces."""
    wanted = part ^ mask
    last = np.searchsorted(part, wanted, side="right")
    if mask == 0:  # those behind it
        first = np.arange(len(part)) + 1
    else:  # of two parts the greater has the pair
        first = np.where(wanted < part, np.searchsorted(part, wanted, side="left"), last)
    counts = last - first
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(part):
        done = ends[begin - 1] if begin else 0
        end = max(begin + 1, int(np.searchsorted(ends, done + _AT_ONCE, side="right")))
        some = counts[begin:end]
        if some.any():
            left = np.repeat(np.arange(begin, end), some)
            inner = np.arange(len(left)) - np.repeat(np.cumsum(some) - some, some)
            yield left, np.repeat(first[begin:end], some) + inner
        begin = end


def components(count: int, pairs: Iterator[tuple[Any, Any]]) -> Any:
    """The group of each of so many things, where pairs belong together: the least number of the group."""
    group = np.arange(count)
    for left, right in pairs:
        while len(left):
            ours, theirs = group[left], group[right]
            apart = ours != theirs
            left, right = left[apart], right[apart]
            low, high = np.minimum(ours, theirs)[apart], np.maximum(ours, theirs)[apart]
            np.minimum.at(group, high, low)
            while not np.array_equal(group, flat := group[group]):
                group = flat
    return group
