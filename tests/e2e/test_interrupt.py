"""Ctrl-C: exit code 130, no stack trace, and no JVM left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from tests.e2e.conftest import FRAZIL

pytestmark = pytest.mark.timeout(300)

ENDLESS = "SELECT count(*) FROM range(1000000000000) WHERE sqrt(id) > 3"


@pytest.mark.long("waits for a JVM that runs a query")
@pytest.mark.parametrize("moment", [pytest.param("while Spark starts", marks=pytest.mark.deep), "while a query runs"])
def test_ctrl_c_ends_the_command_and_its_jvm(shell, moment):
    process = subprocess.Popen(
        [FRAZIL, "sql", ENDLESS, "--engine", "spark"], cwd=shell.folder, env=shell.environment(),
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    wait_for(lambda: jvms_of(process.pid), seconds=60)
    if moment == "while a query runs":
        wait_for(lambda: cpu_seconds(jvms_of(process.pid)) > 12, seconds=90)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == "" and "Traceback" not in err
    wait_for(lambda: not jvms_of(process.pid), seconds=60)


def jvms_of(group: int) -> list[int]:
    found = subprocess.run(["pgrep", "-g", str(group), "java"], capture_output=True, text=True, check=False)
    return [pid for pid in map(int, found.stdout.split()) if stat_of(pid)[0] != "Z"]  # a zombie has ended


def stat_of(pid: int) -> list[str]:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    except (FileNotFoundError, ProcessLookupError):  # it ended, perhaps while this was read
        return ["Z"] + ["0"] * 20


def cpu_seconds(pids: list[int]) -> float:
    """Starting takes a JVM some seconds of CPU; one that has used more is at work on the query."""
    total = 0
    for pid in pids:
        fields = stat_of(pid)
        total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


def wait_for(condition, seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.2)
