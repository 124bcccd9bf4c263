"""A signal in the middle of `frazil content scan`: it ends in seconds, breaks nothing, and the next one goes on."""

from __future__ import annotations

import json
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

import pytest

from frazil.demo.pictures import write
from tests.e2e.servers import Running, eventually
from tests.e2e.test_up import descendants, lives

pytestmark = pytest.mark.timeout(600)

_FILES = 40_000
#: Home folders, one for each try: where this test stands still for a moment, the scan is over before the signal comes.
_HOMES = ("one", "two", "three", "four", "five")


def test_sigterm_while_it_lists_and_the_next_one_goes_on_there(shell):
    many = shell.folder / "many"
    for number in range(_FILES):
        if number % 1000 == 0:
            (many / f"{number:06d}").mkdir(parents=True)
        (many / f"{number // 1000 * 1000:06d}" / f"{number:06d}.jpg").touch()
    scan = ("content", "scan", "many", "--no-wait")
    for home in _HOMES:
        if (error := stopped_while_it_lists(shell, home, *scan)) is not None:
            break
    assert error is not None, "no signal came while it listed"
    assert error["error"] == "InterruptedByUser" and "the same command resumes from there" in error["message"]
    assert 0 < error["seen"] < _FILES
    again = shell.json(*scan)
    assert again["resumed"] and again["objects"] == again["new"] == _FILES
    assert not noted(shell.folder / home)


def stopped_while_it_lists(shell, home: str, *scan: str) -> dict[str, Any] | None:
    """The error that a scan ends with by SIGTERM; None where that did not come in its middle."""
    shell.write("frazil.yaml", f"home: ./{home}\n")
    running = Running(shell, *scan)
    try:
        eventually(lambda: noted(shell.folder / home) or running.process.poll() is not None, 60)
        running.send(signal.SIGTERM)
        code = running.wait(30)
    finally:
        running.end()
    assert code in (0, 130) and "Traceback" not in running.errors, running.errors
    error: dict[str, Any] = json.loads(running.errors.splitlines()[-1]) if code else {}
    return error if 0 < error.get("seen", 0) < _FILES else None


def noted(home: Path) -> list[Path]:
    """How far scans have come that are not at their end."""
    return list((home / "content/scans").glob("*.json"))


@pytest.mark.deep
@pytest.mark.long("starts Spark for each scan that is interrupted, and for the one that goes on")
def test_ctrl_c_while_it_looks_inside_and_the_next_one_looks_at_the_rest(shell):
    write(shell.folder / "photos", 300)
    assert any(stopped_while_it_looks_inside(shell, home) for home in _HOMES[:3]), "no signal came while it looked"
    again = shell.json("content", "scan", "photos", timeout=240)
    assert (again["new"], again["unchanged"], again["in_table"]) == (0, 300, 300), "the rows were there before"
    assert again["summary"]["statuses"] == {"ok": 300}
    assert not_ours(shell.folder / "photos") == 300


def stopped_while_it_looks_inside(shell, home: str) -> bool:
    """Whether Ctrl-C came before a scan was at its end."""
    shell.write("frazil.yaml", f"home: ./{home}\n")
    temporary = Path(tempfile.mkdtemp())  # short, as the path of a socket has to be
    options = f"{shell.environment()['SPARK_SUBMIT_OPTS']} -Djava.io.tmpdir={temporary}"
    shell.env |= {"TMPDIR": str(temporary), "SPARK_SUBMIT_OPTS": options}
    running = Running(shell, "content", "scan", "photos")
    try:
        thumbnails = shell.folder / home / "thumbnails"
        eventually(lambda: any(map(Path.is_file, thumbnails.rglob("*"))) or running.process.poll() is not None, 240)
        started = descendants(running.process.pid)
        running.send(signal.SIGINT)
        code = running.wait(30)
        eventually(lambda: not any(map(lives, started)), 60)
    finally:
        running.end()
    assert code in (0, 130) and "Traceback" not in running.errors, running.errors
    left = [path for path in temporary.rglob("*") if path.is_socket() or path.name.startswith("frazil-")]
    shutil.rmtree(temporary)
    assert not left
    return code == 130 and json.loads(running.errors.splitlines()[-1])["error"] == "InterruptedByUser"


def not_ours(folder: Path) -> int:
    return sum(path.is_file() for path in folder.rglob("*"))
