"""The interface by which a pipeline runs upkeep of its tables between batches. A room above implements it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class SinkUpkeep(Protocol):
    """Upkeep that takes turns with the sinks of a pipeline, in their threads.

    So it never races the sink of the table that it maintains.
    """

    def run_turn(self, tables: Sequence[str], lag: Callable[[], float]) -> bool:
        """Maintains a sink's tables if it is due, for a short while; one turn per table at a time. Does not raise.

        Args:
            tables: of the sink, last the one that carries the position.
            lag: returns how many seconds the sink's oldest message has waited; thread safe.

        Returns:
            Whether a table was changed, so that the sink has to refresh.
        """
        ...

    def stop(self) -> None:
        """Makes a running turn end soon, and starts no other. Called when the pipeline is stopped."""
        ...
