"""`frazil content extract` as a person runs it, with a plugin that misbehaves, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess

import pytest

from tests.e2e.conftest import FRAZIL, Shell
from tests.e2e.servers import Running, eventually
from tests.e2e.test_up import descendants, lives
from tests.extract_plugins import write

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def photos(shell: Shell, tmp_path) -> Shell:
    """A shell with a folder that was scanned, and the plugin on its path."""
    write(tmp_path / "plugins")
    shell.env["PYTHONPATH"] = str(tmp_path / "plugins")
    folder = shell.folder / "photos"
    folder.mkdir()
    for name in ("one", "two", "crashes", "hangs"):
        (folder / name).write_text(f"content of {name}")
    assert shell.json("content", "scan", "photos", "--no-extract")["in_table"] == 4
    return shell


def workers(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-f", "frazil.extract.engine.worker"], capture_output=True, text=True, check=False)
    return [p for p in map(int, found.stdout.split()) if p in descendants(pid)]


@pytest.mark.slow
def test_a_plugin_runs_on_spark_and_what_it_breaks_is_told(photos: Shell):
    asked = ("--only", "type,crashes,hangs,odd", "--set", "content.extract.timeout_s=10")
    told = photos.json("content", "extract", "photos", *asked)
    assert (told["objects"], told["by_status"]) == (4, {"ok": 2, "failed": 2})
    assert {(r["extractor"], r["reason"]) for r in told["reasons"]} == {
        ("crashes", "crashed the process (SIGSEGV)"),
        ("hangs", "took longer than 10 s"),
    }
    assert told["by_extractor"]["odd"] == {"ok": 4} and told["restarts"] >= 2
    row = photos.json("content", "show", "photos", "one")
    assert row["extraction_status"] == "ok"


@pytest.mark.slow
def test_ctrl_c_ends_it_and_the_processes_that_look_inside(photos: Shell):
    process = subprocess.Popen(
        [FRAZIL, "content", "extract", "--only", "hangs", "--set", "content.extract.timeout_s=600"],
        cwd=photos.folder, env=photos.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    eventually(lambda: workers(process.pid), 120)
    started = descendants(process.pid)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "") and "Traceback" not in err
    assert "the same command continues from there" in err
    eventually(lambda: not any(map(lives, started)), 60)


@pytest.mark.slow
def test_follow_looks_into_what_is_there_and_ends_with_a_signal(photos: Shell):
    running = Running(photos, "content", "extract", "--follow", "--only", "type,odd", "--every", "0.5")
    try:
        assert running.ready(180)["objects"] == 4
        started = descendants(running.process.pid)
        running.send(signal.SIGTERM)
        assert running.wait(60) == 0, running.errors
        eventually(lambda: not any(map(lives, started)), 60)
    finally:
        running.end()
    assert "Traceback" not in running.errors
