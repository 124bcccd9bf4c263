"""Runs children until one signal ends them all."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from frazil.errors import (
    ConflictError,
    FrazilError,
    IntegrityError,
    NotAllowedError,
    NotFoundError,
    PartialError,
    UsageError,
)
from frazil.supervise.output import ErrorOutput, lines
from frazil.supervise.restarts import Restarts

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: A wrong setting or option is as wrong the next time.
_HOPELESS = 2
#: Seconds between looks whether a child lives.
_LOOK = 0.05


@dataclass(frozen=True)
class Command:
    """One child.

    Args:
        name: stands before each of its lines.
        arguments: of `frazil`, asked for at each start.
        announced: called at the first line that it prints on standard output, which says that it is ready; returns
            whether it is.
        patience: seconds that it has to stop in.
    """

    name: str
    arguments: Callable[[], Sequence[str]]
    announced: Callable[[], bool]
    patience: float = 60.0


@dataclass
class _Child:
    command: Command
    restarts: Restarts
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    process: Process | None = None
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class Supervisor:
    """Starts children in order, each when the one before is ready.

    Args:
        commands: in the order of their start; they stop in the opposite order.
        say: takes what the children print, and what happens to them.
        restarts: makes the patience with one child.
    """

    def __init__(
        self, commands: Sequence[Command], say: Callable[[str], None], restarts: Callable[[], Restarts] = Restarts
    ) -> None:
        self._commands = commands
        self._say = say
        self._restarts = restarts
        self._width = max(len(command.name) for command in commands)
        self._children: list[_Child] = []
        self._signals = 0
        self._end = asyncio.Event()

    async def run(self, all_ready: Callable[[], None]) -> None:
        """Returns when a signal has ended it, and all children are gone.

        Args:
            all_ready: called once.

        Raises:
            FrazilError: a child could not be kept alive; its last words are the cause.
        """
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup, or a shell's background job
                loop.add_signal_handler(number, self._signalled)
        keepers: list[asyncio.Task[None]] = []
        try:
            for command in self._commands:
                child = _Child(command, self._restarts())
                self._children.append(child)
                keepers.append(asyncio.create_task(self._keep(child)))
                await self._until(child.ready, keepers)
                if self._end.is_set():
                    return
            all_ready()
            await self._until(self._end, keepers)
        finally:
            await self._stop(keepers)

    async def _until(self, event: asyncio.Event, keepers: Sequence[asyncio.Task[None]]) -> None:
        """Waits for the event or the end; raises the error of a keeper."""
        waiting = [asyncio.create_task(awaited.wait()) for awaited in (event, self._end)]
        try:
            done, _ = await asyncio.wait([*keepers, *waiting], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        for keeper in done.intersection(keepers):
            keeper.result()

    async def _keep(self, child: _Child) -> None:
        """Keeps a child alive until the end, or until it has died too often."""
        while not self._end.is_set():
            errors = await self._start(child)
            assert child.process is not None
            code = await _ended(child.process)
            _send(child, signal.SIGKILL)  # what it had started and left behind, such as a JVM
            await asyncio.gather(*child.tasks)
            if self._end.is_set():
                errors.flush()
                return
            pause = child.restarts.died(time.monotonic())
            # One that was never ready would not be so the next time: a port in use, a log that another holds.
            if pause is None or code == _HOPELESS or not child.ready.is_set():
                raise _given_up(child.command.name, code, errors)
            errors.flush()
            self._say(f"{child.command.name} {_how(code)}; restarting in {pause:g} s")
            with suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._end.wait()

    async def _start(self, child: _Child) -> ErrorOutput:
        # A session of its own: Ctrl-C in the terminal reaches us alone, and we stop the children in order.
        child.process = process = await asyncio.create_subprocess_exec(
            # -P: the current folder, which may be anybody's, must not bring modules of its own.
            *(sys.executable, "-P", "-m", "frazil.supervise.child", str(os.getpid())),
            *child.command.arguments(),
            stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True,
        )  # fmt: skip
        prefix = f"{child.command.name:<{self._width}} | "
        errors = ErrorOutput(lambda line: self._say(prefix + line))
        assert process.stdout is not None
        assert process.stderr is not None
        child.tasks = {
            asyncio.create_task(errors.listen(process.stderr)),
            asyncio.create_task(self._read(process.stdout, child, prefix)),
        }
        return errors

    async def _read(self, stream: asyncio.StreamReader, child: _Child, prefix: str) -> None:
        """Reads a stream of a child; its first line on standard output means that it is ready."""
        first = True
        async for line in lines(stream):
            self._say(prefix + line)
            if first and child.command.announced():
                child.ready.set()
                self._say(f"{child.command.name} is ready")
            first = False

    def _signalled(self) -> None:
        self._signals += 1
        if self._signals == 1:
            self._say("stopping; press Ctrl-C again to kill")
            self._end.set()
            return
        for child in self._children:
            _send(child, signal.SIGKILL)

    async def _stop(self, keepers: Sequence[asyncio.Task[None]]) -> None:
        self._end.set()
        for child in reversed(self._children):
            await self._end_child(child)
        await asyncio.gather(*keepers, return_exceptions=True)  # what one raised is on its way already
        for child in self._children:
            await asyncio.gather(*child.tasks)

    async def _end_child(self, child: _Child) -> None:
        """Lets a child finish what it has begun; one that takes too long is killed, with all that it started."""
        if child.process is None:
            return
        _send(child, signal.SIGTERM)
        try:
            async with asyncio.timeout(child.command.patience):
                await _ended(child.process)
        except TimeoutError:
            self._say(f"{child.command.name} did not stop within {child.command.patience:g} s and was killed")
        _send(child, signal.SIGKILL)
        await _ended(child.process)


async def _ended(process: Process) -> int:
    """Waits for the exit code. `Process.wait` also waits for the pipes, which an orphaned JVM holds open."""
    while process.returncode is None:
        await asyncio.sleep(_LOOK)
    return process.returncode


def _send(child: _Child, number: signal.Signals) -> None:
    """Sends a signal to the child; SIGKILL also to its descendants."""
    if child.process is None:
        return
    with suppress(ProcessLookupError):
        if number == signal.SIGKILL:
            os.killpg(child.process.pid, number)
        else:
            child.process.send_signal(number)


def _how(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"


#: The kinds of errors by which a child's exit code is that of its supervisor, too.
_KINDS = (UsageError, PartialError, NotFoundError, ConflictError, NotAllowedError, IntegrityError)


def _given_up(name: str, code: int, errors: ErrorOutput) -> FrazilError:
    """Returns the error that a child ended with, as its own: of the same exit code, cause and hint."""
    message, cause, hint = errors.take_error()
    kind = next((kind for kind in _KINDS if kind.exit_code == code), FrazilError)
    why = "; ".join(part for part in (message, cause) if part)
    return kind(f"{name} {_how(code)}, and will not be restarted", cause=why or None, hint=hint or f"frazil {name} -v")
