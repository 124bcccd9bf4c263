"""How long to wait before a dead child is started again, and when to give up."""

from __future__ import annotations

from dataclasses import dataclass, field

from frazil.observe.backoff import Backoff

_BACKOFF = Backoff(first=0.5, longest=10.0, jitter=0.0)


@dataclass
class Restarts:
    """Deaths of one child.

    Args:
        limit: so many deaths within the window end the patience.
        window: seconds.
    """

    limit: int = 5
    window: float = 60.0
    _deaths: list[float] = field(default_factory=list)

    def died(self, now: float) -> float | None:
        """Returns the pause in seconds before the next start; None after too many failures."""
        self._deaths = [at for at in self._deaths if now - at < self.window] + [now]
        if len(self._deaths) >= self.limit:
            return None
        return _BACKOFF.pause(len(self._deaths))
