"""The owner of documents is killed under load, judged by a witness outside of it: this process."""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.documents_iceberg_kit import Home

DOCUMENTS = 8
#: Writes from many threads: each change carries a number of its own, and is told when it is acknowledged.
WORK = """
import itertools, json, os, random, signal, threading
from frazil.documents.store import Write
from frazil.errors import ConflictError
from frazil.observe import faultpoints

first, step, number = int(arguments[0]), arguments[1], int(arguments[2])
numbers, said = itertools.count(first), threading.Lock()

def say(**event):
    with said:
        sys.stdout.write(json.dumps(event) + chr(10))
        sys.stdout.flush()

def kill(reached):
    global number
    if reached == step:
        number -= 1
        if number == 0:
            os.kill(os.getpid(), signal.SIGKILL)

def work(store, name):
    for size in numbers:
        document_id = f"d{random.randrange(DOCUMENTS)}"
        key = f"key-{size}"
        say(kind="asked", key=key)
        writes = [Write("put", document_id, {"filename": "a.pdf", "size_bytes": size}, None, key)]
        if size % 5 == 0:
            writes.append(Write("put", f"new-{size}", {"filename": "a.pdf", "size_bytes": size}, 0))
        made = store.write(writes)
        say(kind="done", key=key, writes=[[r.document_id, r.revision, r.document.size_bytes] for r in made])

with faultpoints.handled(kill), home.owner() as (store, log):
    say(kind="ready")
    threads = [threading.Thread(target=work, args=(store, n), daemon=True) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
""".replace("DOCUMENTS", str(DOCUMENTS))


@dataclass
class Witness:
    """What one after the other of the owners has acknowledged."""

    home: Home
    asked: set[str] = field(default_factory=set)
    done: dict[str, list[list[object]]] = field(default_factory=dict)
    first: int = 0

    def run(self, *, seconds: float | None = None, step: str = "", number: int = 1) -> None:
        """Runs an owner until it is killed, after some time or at a step."""
        owner = self.home.python(WORK, str(self.first), step, str(number))
        self.first += 1_000_000
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(owner.stdout))  # type: ignore[arg-type]
        reader.start()
        try:
            if seconds is not None:
                deadline = time.monotonic() + 60
                while not any('"done"' in line for line in lines) and time.monotonic() < deadline:
                    time.sleep(0.01)
                time.sleep(seconds)
                owner.send_signal(signal.SIGKILL)
            owner.wait(timeout=60)
        finally:
            owner.kill()
            reader.join()
        assert owner.returncode == -signal.SIGKILL
        self._take(lines)

    def _take(self, lines: list[str]) -> None:
        for line in lines:
            if line.endswith("\n"):
                event = json.loads(line)
                if event["kind"] == "asked":
                    self.asked.add(event["key"])
                elif event["kind"] == "done":
                    self.done[event["key"]] = event["writes"]

    def judge(self) -> None:
        """Nothing acknowledged is lost or doubled, nothing is there that nobody asked for, no revision is missing."""
        with self.home.store() as store:
            found = {
                (stored.revision.document_id, stored.revision.revision): stored
                for batch in store.stored_revisions()
                for stored in batch
            }
            assert store.verify().findings == []
            for document_id in {key[0] for key in found}:
                numbers = sorted(number for i, number in found if i == document_id)
                assert numbers == list(range(1, len(numbers) + 1))
        for writes in self.done.values():
            for document_id, revision, size in writes:
                assert found[document_id, revision].revision.document.size_bytes == size
        by_key = Counter(stored.idempotency_key for stored in found.values() if stored.idempotency_key)
        assert set(by_key.values()) <= {1}
        assert by_key.keys() <= self.asked
        assert by_key.keys() >= self.done.keys()
        sizes = Counter(stored.revision.document.size_bytes for stored in found.values())
        for size, count in sizes.items():
            assert count == (2 if size % 5 == 0 else 1), "a batch is applied as a whole"


@pytest.fixture
def witness(tmp_path: Path) -> Witness:
    return Witness(Home(tmp_path / "home"))


def test_killed_under_load_nothing_acknowledged_is_lost_or_doubled(witness):
    witness.run(seconds=random.uniform(0.1, 0.5))
    acknowledged = len(witness.done)
    assert acknowledged > 10
    witness.judge()
    witness.run(seconds=0.2)
    assert len(witness.done) > acknowledged
    witness.judge()


STEPS = ("log.commit.before", "log.write.after", "documents.append.after", "documents.publish.after")


@pytest.mark.parametrize(
    "step", [pytest.param(s, marks=() if s == "documents.append.after" else pytest.mark.deep) for s in STEPS]
)
def test_killed_at_each_step_of_a_change_it_is_there_as_a_whole_or_not_at_all(witness, step):
    witness.run(step=step, number=20)
    assert witness.done
    witness.judge()


@pytest.mark.slow
def test_killed_again_and_again_while_the_projection_is_lost_at_times(witness):
    chance = random.Random(7)
    for number in range(10):
        witness.run(seconds=chance.uniform(0.02, 0.6))
        if number % 3 == 0:
            for file in witness.home.link.parent.iterdir():
                file.unlink()
        witness.judge()


def test_killed_while_the_projection_is_built_the_next_owner_builds_it(witness):
    witness.run(seconds=0.1)
    for file in witness.home.link.parent.iterdir():
        file.unlink()
    witness.run(step="documents.rebuild.before_publish")
    witness.judge()
    assert len(list(witness.home.link.parent.glob("projection-*.db"))) == 1
