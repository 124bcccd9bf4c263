"""`frazil up`: serve and pipeline as one. They come back when they die, and one signal ends them all."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from frazil.log.owner import read_owner
from tests.e2e.servers import Running, eventually
from tests.e2e.traps import lay_traps, sprung_traps

pytestmark = pytest.mark.timeout(400)

_FREE_PORTS = ("--set", "serve.http_port=0", "--set", "serve.flight_port=0")


@pytest.fixture
def up(shell):
    lay_traps(shell.folder)
    running = Running(shell, "up", *_FREE_PORTS)
    try:
        yield running
    finally:
        pids = descendants(running.process.pid)
        running.end()
        for pid in pids:
            kill(pid)
    assert sprung_traps(shell.folder) == "", "code from the current folder ran"


def descendants(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True, check=False).stdout.split()
    return [below for child in map(int, found) for below in (child, *descendants(child))]


def kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def told_of(pid: int, file: str) -> str:
    """What the system says of a process; nothing when that has ended, be it while this is read."""
    try:
        return Path(f"/proc/{pid}/{file}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def state(pid: int) -> str:
    """One letter, as ps shows it; none when the process is gone."""
    return told_of(pid, "stat").rpartition(")")[2].strip()[:1]


def lives(pid: int) -> bool:
    return state(pid) not in ("", "X", "Z")


def child(running: Running, name: str) -> int | None:
    """The process that runs one of the two commands now."""
    for pid in descendants(running.process.pid):
        words = told_of(pid, "cmdline").split("\0") if lives(pid) else []
        if "frazil.supervise.child" in words and name in words:
            return pid
    return None


def is_ready(http: str) -> bool:
    try:
        with urllib.request.urlopen(f"{http}/readyz", timeout=30) as answer:
            return answer.status == 200
    except OSError:
        return False


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_one_signal_ends_both_in_order_and_leaves_nothing_behind(up, number):
    served = up.ready(120)
    assert is_ready(served["http"])
    assert served["pipeline"] == "ready"
    started = descendants(up.process.pid)
    up.send(number)
    assert up.wait(120) == 0, up.errors
    assert [line for line in up.errors.splitlines() if line.endswith(" is ready")] == [
        "serve is ready", "pipeline is ready",
    ]  # fmt: skip
    eventually(lambda: not any(map(lives, started)))  # Spark's Python workers end by themselves, after their JVM
    assert "Traceback" not in up.errors
    assert re.search(r"^serve    \| stopped", up.errors, re.MULTILINE)


@pytest.mark.long("starts Spark three times")
def test_children_that_are_killed_come_back_at_the_same_addresses_and_the_work_goes_on(up):
    served = up.ready(120)
    folder = Path(served["log"])
    ask("POST", f"{served['http']}/topics/orders")
    publish(served["http"], b"before")
    first = child(up, "serve")
    assert read_owner(folder).pid == first
    kill(first)
    eventually(lambda: is_ready(served["http"]) and child(up, "serve") not in (None, first), 60)
    eventually(lambda: re.search(r"^serve was killed by SIGKILL; restarting in", up.errors, re.MULTILINE))
    assert read_owner(folder).addresses == {name: served[name] for name in ("http", "flight")}
    before = child(up, "pipeline")
    kill(before)
    publish(served["http"], b"after")
    eventually(lambda: child(up, "pipeline") not in (None, before), 60)
    eventually(lambda: ask("GET", f"{served['http']}/topics/orders")["sinks"] == {"archive": 2}, 120)
    up.send(signal.SIGTERM)
    assert up.wait(120) == 0, up.errors


def publish(http: str, payload: bytes) -> None:
    ask("POST", f"{http}/topics/orders/messages", payload)


def ask(method: str, url: str, body: bytes | None = None) -> Any:
    wanted = urllib.request.Request(url, body, {"Content-Type": "application/octet-stream"}, method=method)
    with urllib.request.urlopen(wanted, timeout=30) as answer:
        return json.loads(answer.read())


def test_when_it_is_killed_its_children_end_too(up):
    up.ready(120)
    eventually(lambda: child(up, "pipeline"))
    started = descendants(up.process.pid)
    up.send(signal.SIGKILL)
    up.process.wait(30)
    # They end as after SIGTERM; the pipeline, whose broker ends too, may take a minute.
    eventually(lambda: not any(map(lives, started)), 120)


def test_what_keeps_serve_from_starting_is_told_once_and_ends_it(shell):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = shell.run("up", "--set", f"serve.http_port={port}", "--set", "serve.flight_port=0", "-o", "json")
    assert done.returncode == 11 and done.stdout == ""
    last = json.loads(done.stderr.strip().splitlines()[-1])
    assert "serve ended with exit code 11" in last["message"] and f"port {port}" in last["cause"]
    assert last["exit_code"] == 11 and "serve.http_port" in last["hint"]
    assert done.stderr.count(f"port {port} ") == 1 and "error: " not in done.stderr


def test_what_keeps_the_pipeline_from_starting_is_told_and_ends_both(shell, tmp_path):
    done = shell.run("up", *_FREE_PORTS, "--set", f"spark.java_home={tmp_path}", "-o", "json")
    assert done.returncode == 1 and done.stdout == ""
    last = json.loads(done.stderr.strip().splitlines()[-1])
    assert "pipeline ended with exit code 1, and will not be restarted" in last["message"]
    assert str(tmp_path) in last["cause"]
    assert re.search(r"^serve    \| stopped", done.stderr, re.MULTILINE)


@pytest.mark.slow
def test_it_is_up_when_the_pipeline_has_looked_at_every_topic(shell):
    shell.run("topic", "create", "orders")
    shell.run("topic", "publish", "orders", "a")
    up = Running(shell, "up", *_FREE_PORTS)
    try:
        up.ready(120)
        # What is printed on the two streams comes here in any order.
        ready = re.compile(r"^pipeline \| ready on the broker at grpc://\S+, topics: 1$", re.MULTILINE)
        eventually(lambda: ready.search(up.errors))
        up.send(signal.SIGTERM)
        assert up.wait(120) == 0, up.errors
    finally:
        up.end()


def test_a_wrong_setting_is_told_before_anything_starts(shell):
    done = shell.run("up", "--set", "serve.nix=1")
    assert done.returncode == 2 and "serve.nix" in done.stderr and "|" not in done.stderr
