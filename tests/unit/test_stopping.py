"""Signals to a command that works in threads."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

pytestmark = pytest.mark.timeout(120)

PRELUDE = """
import sys, threading, time
from frazil.cli.stopping import Stopping, leave_soon
from frazil.errors import PartialError
late = lambda: PartialError("it was late", cause="a test").adding("something", left=7)
def listening(bound_s=60.0, kill=lambda: print("killed", flush=True), json_output=True):
    return Stopping(bound_s, late, kill=kill, json_output=json_output)
"""


def started(script: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + script], text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Soon: what hangs in these scripts does so for 60 seconds, or for ever."""
    with process:
        try:
            process.wait(45)
        finally:
            process.kill()
        # By its own streams: `communicate` would lose what came together with a line that was read before.
        assert process.stdout is not None and process.stderr is not None
        return process.returncode, process.stdout.read(), process.stderr.read()


HANGS = """
lock = threading.Lock()
lock.acquire()
with listening({0}) as stopping:
    stopping.be_gentle()
    print("ready", flush=True)
    {1}
    lock.acquire()
"""
TELLS = """threading.Thread(target=lambda: stopping.asked.wait() and print("asked", flush=True), daemon=True).start()"""


def test_a_signal_while_the_main_thread_has_the_lock_of_the_event_is_heard():
    """`Event.wait` holds it for some microseconds each time; `Event.set` in a handler would then wait for ever."""
    process = started("""
import os, signal
with listening() as stopping:
    stopping.be_gentle()
    print("ready", flush=True)
    with stopping.asked._cond:
        os.kill(os.getpid(), signal.SIGTERM)
    print(stopping.asked.wait(30), flush=True)
""")
    assert ended(process) == (0, "True\n", "")


def test_a_signal_at_any_moment_of_a_wait_is_heard():
    rounds = 500
    script = f"""
for _ in range({rounds}):
    with listening() as stopping:
        stopping.be_gentle()
        print("ready", flush=True)
        while not stopping.asked.wait(0.00001):
            pass
"""
    process = started(script)
    assert process.stdout is not None
    for number in range(rounds):
        for _ in range(random.randint(0, 2000)):  # some microseconds, without leaving the processor
            pass
        os.kill(process.pid, signal.SIGTERM)
        if number < rounds - 1:
            assert process.stdout.readline() == "ready\n", "it hangs, or has ended"
    assert ended(process)[0] == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_the_first_signal_asks_and_the_command_ends_as_it_likes(number):
    process = started("""
with listening() as stopping:
    stopping.be_gentle()
    print("ready", flush=True)
    stopping.asked.wait()
    print("done", flush=True)
""")
    process.send_signal(number)
    assert ended(process) == (0, "done\n", "")


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM])
def test_the_second_signal_ends_it_at_once_whatever_hangs(second):
    process = started(HANGS.format(60, TELLS))
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "asked\n", "before that, two signals of one kind are one"
    time.sleep(0.5)
    assert process.poll() is None
    process.send_signal(second)
    code, out, errors = ended(process)
    assert code == 130 and out == "killed\n"
    assert json.loads(errors)["error"] == "InterruptedByUser"


def test_what_hangs_after_the_first_signal_ends_in_bounded_time_and_says_what_was_left():
    process = started(HANGS.format(1, "pass"))
    process.send_signal(signal.SIGTERM)
    code, out, errors = ended(process)
    assert code == 3 and out == "killed\n"
    told = json.loads(errors)
    assert told["message"] == "it was late; something" and told["left"] == 7


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_before_it_is_gentle_a_signal_interrupts_the_main_thread(number):
    process = started("""
try:
    with listening() as stopping:
        print("ready", flush=True)
        time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
""")
    process.send_signal(number)
    assert ended(process) == (0, "interrupted\n", "")


def test_a_thread_that_was_left_behind_does_not_keep_the_process():
    process = started("""
threading.Thread(target=time.sleep, args=(60,)).start()
print("ready", flush=True)
leave_soon(3)
sys.exit(3)
""")
    assert ended(process)[0] == 3


def test_handlers_are_as_before_when_the_block_is_left():
    process = started("""
with listening() as stopping:
    stopping.be_gentle()
print("ready", flush=True)
time.sleep(60)
""")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == -signal.SIGTERM
