"""Exponential back-off: how long to wait after the n-th failure in a row.

`upkeep.runs.pauses.longer` is not built on it: its first pause is a setting that may change between two failures, so
that it doubles the pause it had and counts none.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

#: Doublings after which any pause has long reached its maximum; a float overflows at 1,024.
_MAX_DOUBLINGS = 64


@dataclass(frozen=True)
class Backoff:
    """Pauses that double up to a maximum, with jitter, so that clients that failed together do not return together.

    Attributes:
        first: seconds after the first failure, before jitter.
        longest: seconds, at most.
        jitter: the largest share of a pause that chance takes away; 0 for none.
    """

    first: float
    longest: float
    jitter: float = 0.5

    def pause(self, failures: int) -> float:
        """Returns the seconds to wait after so many failures in a row, however many."""
        pause = min(self.longest, self.first * 2.0 ** min(failures - 1, _MAX_DOUBLINGS))
        return pause * random.uniform(1.0 - self.jitter, 1.0)  # noqa: S311 - spreads load, guards nothing
