"""What children print, line by line, with their name before it; their last words are kept."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable

_LONGEST_LINE = 64 * 1024
_LAST_WORDS = 20


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """The lines of a stream; one that is too long comes in pieces."""
    held = b""
    while piece := await stream.read(_LONGEST_LINE):
        *whole, held = (held + piece).split(b"\n")
        for line in whole:
            yield line.decode(errors="replace")
        if len(held) > _LONGEST_LINE:
            yield held.decode(errors="replace")
            held = b""
    if held:
        yield held.decode(errors="replace")


class Words:
    """Passes on what a child says."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._last: deque[str] = deque(maxlen=_LAST_WORDS)

    async def listen(self, stream: asyncio.StreamReader) -> None:
        async for line in lines(stream):
            self._last.append(line)
            self._say(line)

    @property
    def last(self) -> str:
        """The error that the child ended with, else the last that it said."""
        said = list(self._last)
        errors = [number for number, line in enumerate(said) if line.startswith("error: ")]
        return " ".join(line.strip() for line in (said[errors[-1] :] if errors else said[-1:]))
