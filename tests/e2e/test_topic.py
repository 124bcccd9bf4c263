"""`frazil topic …` as a person uses it: processes of their own, with a broker and without one."""

from __future__ import annotations

import json
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from tests.e2e.conftest import FRAZIL, Shell
from tests.e2e.servers import eventually, serving

pytestmark = pytest.mark.timeout(280)

COMMANDS = (
    "create", "list", "show", "delete", "publish", "tail", "replay", "migrate", "retain", "adopt", "verify",
    "dead-letters list", "dead-letters show", "dead-letters replay",
)  # fmt: skip


@pytest.mark.parametrize("words", ["", "dead-letters", *COMMANDS])
def test_each_page_ends_with_an_example_of_its_own(shell, words):
    done = shell.run("topic", *words.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip().splitlines()[-1].strip().startswith(f"Example: frazil topic {words}".strip())


def test_without_a_broker_each_command_opens_the_log_and_says_so(shell):
    made = shell.run("topic", "create", "orders", "--storage", "log")
    assert made.returncode == 0 and "no broker runs: the log at" in made.stderr
    done = shell.run("topic", "publish", "orders", "--lines", stdin="first\nsecond\nthird\n")
    assert done.stdout == "orders: offsets 0 to 2, disk\n"
    assert shell.run("topic", "publish", "orders", stdin="whole\ninput").stdout == "orders: offset 3, disk\n"
    assert shell.run("topic", "replay", "orders", "--format", "raw").stdout == "first\nsecond\nthird\nwhole\ninput\n"


def test_empty_input_publishes_nothing_and_an_empty_argument_an_empty_message(shell):
    shell.run("topic", "create", "orders", "--storage", "log")
    empty = shell.write("empty.txt", "")
    for how in ((), ("--batch",), ("--lines",), ("--lines", "--batch"), ("--file", str(empty))):
        done = shell.run("topic", "publish", "orders", *how, stdin="")
        assert (done.returncode, done.stdout) == (2, ""), how
        assert "nothing was published to topic 'orders'" in done.stderr and " is empty" in done.stderr
        assert "Try: frazil topic publish orders ''" in done.stderr
    assert [ack["count"] for ack in shell.json("topic", "publish", "orders", "")] == [1]
    assert [message["payload"] for message in shell.json("topic", "replay", "orders")] == [""]


@pytest.mark.slow
def test_with_a_broker_all_go_through_it(shell):
    with serving(shell) as server:
        made = shell.run("topic", "create", "orders", "--storage", "log")
        assert made.returncode == 0 and made.stderr == ""
        again = shell.run("topic", "create", "orders", "--storage", "log")
        assert again.returncode == 11 and "already" in again.stderr
        assert "Detail" not in again.stderr and "why:" not in again.stderr, "how the error travelled is no cause of it"
        acks = shell.json("topic", "publish", "orders", "a", "b", "--producer", "me")
        assert [a["offset"] for a in acks] == [0, 1]
        server.publish("orders", "by http")
        assert [m["payload"] for m in shell.json("topic", "tail", "orders")] == ["a", "b", "by http"]
        assert shell.json("topic", "show", "orders")["log"]["log"] == f"broker at {server.served['flight']}"
        found = shell.json("topic", "verify", "orders")
        assert found["sound"] and found["log"]["open"]
        done = shell.run("topic", "verify", "orders", "--repair", "--dry-run")
        assert done.returncode == 11 and f"process {server.process.pid}" in done.stderr


def test_following_shows_what_comes_and_ends_by_ctrl_c(shell):
    with serving(shell) as server:
        server.create("orders")
        server.publish("orders", "before")
        for args in (["tail", "orders"], ["replay", "orders", "--from", "start"]):
            follower = subprocess.Popen(
                [FRAZIL, "topic", *args, "--follow", "--format", "raw"],
                cwd=shell.folder, env=shell.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )  # fmt: skip
            assert follower.stdout is not None
            seen = [follower.stdout.readline()]
            server.publish("orders", "while it follows")
            while seen[-1] != "while it follows\n":
                seen.append(follower.stdout.readline())
            follower.send_signal(signal.SIGINT)
            assert follower.wait(60) == 130
            assert seen[0] == "before\n"


def test_a_reader_that_has_enough_is_no_error(shell):
    shell.run("topic", "create", "orders", "--storage", "log")
    shell.run("topic", "publish", "orders", "--lines", stdin="x" * 1000 + "\n" + ("y" * 1000 + "\n") * 3000)
    command = f"{FRAZIL} topic replay orders --format raw | head -c 5; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=shell.folder, env=shell.environment(), text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert done.stdout == "xxxxx0\n"


@pytest.mark.long("runs each command of a topic as a process")
def test_the_life_of_a_topic(shell):
    """Log alone, then a table, retention, replay over both, back into the log: nothing is lost on the way."""
    small = {"FRAZIL_LOG__MAX_FILE_SIZE": "4096"}
    parts = ["".join(f"message {p}.{n} {'x' * 100}\n" for n in range(50)) for p in range(4)]
    lines = "".join(parts)
    shell.env |= small
    assert shell.run("topic", "create", "orders", "--storage", "log").returncode == 0
    for part in range(4):
        shell.run(
            "topic", "publish", "orders", "--lines", stdin="".join(lines.splitlines(True)[part * 50 : part * 50 + 50])
        )
    moved = shell.run("topic", "migrate", "orders", "--to", "iceberg")
    assert moved.returncode == 0, moved.stderr
    assert "offsets 0 to 200" in moved.stdout and "without Spark" in moved.stderr
    gone = shell.json("topic", "retain", "orders", "--older-than", "0s", "--log", "--yes")
    assert gone["removed"][0]["files"] > 0
    assert shell.json("topic", "show", "orders")["log"]["start"] > 0
    assert shell.run("topic", "replay", "orders", "--format", "raw").stdout == lines
    assert shell.json("topic", "verify", "orders")["sound"]
    assert shell.run("topic", "migrate", "orders", "--to", "log").returncode == 0
    shown = shell.json("topic", "show", "orders")
    assert (shown["storage"], shown["log"]["start"]) == ("log", 0)
    assert shell.run("topic", "replay", "orders", "--format", "raw").stdout == lines
    assert shell.json("topic", "verify", "orders")["sound"]


@pytest.mark.slow
def test_a_topic_moves_while_the_broker_takes_messages(shell):
    shell.env |= {"FRAZIL_LOG__MAX_FILE_SIZE": "4096"}
    with serving(shell) as server:
        server.create("orders")
        sent: list[str] = []
        stop = threading.Event()

        def produce() -> None:
            while not stop.is_set():
                text = f"message {len(sent)} {'x' * 500}"
                server.publish("orders", text)
                sent.append(text)

        thread = threading.Thread(target=produce)
        thread.start()
        try:
            eventually(lambda: len(sent) > 20)
            assert shell.run("topic", "migrate", "orders", "--to", "iceberg").returncode == 0
            shell.run("topic", "retain", "orders", "--older-than", "0s", "--log", "--yes")
            back = shell.run("topic", "migrate", "orders", "--to", "log")
            assert back.returncode == 0, back.stderr
        finally:
            stop.set()
            thread.join()
        assert shell.run("topic", "replay", "orders", "--format", "raw").stdout.splitlines() == sent
        assert shell.json("topic", "verify", "orders")["sound"]


def test_a_log_that_another_command_has_open_is_told_with_its_process(shell):
    shell.run("topic", "create", "orders", "--storage", "log")
    holder = subprocess.Popen(
        [FRAZIL, "topic", "tail", "orders", "--follow"],
        cwd=shell.folder, env=shell.environment(), text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert holder.stderr is not None
    holder.stderr.readline()  # it has opened the log
    done = shell.run("topic", "publish", "orders", "x")
    holder.kill()
    holder.communicate()
    assert done.returncode == 11 and f"process {holder.pid}" in done.stderr and "Try: " in done.stderr


def test_errors_are_json_where_json_was_asked_for(shell):
    done = shell.run("topic", "show", "nothing", "--output", "json")
    assert done.returncode == 10 and done.stdout == ""
    assert json.loads(done.stderr.splitlines()[-1])["error"] == "NotFoundError"


def test_a_broker_that_is_away_is_told(shell):
    done = shell.run("topic", "list", "--set", "log.broker=grpc://127.0.0.1:9")
    assert done.returncode == 1 and "Try: " in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_where_the_log_was_deleted_offsets_go_on_after_adoption(shell: Shell):
    shell.run("topic", "create", "orders", "--storage", "log")
    shell.run("topic", "publish", "orders", "a", "b", "c")
    assert shell.run("topic", "migrate", "orders", "--to", "iceberg").returncode == 0
    folder = Path(shell.json("topic", "show", "orders")["log"]["log"].removeprefix("log at "))
    subprocess.run(["/bin/rm", "-r", str(folder)], check=True)
    assert shell.run("topic", "create", "orders").returncode == 0
    refused = shell.run("topic", "publish", "orders", "d")
    assert refused.returncode == 13 and "frazil topic adopt orders" in refused.stderr
    assert shell.run("topic", "adopt", "orders", "--yes").returncode == 0
    assert shell.run("topic", "publish", "orders", "d").stdout == "orders: offset 3, disk\n"
    assert shell.run("topic", "replay", "orders", "--format", "raw").stdout == "a\nb\nc\nd\n"
