"""Whoever cares for the tables of a sink between its batches. What that is, a room above knows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol


class SinkUpkeep(Protocol):
    """Takes turns with the sinks of a pipeline, in their threads; so it never races the sink of the same table."""

    def turn(self, tables: Sequence[str], lag: Callable[[], float]) -> bool:
        """Cares for a sink's tables, if it is time: for a short while, one turn per table at once. It does not raise.

        Args:
            tables: of the sink, last the one that carries the position.
            lag: how many seconds the sink's oldest message has been waiting by now; for any thread.

        Returns:
            Whether one of the tables is another now, so that the sink should look at it again.
        """
        ...

    def end(self) -> None:
        """Lets a turn that is under way end soon, and none begin. Called when the pipeline is told to stop."""
        ...
