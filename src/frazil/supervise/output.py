"""What children print, line by line, with their name before it; the error that a child ends with is kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

_LONGEST_LINE = 64 * 1024
#: How an error is printed by `frazil.cli.run`.
_ERROR = "error: "
_DETAILS = ("  why: ", "  Try: ")


async def lines(stream: asyncio.StreamReader) -> AsyncIterator[str]:
    """Yields the lines of a stream; a line that is too long comes in pieces."""
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


class ErrorOutput:
    """The standard error of a child: lines are passed on as they come, and the error it ends with is held back.

    The error is either raised by the supervisor, with what the child gave as cause and hint, or printed by `flush`.
    So it is shown once.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._error: list[str] = []
        self._last = ""

    async def listen(self, stream: asyncio.StreamReader) -> None:
        async for line in lines(stream):
            if line.startswith(_ERROR):
                self.flush()
                self._error = [line]
            elif self._error and line.startswith(_DETAILS):
                self._error.append(line)
            else:
                self.flush()
                self._last = line
                self._say(line)

    def flush(self) -> None:
        """Prints the error that was held back."""
        for line in self._error:
            self._say(line)
        if self._error:
            self._last = self._error[0]
        self._error = []

    def take_error(self) -> tuple[str, str | None, str | None]:
        """Returns message, cause and hint of the error, which is not printed then; or the last line, if none came."""
        error, self._error = self._error, []
        if not error:
            return self._last, None, None
        why, hint = (
            next((line.removeprefix(label) for line in error if line.startswith(label)), None) for label in _DETAILS
        )
        return error[0].removeprefix(_ERROR), why, hint
