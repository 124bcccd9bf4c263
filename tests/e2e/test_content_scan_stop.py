"""A signal in the middle of `frazil content scan`: it ends in seconds, breaks nothing, and the next one goes on."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from frazil.demo.pictures import write
from tests.e2e.servers import Running, eventually
from tests.e2e.test_up import descendants, lives

pytestmark = pytest.mark.timeout(600)

_FILES = 40_000


def test_sigterm_while_it_lists_and_the_next_one_goes_on_there(shell):
    many = shell.folder / "many"
    for number in range(_FILES):
        if number % 1000 == 0:
            (many / f"{number:06d}").mkdir(parents=True)
        (many / f"{number // 1000 * 1000:06d}" / f"{number:06d}.jpg").touch()
    shell.write("frazil.yaml", "home: ./frazil\n")
    scan = ("content", "scan", "many", "--no-wait")
    running = Running(shell, *scan)
    try:
        eventually(lambda: list((shell.folder / "frazil/content/scans").glob("*.json")), 60)
        began = time.monotonic()
        running.send(signal.SIGTERM)
        assert running.wait(20) == 130, running.errors
        assert time.monotonic() - began < 15
    finally:
        running.end()
    error = json.loads(running.errors.splitlines()[-1])
    assert error["error"] == "InterruptedByUser" and "the same command goes on there" in error["message"]
    assert 0 < error["seen"] < _FILES and "Traceback" not in running.errors
    again = shell.json(*scan)
    assert again["resumed"] and again["objects"] == again["new"] == _FILES
    assert not list((shell.folder / "frazil/content/scans").glob("*.json"))


@pytest.mark.slow
def test_ctrl_c_while_it_looks_inside_and_the_next_one_looks_at_the_rest(shell):
    write(shell.folder / "photos", 300)
    shell.write("frazil.yaml", "home: ./frazil\n")
    running = Running(shell, "content", "scan", "photos")
    try:
        thumbnails = shell.folder / "frazil/thumbnails"
        eventually(lambda: any(path.is_file() for path in thumbnails.rglob("*")), 240)
        started = descendants(running.process.pid)
        began = time.monotonic()
        running.send(signal.SIGINT)
        assert running.wait(30) == 130, running.errors
        assert time.monotonic() - began < 20
        eventually(lambda: not any(map(lives, started)), 20)
    finally:
        running.end()
    assert "Traceback" not in running.errors
    assert json.loads(running.errors.splitlines()[-1])["error"] == "InterruptedByUser"
    again = shell.json("content", "scan", "photos", timeout=240)
    assert (again["new"], again["unchanged"], again["in_table"]) == (0, 300, 300), "the rows were there before"
    assert again["summary"]["statuses"] == {"ok": 300}
    assert not_ours(shell.folder / "photos") == 300


def not_ours(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))
