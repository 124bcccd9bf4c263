"""Which manifests to merge, so that their number stays small and no commit pays for all of them.

Like the runs of a log-structured merge tree: `FANOUT` small ones become one of the next tier, and so on. An entry is
rewritten once per tier, so the mean cost grows with the logarithm of their number; above `LARGEST` it stays.
"""

from __future__ import annotations

from collections.abc import Sequence

FANOUT = 8
LARGEST = 4096


def choose(sizes: Sequence[int], fanout: int = FANOUT, largest: int = LARGEST) -> list[int]:
    """Indexes of those to merge into one, by their numbers of entries. Empty where none should be."""
    chosen: set[int] = set()
    bound = fanout
    while bound <= largest:
        lower = bound // fanout if bound > fanout else 0
        tier = {i for i, size in enumerate(sizes) if lower <= size < bound} - chosen
        # What is already chosen will be one manifest, of this tier or of a higher one.
        together = sum(sizes[i] for i in chosen)
        if len(tier) + (bool(chosen) and together < bound) >= fanout:
            chosen |= tier
        bound *= fanout
    return sorted(chosen)
