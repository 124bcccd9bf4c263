"""Engines: bounded in flight, the first error ends the work, and worker processes end with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from frazil.errors import IntegrityError, NotFoundError, UnavailableError
from frazil.observe.cancellation import StoppedError
from frazil.settings import load_settings
from frazil.tables.relocation import engine as engines
from frazil.tables.relocation.engine import LocalEngine, open_engine


def double(number: int) -> int:
    return 2 * number


def slow(number: int) -> int:
    time.sleep(0.01)
    return os.getpid() + 0 * number


def damaged(number: int) -> int:
    if number == 3:
        raise IntegrityError("file 3 is damaged", hint="restore it")
    return number


def dies(number: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return number


def talks(number: int) -> int:
    print("a library that prints")
    return number


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes from the second task on, whatever the machine."""
    monkeypatch.setattr(engines, "_ALONE_S", -1.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_every_task_has_its_result(kind: str, at_once: None) -> None:
    with LocalEngine() as engine:
        assert sorted(engine.map(double, range(50), kind=kind)) == [2 * n for n in range(50)]  # type: ignore[arg-type]


def test_processes_are_used_for_what_computes_and_are_used_again(at_once: None) -> None:
    with LocalEngine() as engine:
        first = set(engine.map(slow, range(12), kind="cpu"))
        second = set(engine.map(slow, range(12), kind="cpu"))
    assert first - {os.getpid()}
    assert second - {os.getpid()} <= first | second
    assert len((first | second) - {os.getpid()}) <= 2


def test_little_work_starts_no_process() -> None:
    with LocalEngine() as engine:
        assert set(engine.map(slow, range(5), kind="cpu")) == {os.getpid()}


def test_tasks_are_taken_only_a_few_ahead_of_the_results() -> None:
    taken = 0

    def tasks() -> Iterator[int]:
        nonlocal taken
        for number in range(10_000):
            taken += 1
            yield number

    with LocalEngine(concurrency=2) as engine:
        results = engine.map(double, tasks(), kind="io")
        next(results)
        assert taken <= 8
        results.close()  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", ["io", "cpu"])
def test_the_first_error_ends_the_work_and_keeps_its_hint(kind: str, at_once: None) -> None:
    taken = []
    tasks = (taken.append(n) or n for n in range(10_000))
    with LocalEngine(concurrency=2) as engine, pytest.raises(IntegrityError, match="file 3") as caught:
        list(engine.map(damaged, tasks, kind=kind))  # type: ignore[arg-type]
    assert caught.value.hint == "restore it"
    assert len(taken) < 50


def test_a_worker_that_is_killed_is_an_error_that_says_so(at_once: None) -> None:
    with LocalEngine() as engine:
        iterator = engine.map(slow, range(4), kind="cpu")
        list(iterator)
        with pytest.raises(UnavailableError, match="worker process ended") as caught:
            engine._call(dies, 0)
        assert caught.value.cause == "signal 9"
        assert sorted(engine.map(double, range(9), kind="cpu")) == [2 * n for n in range(9)]


def test_what_a_worker_prints_does_not_break_its_answers(at_once: None) -> None:
    with LocalEngine() as engine:
        assert sorted(engine.map(talks, range(9), kind="cpu")) == list(range(9))


def test_a_stop_event_ends_the_work() -> None:
    stop = threading.Event()
    with LocalEngine(concurrency=2, stop=stop) as engine, pytest.raises(StoppedError):
        for number, _ in enumerate(engine.map(slow, range(10_000), kind="io")):
            if number == 5:
                stop.set()


def test_worker_processes_end_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    # No `if __name__ == "__main__"`: the main program of a user is not imported by the workers.
    script.write_text(
        "import os, signal\n"
        "from frazil.tables.relocation.worker import Worker\n"
        "print(Worker().call(os.getpgid, 0) and Worker()._process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=60)
    worker = int(done.stdout)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists() and "Z" not in Path(f"/proc/{worker}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "it is still there"
        time.sleep(0.05)


def test_local_is_what_auto_takes_on_this_machine(tmp_path: Path) -> None:
    settings = load_settings(flags={"home": str(tmp_path)}, environ={})
    with open_engine("auto", settings, size_hint=1 << 50) as engine:
        assert engine.name == "local"


def test_a_missing_file_is_named_across_processes(at_once: None) -> None:
    with LocalEngine() as engine, pytest.raises(NotFoundError, match="/nowhere/file"):
        list(engine.map(missing, range(9), kind="cpu"))


def missing(number: int) -> int:
    raise NotFoundError("object not found: /nowhere/file", hint="check the name")
