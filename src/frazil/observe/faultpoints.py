"""Named steps of everything durable, where a test can stop, fail or kill the process. Else they do nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_handler: Callable[[str], None] | None = None


def reach(step: str) -> None:
    """Says that a step is reached. The handler may raise, which is how a fault comes about."""
    if _handler is not None:
        _handler(step)


@contextmanager
def handled(handler: Callable[[str], None]) -> Iterator[None]:
    """Calls `handler` with each step that this process reaches inside the block."""
    global _handler
    before, _handler = _handler, handler
    try:
        yield
    finally:
        _handler = before
