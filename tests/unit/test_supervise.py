"""The supervisor's own rules, with small children in place of servers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import PIPE
from dataclasses import replace

import pytest

from frazil.errors import FrazilError
from frazil.supervise import supervisor
from frazil.supervise.output import ErrorOutput, lines
from frazil.supervise.restarts import Restarts
from frazil.supervise.supervisor import Command, Supervisor

pytestmark = pytest.mark.timeout(60)


def test_pauses_grow_and_patience_ends():
    restarts = Restarts(limit=5, window=60)
    assert [restarts.died(second) for second in range(5)] == [0.5, 1.0, 2.0, 4.0, None]


def test_a_long_life_is_forgiven():
    restarts = Restarts(limit=3, window=60)
    assert [restarts.died(second) for second in (0, 100, 200, 300)] == [0.5] * 4


def test_lines_come_whole_and_endless_ones_in_pieces():
    async def scene() -> list[str]:
        stream = asyncio.StreamReader()
        for piece in (b"on", b"e\ntwo\n", b"x" * 200_000, b"\nend"):
            stream.feed_data(piece)
        stream.feed_eof()
        return [line async for line in lines(stream)]

    found = asyncio.run(scene())
    assert found[:2] == ["one", "two"] and found[-1] == "end"
    assert "".join(found[2:-1]) == "x" * 200_000 and max(map(len, found)) < 200_000


def errors_of(printed: bytes) -> tuple[ErrorOutput, list[str]]:
    said: list[str] = []

    async def scene() -> ErrorOutput:
        stream = asyncio.StreamReader()
        stream.feed_data(printed)
        stream.feed_eof()
        errors = ErrorOutput(said.append)
        await errors.listen(stream)
        return errors

    return asyncio.run(scene()), said


def test_the_error_a_child_ends_with_is_taken_apart_and_not_printed_too():
    errors, said = errors_of(b"a note\nerror: it broke\n  why: rust\n  Try: oil\n")
    assert errors.take_error() == ("it broke", "rust", "oil")
    errors.flush()
    assert said == ["a note"]


def test_an_error_that_the_child_outlives_is_printed_in_its_place():
    errors, said = errors_of(b"error: one\n  Try: again\nit goes on\nerror: two\n")
    assert said == ["error: one", "  Try: again", "it goes on"]
    errors.flush()
    assert said[3:] == ["error: two"]


class Stage:
    """Runs a supervisor whose children are small Python programs."""

    def __init__(self, monkeypatch, **programs: str) -> None:
        self.said: list[str] = []
        start = asyncio.create_subprocess_exec

        async def start_program(*words: object, **options: object):
            return await start(sys.executable, "-c", programs[str(words[-1])], **options)

        monkeypatch.setattr(supervisor.asyncio, "create_subprocess_exec", start_program)
        commands = [Command(name, lambda name=name: [name], lambda: True) for name in programs]
        self._supervisor = lambda: Supervisor(commands, self.said.append, lambda: Restarts(limit=3))

    def run(self, once_ready) -> None:
        async def scene() -> None:
            async with asyncio.timeout(40):
                await self._supervisor().run(once_ready)

        asyncio.run(scene())


WAITS = "import time, sys; print('ready', flush=True); time.sleep(100)"
STUBBORN = "import signal, time; signal.signal(15, signal.SIG_IGN); print('ready', flush=True); time.sleep(100)"


def stop() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def test_children_start_in_order_and_stop_in_the_opposite_one(monkeypatch):
    # By os.write: the signal may come while `print` is still at work, which cannot be called twice at once.
    tells = "import os, signal, sys, time\nsignal.signal(15, lambda *_: (os.write(1, b'{0} ends\\n'), sys.exit()))\n"
    tells += "os.write(1, b'{0} is ready\\n')\ntime.sleep(100)"
    stage = Stage(monkeypatch, a=tells.format("a"), b=tells.format("b"))
    stage.run(stop)
    told = [line for line in stage.said if " | " in line]
    assert told == ["a | a is ready", "b | b is ready", "b | b ends", "a | a ends"]


def test_one_that_never_gets_ready_is_not_tried_again_and_the_others_end(monkeypatch):
    stage = Stage(monkeypatch, a=WAITS, b="import sys; sys.exit('error: no Java')")
    with pytest.raises(FrazilError, match="b ended with exit code 1, and will not be restarted") as raised:
        stage.run(stop)
    assert raised.value.cause == "no Java"
    assert not any("no Java" in line for line in stage.said), "told twice"


def test_nobody_is_up_before_the_last_one_has_said_so(monkeypatch):
    late = "import time; time.sleep(1); " + WAITS
    stage = Stage(monkeypatch, a=WAITS, b=late)

    def ready() -> None:
        assert stage.said == ["a | ready", "a is ready", "b | ready", "b is ready"]
        stop()

    stage.run(ready)
    assert "b is ready" in stage.said


def test_one_that_dies_again_and_again_ends_everything_with_its_last_words(monkeypatch):
    stage = Stage(monkeypatch, a=WAITS, b="import sys; print('ready', flush=True); sys.exit('error: it broke')")
    with pytest.raises(FrazilError) as raised:
        stage.run(lambda: None)
    assert raised.value.cause == "it broke"
    assert stage.said.count("b | error: it broke") == 2, "once for each restart"
    assert sum("restarting in" in line for line in stage.said) == 2


def test_one_that_does_not_stop_is_killed_with_all_that_it_started(monkeypatch):
    nested = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {STUBBORN!r}]).wait()"
    stage = Stage(monkeypatch, a=STUBBORN, b=nested)
    a, b = stage._supervisor()._commands
    stage._supervisor = lambda: Supervisor([replace(a, patience=0.5), b], stage.said.append)
    stage.run(stop)
    assert [line for line in stage.said if "killed" in line] == ["a did not stop within 0.5 s and was killed"]


def test_a_second_signal_kills(monkeypatch):
    stage = Stage(monkeypatch, a=STUBBORN)

    def twice() -> None:
        stop()
        asyncio.get_running_loop().call_later(0.3, stop)

    stage.run(twice)
    assert not any("did not stop" in line for line in stage.said)


def test_a_child_whose_parent_is_gone_does_not_start():
    async def scene() -> int | None:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "frazil.supervise.child", "1", "--version", stdout=PIPE
        )
        out, _ = await child.communicate()
        assert out == b""
        return child.returncode

    assert asyncio.run(scene()) == 0
