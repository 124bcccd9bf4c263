"""The soak: a log that is published to all the time, a process that takes it into tables, and all who look on."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
from pyiceberg.table import Table

from frazil.tables.store import find_table
from frazil.topics.layout import table_name
from frazil.topics.reading.reader import TopicReader
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry.verify import verify
from tests.machine import machine_environment, machine_flags
from tests.services import process
from tests.sink_kit import SinkKit, sink_kit
from tests.soak_holds import Held, hold, make_fixed, since
from tests.soak_judge import Samples
from tests.soak_merge import ACCOUNTS, Oracle, timed
from tests.soak_process import TOPIC
from tests.soak_scale import RATE, TABLES, Scale

_BATCH = 100
_LONGEST_S = 180.0
#: Of each kind that there must be.
_LOOKS = 3


class Soak:
    """Runs the threads; what one of them finds wrong ends it all."""

    def __init__(self, kit: SinkKit, scale: Scale) -> None:
        self.kit, self.scale = kit, scale
        self.samples = Samples()
        self.stop = threading.Event()
        self.wrong: list[str] = []
        self.published = 0
        self.followed = 0
        self.replays = self.checks = self.held_checks = self.merge_reads = self.topic_reads = self.snapshots_read = 0
        self.merges = 0
        self.said: dict[str, Any] = {}
        self.before: dict[str, Any] = {}
        chosen = kit.settings.catalog()
        no_spark: Any = None
        self._care = UpkeepContext(kit.settings, chosen, kit.store, no_spark, threading.Event())
        self._fixed = make_fixed(kit.store)

    def run(self) -> None:
        """Until the time is over, or something is wrong."""
        with self._process():
            loops = [self._publish, self._follow, self._replay, self._read_topic, self._read_accounts]
            loops += [self._measure, self._check]
            threads = [threading.Thread(target=self._guarded, args=(loop,)) for loop in loops]
            for thread in threads:
                thread.start()
            self.stop.wait(self.scale.warm_up)
            self.samples, self.before = Samples(), dict(self.said)
            self.stop.wait(self.scale.seconds)
            # A machine that is busy with other things may need longer for a short soak to see everything once.
            while time.monotonic() - self.samples.began < max(self.scale.seconds, _LONGEST_S) and not self.has_enough:
                if self.stop.wait(1.0):
                    break
            self.stop.set()
            for thread in threads:
                thread.join()

    @property
    def has_enough(self) -> bool:
        """Whether it has published what it should, the reader is with it, and everything was looked at and done."""
        looks = (self.replays, self.topic_reads, self.merge_reads, self.checks, self.held_checks, self.snapshots_read)
        kept_up = self.published > 0.8 * self.scale.seconds * RATE and self.followed > self.published - 20 * RATE
        return kept_up and min(looks) >= _LOOKS and not self._lacking()

    def share(self, table: str) -> float:
        """Of the measured time, what upkeep of a table took."""
        spent = self.said["upkeep_seconds"][table] - self.before.get("upkeep_seconds", {}).get(table, 0.0)
        return float(spent) / self.scale.seconds

    def _lacking(self) -> set[tuple[str, str]]:
        """What upkeep has not yet done to a table, and should have."""
        done = {(table, kind) for table, kinds in self.said.get("done", {}).items() for kind in kinds}
        return self.scale.expected - done

    def _guarded(self, loop: Callable[[], None]) -> None:
        try:
            loop()
        except Exception:  # noqa: BLE001 - the test tells it
            self.wrong.append(f"{loop.__name__}: {traceback.format_exc()}")
            self.stop.set()

    # -- the process -----------------------------------------------------------------------------------------------

    @contextmanager
    def _process(self) -> Iterator[None]:
        flags = {
            **machine_flags(),
            **self.scale.flags(),
            "home": str(self.kit.settings.model.home),
            "log.broker": self.kit.client.address,
        }
        given = {
            "flags": flags,
            "merge_every_s": 2.0,
            **self.scale.pauses(),
        }
        running = subprocess.Popen(
            [sys.executable, "-m", "tests.soak_process", json.dumps(given)],
            env={**process._plain_environment(), **machine_environment()},
            stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        ready = threading.Event()
        listener = threading.Thread(target=self._guarded, args=(lambda: self._listen(running, ready),))
        listener.start()
        try:
            deadline = time.monotonic() + 180
            while not ready.wait(0.1):
                assert running.poll() is None and time.monotonic() < deadline, "the process did not start"
            while find_table(self.kit.store, table_name(self.kit.settings, TOPIC)) is None:
                assert running.poll() is None and time.monotonic() < deadline, "the pipeline made no table"
                time.sleep(0.1)
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(180)
            finally:
                running.kill()
                listener.join()
        if lacking := self._lacking():
            self.wrong.append(f"upkeep has never done {sorted(lacking)}; {self.published} messages, {self.said}")
        if running.returncode != 0 or not self.said.get("over"):
            self.wrong.append(f"the process ended with {running.returncode}")

    def _listen(self, running: subprocess.Popen[str], ready: threading.Event) -> None:
        before: dict[str, Any] = {}
        assert running.stdout is not None
        for line in running.stdout:
            said = json.loads(line)
            self.said |= said
            if "ready" in said:
                ready.set()
            if "wrong" in said:
                self.wrong.append(said["wrong"])
                self.stop.set()
            if "merge" in said:
                self.merges = said["merge"]
                self.samples.add("merge seconds", said["seconds"], said["usual"])
            if "commits" in said:
                if before and said["commits"] > before["commits"]:
                    spent = said["commit_seconds"] - before["commit_seconds"]
                    self.samples.add("commit seconds", spent / (said["commits"] - before["commits"]), said["yardstick"])
                self.samples.add("lag seconds", said["lag_seconds"])
                before = said
        self.stop.set()  # it has ended, perhaps too early

    # -- the threads -----------------------------------------------------------------------------------------------

    def _publish(self) -> None:
        noise = random.Random(1).randbytes(100_000)
        began = time.monotonic()
        while not self.stop.is_set():
            numbers = range(self.published, self.published + _BATCH)
            payloads = [b"%012d" % n + noise[n * 7 % 99_000 :][:180] for n in numbers]
            ack = self.kit.publish(TOPIC, *payloads)
            assert ack.offset == self.published
            self.published += _BATCH
            self.stop.wait(max(0.0, began + self.published / RATE - time.monotonic()))
            self.kit.acknowledged.clear()  # the offset is in the payload; all of them would not fit in memory

    def _reader(self) -> TopicReader:
        return TopicReader(self.kit.client, TOPIC, lambda: self.kit.store.load(table_name(self.kit.settings, TOPIC)))

    def _follow(self) -> None:
        for table in self._reader().read(0, follow=True, stop=self.stop, columns=["offset", "payload"]):
            self.followed = _check_rows(table, self.followed)

    def _replay(self) -> None:
        window = self.scale.young * 2 // 3
        while not self.stop.wait(1.0):
            reader = self._reader()
            end = reader.bounds().end
            at = first = max(0, end - window)
            for table in reader.read(first, end=end, stop=self.stop, columns=["offset", "payload"]):
                at = _check_rows(table, at)
            assert self.stop.is_set() or at == end, f"the replay from {first} ended at {at}, not at {end}"
            self.replays += 1

    def _read_topic(self) -> None:
        """Every offset once, as any reader of the table sees it."""
        while not self.stop.wait(2.0):
            usual = self._usual_read()
            table = self.kit.table(TOPIC)
            began = time.monotonic()
            offsets = table.scan(selected_fields=("offset",)).to_arrow()["offset"]
            self.samples.add("topic read seconds", time.monotonic() - began, usual)
            assert len(pc.unique(offsets)) == len(offsets), "a row is doubled"
            if len(offsets):
                # Retention takes whole files, so that of what is too old some may be left.
                least, most = pc.min_max(offsets).as_py().values()
                young = max(least, most - self.scale.young)
                assert pc.sum(pc.greater_equal(offsets, young)).as_py() == most - young + 1, "a row is missing"
            self.topic_reads += 1

    def _read_accounts(self) -> None:
        """Every snapshot that came has the rows after some number of merges, and its mark says which."""
        oracle, seen = Oracle(), 0
        while not self.stop.wait(2.0):
            usual, before = self._usual_read(), self.merges
            table = self.kit.store.load(ACCOUNTS)
            began = time.monotonic()
            now = _accounts(table, None)
            self.samples.add("accounts read seconds", time.monotonic() - began, usual)
            new = since(table, seen)
            for snapshot in new[:-1]:
                oracle.check(_accounts(table, snapshot.snapshot_id))
            oracle.check(now, at_least=before)
            self.snapshots_read += len(new)
            seen = table.metadata.last_sequence_number
            self.merge_reads += 1

    def _usual_read(self) -> float:
        """Seconds for a read of a table that never changes: it tells how busy the machine is."""
        return timed(lambda: self._fixed.scan(selected_fields=("id",)).to_arrow())

    def _measure(self) -> None:
        while not self.stop.wait(1.0):
            for name in TABLES:
                table = self.kit.store.load(name)
                snapshot = table.current_snapshot()
                if snapshot is None or snapshot.summary is None:
                    continue
                summary = snapshot.summary.additional_properties
                self.samples.add(f"{name} files", float(summary.get("total-data-files", 0)))
                self.samples.add(f"{name} delete files", float(summary.get("total-delete-files", 0)))
                self.samples.add(f"{name} snapshots", len(table.metadata.snapshots))
                folder = Path(table.location().removeprefix("file://"))
                self.samples.add(f"{name} metadata bytes", _size(folder / "metadata"))
                self.samples.add(f"{name} disk bytes", _size(folder))

    def _check(self) -> None:
        """Walks every snapshot, branch and tag. One of each is made early in each table, and its rows stay."""
        every = max(5.0, self.scale.seconds / 40)
        held: dict[str, Held] = {}
        while not self.stop.wait(every):
            for name in TABLES:
                if name not in held and self.kit.store.load(name).current_snapshot() is not None:
                    held[name] = hold(self.kit.store, name)
                began, table = time.monotonic(), self.kit.store.load(name)
                if name in held:
                    held[name].check(table)
                    self.held_checks += 1
                verdict = verify(self._care, table)
                # What expires meanwhile loses its files after so long; a look that took longer proves nothing.
                if self.scale.by_default or time.monotonic() - began < self.scale.short:
                    assert verdict.sound, verdict.to_dict()
                    self.checks += 1


def _accounts(table: Table, snapshot_id: int | None) -> list[dict[str, int]]:
    found: list[dict[str, int]] = (
        table.scan(selected_fields=("id", "value"), snapshot_id=snapshot_id).to_arrow().to_pylist()
    )
    return found


def _check_rows(table: Any, start: int) -> int:
    """Offsets follow each other, and each payload names its own."""
    offsets = table["offset"].to_pylist()
    assert offsets == list(range(start, start + len(offsets))), f"{start}: {offsets[:3]} … {offsets[-3:]}"
    assert [int(p[:12]) for p in table["payload"].to_pylist()] == offsets
    return start + len(offsets)


def _size(folder: Path) -> float:
    total = 0
    for file in folder.rglob("*"):
        try:
            total += file.stat().st_size
        except FileNotFoundError:  # upkeep was faster
            continue
    return float(total)


@contextmanager
def soaking(folder: Path, scale: Scale) -> Iterator[Soak]:
    with sink_kit(folder, **scale.flags()) as kit:
        kit.create(TOPIC)
        yield Soak(kit, scale)
