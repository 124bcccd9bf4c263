"""Cooperative cancellation: long work checks an event between two steps."""

from __future__ import annotations

import threading

from frazil.errors import FrazilError


class StoppedError(FrazilError):
    """The work was asked to stop before it was done. It has changed nothing since its last step."""

    retryable = True


def raise_if_stopped(stop: threading.Event | None) -> None:
    """Raises StoppedError if the event is set. Call it between two steps, before anything is changed."""
    if stop is not None and stop.is_set():
        raise StoppedError("it was stopped before it was done", hint="the next run continues")
