"""True kill -9 of a process that publishes with threads, coroutines and an idempotent producer, round after round."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.log_kit import messages_of, open_log


class Witness:
    """What the killed processes were told, by their pipes."""

    def __init__(self) -> None:
        self.acked: dict[int, str] = {}
        self.seen = 0
        self.start = self.planned = 0
        """Where the log began after the last retention that came to its end, and where the last one wanted it to."""

    def listen(self, line: str) -> None:
        what, *words = line.split(" ")
        if what == "seen":
            self.seen = max(self.seen, int(words[0]))
        elif what == "open":
            assert int(words[0]) >= self.seen, "what a reader had seen is gone"
        elif what == "plan":
            self.planned = int(words[0])
        elif what == "start":
            self.start = int(words[0])
            assert self.start == self.planned, "retention has removed more or less than planned"
        else:
            offset, count, _, text = words
            for each in range(int(offset), int(offset) + int(count)):
                assert self.acked.setdefault(each, text) == text, f"offset {each} was given out twice"


def one_round(folder: Path, number: int, witness: Witness, chance: random.Random) -> None:
    writer = subprocess.Popen(
        [sys.executable, "-m", "tests.log_writer", str(folder), str(number)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert writer.stdout is not None and writer.stderr is not None
    first = writer.stdout.readline()
    assert first, writer.communicate()[1]
    witness.listen(first.strip())
    for _ in range(chance.randint(1, 300)):
        witness.listen(writer.stdout.readline().strip())
    time.sleep(chance.random() * 0.02)
    writer.send_signal(signal.SIGKILL)
    # Not by `communicate`, which forgets what was read ahead of the last line.
    rest, errors = writer.stdout.read(), writer.stderr.read()
    writer.wait()
    for line in rest.splitlines(keepends=True):
        if line.endswith("\n"):
            witness.listen(line.strip())
    assert "Traceback" not in errors, errors


def check(folder: Path, witness: Witness) -> None:
    """A kill of the process loses nothing that was acknowledged at `os` or `disk`, and invents nothing."""
    with open_log(folder, max_file_size=16_384) as log:
        info = log.info("orders")
        read = {o: p.decode() for o, p in messages_of(log).items()}
        assert info.end >= witness.seen
        assert witness.start <= info.start <= witness.planned, (
            "retention removes what it has planned, nothing else does"
        )
        assert sorted(read) == list(range(info.start, info.end))
        for offset, text in witness.acked.items():
            assert offset < info.start or read[offset] == text, f"offset {offset}"
        batches = [text for text in read.values() if text.startswith("billing")]
        assert all(batches.count(text) == 2 for text in set(batches)), "two messages per batch, and each batch once"


def rounds(folder: Path, count: int, seed: int) -> None:
    witness, chance = Witness(), random.Random(seed)
    for number in range(count):
        one_round(folder, number, witness, chance)
        check(folder, witness)
    assert len(witness.acked) > count * 10
    assert witness.start > 0, "retention had nothing to do"


def test_a_log_whose_process_is_killed_again_and_again_keeps_every_acknowledged_message(tmp_path: Path):
    rounds(tmp_path / "log", 4, seed=20261115)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_hundred_rounds_of_kill_9_lose_and_double_nothing(tmp_path: Path):
    rounds(tmp_path / "log", 200, seed=int(time.time()))
