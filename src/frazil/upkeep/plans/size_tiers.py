"""Sizes of files in steps, so that only files of about one size are merged, and none is written again and again.

A file is large enough at three quarters of the target. Below, each tier reaches down to an eighth of its bound. Merging
as many files of a tier as it has steps gives a file of the next tier at least, so that each byte is written again once
per tier at most. Without tiers a table with one new file a second would write its largest small file each time.
"""

from __future__ import annotations

from bisect import bisect_right

#: Files below this size cost what their opening costs: they are one tier.
FLOOR = 16 * 1024
_STEP = 8


def tier_bounds(target: int, min_files: int) -> tuple[int, ...]:
    """The bounds of the tiers, smallest first: tier i has the files below bound i, and not below bound i - 1.

    Args:
        target: size of a merged file.
        min_files: that are merged at once; with less than eight, the tiers are closer, or the result would stay in
            its tier.
    """
    step = max(2, min(_STEP, min_files))
    bounds = [target * 3 // 4]
    while bounds[-1] // step >= FLOOR:
        bounds.append(bounds[-1] // step)
    return tuple(reversed(bounds))


def tier_of(size: int, bounds: tuple[int, ...]) -> int:
    """The tier of a file; that of one which is large enough is the number of bounds."""
    return bisect_right(bounds, size)
