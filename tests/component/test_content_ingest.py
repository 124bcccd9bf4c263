"""`frazil content ingest`, in this process: what it prints, what it refuses, and which exit codes it gives."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from frazil.cli.run import run_command


class Cli:
    """Runs the command with a home folder of its own."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self._home, self._capfd = home, capfd

    def __call__(self, *args: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        more = ["--set", f"home={self._home}", "--set", "log.min_free=0", "--set", "log.max_message_size=200"]
        code = run_command("content", "content", ["ingest", *args, *more])
        out, errors = self._capfd.readouterr()
        return code, out, errors


@pytest.fixture
def cli(tmp_path, capfd) -> Iterator[Cli]:
    yield Cli(tmp_path / "home", capfd)
    structlog.reset_defaults()  # a command has told it to write to what was standard error then


@pytest.fixture
def events(tmp_path) -> str:
    path = tmp_path / "events.json"
    path.write_bytes(b'{"n": 1}\n[{"n": 2},\n{"n": 3}]\nnot JSON\n')
    return str(path)


def test_it_says_where_the_messages_are_and_what_becomes_of_bad_ones(cli, events):
    code, out, errors = cli(events)
    assert (code, out) == (0, "content_events: 4 messages, 32 bytes, offsets 0 to 3, disk\n")
    assert "note: 1 messages are not JSON objects and will become dead letters" in errors
    code, out, _ = cli(events, events, "--dialect", "minio", "--output", "json")
    assert code == 0
    assert json.loads(out) == {
        "topic": "content_events", "messages": 8, "bytes": 64, "first_offset": 4, "last_offset": 11,
        "not_json": 2, "too_large": 0,
    }  # fmt: skip


def test_lines_that_no_message_can_hold_are_left_out_and_told_with_exit_code_3(cli, tmp_path):
    (tmp_path / "events").write_bytes(b'{"a": "%b"}\n{"n": 1}\n' % (b"x" * 300))
    code, out, errors = cli(str(tmp_path / "events"))
    assert (code, out) == (3, "content_events: 1 message, 8 bytes, offset 0, disk\n")
    assert "error: 1 lines exceed the size limit of a message" in errors and "200 bytes" in errors


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ([], 2, "no source of events was given"),
        (["missing.json"], 10, "there is no file missing.json"),
        (["."], 2, "is a folder"),
        (["-", "--for", "3s"], 2, "--for requires --sqs"),
        (["-", "--receivers", "2"], 2, "--receivers requires --sqs"),
        (["x.json", "--sqs", "http://127.0.0.1:1/q"], 2, "exclude each other"),
        (["--sqs", "queue"], 2, "is no URL of a queue"),
        (["--sqs", "http://127.0.0.1:1/q", "--for", "soon"], 2, "not a duration"),
        (["--sqs", "http://127.0.0.1:1/q", "--endpoint-url", "nowhere"], 2, "nowhere is no URL of a server"),
        (["-", "--dialect", "azure"], 2, "azure"),
    ],
)
def test_a_wrong_call_is_refused_with_a_hint_and_makes_nothing(cli, tmp_path, args, code, says):
    got, out, errors = cli(*args)
    assert (got, out) == (code, "")
    assert says in errors and "Try: " in errors and "Traceback" not in errors
    assert not (tmp_path / "home" / "log").exists()


def test_a_signal_ends_it_between_two_batches_and_it_says_what_is_in_the_log(cli, tmp_path, monkeypatch):
    """Standard input is a pipe that nobody closes."""
    reading, writing = os.pipe()
    os.write(writing, b'{"n": 1}\n{"n": 2}\n')

    def end_when_stored() -> None:
        segments = tmp_path / "home" / "log" / "topics" / "content_events"
        while not any(b'{"n": 2}' in segment.read_bytes() for segment in segments.glob("*.seg")):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGTERM)

    with os.fdopen(reading) as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        threading.Thread(target=end_when_stored, daemon=True).start()
        code, out, errors = cli("-", "--output", "json")
    os.close(writing)
    assert (code, out) == (130, "")
    told = json.loads(errors.splitlines()[-1])
    assert (told["messages"], told["last_offset"], told["unknown"]) == (2, 1, 0)
