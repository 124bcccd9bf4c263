"""Prune of a backup repository: two phases, interrupted anywhere, beside creates."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from frazil.backup import completeness, prune
from frazil.backup.completeness import check_marks
from frazil.backup.format import BackupRecord, BlobRef, seal
from frazil.backup.marks import advance, list_marks
from frazil.backup.prune import plan_prune, run_prune
from frazil.backup.repository import Repository
from frazil.backup.retention import RetentionPolicy
from frazil.backup.verify import verify_repository
from frazil.errors import ConflictError, FrazilError, IntegrityError, UnsupportedError
from frazil.observe import faultpoints
from frazil.observe.cancellation import StoppedError
from frazil.storage.local import LocalStore
from tests.repository_kit import (
    WAIT,
    age,
    back_up,
    files_of,
    missing_blobs,
    open_local,
    record_of,
    store_table,
    write_sources,
)

LAST = RetentionPolicy(keep_last=1)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return open_local(tmp_path / "r")


def sources(folder: Path, *names: str) -> dict[str, Path]:
    return write_sources(folder / "sources", {name: name.encode() * 100 for name in names})


def blobs_there(repository: Repository) -> int:
    return sum(len(files_of(repository.location.path / kind)) for kind in ("data", "meta"))


def run(repository: Repository, policy: RetentionPolicy | None = None, **options: object) -> prune.PruneReport:
    return run_prune(repository, policy, prune_wait_s=WAIT, **options)  # type: ignore[arg-type]


def sound(repository: Repository) -> bool:
    report = verify_repository(repository, level="checksums")
    return report.is_sound and not any(
        missing_blobs(repository, one) for one in repository.list_records() if isinstance(one, BackupRecord)
    )


def test_blobs_leave_in_two_phases(repository: Repository, tmp_path: Path) -> None:
    back_up(repository, "one", sources(tmp_path, "a", "b"))
    back_up(repository, "two", sources(tmp_path, "b", "c"))
    age(repository.location.path, 2 * WAIT)
    plan = plan_prune(repository, LAST, prune_wait_s=WAIT)
    assert (plan.drop, list(plan.keep)) == (("one",), ["two"])
    before = files_of(repository.location.path)
    assert files_of(repository.location.path) == before

    first = run(repository, LAST)
    assert first.dropped == ["one"]
    assert first.marked == plan.mark
    assert first.marked.blobs == 6  # a; its manifest, file list, metadata, manifest list and state
    assert first.deleted.blobs == 0
    assert run(repository).deleted.blobs == run(repository).marked.blobs == 0  # too early
    age(repository.location.path / "prune", WAIT)
    assert plan_prune(repository, None, prune_wait_s=WAIT).delete == first.marked
    second = run(repository)
    assert second.deleted == first.marked
    assert second.marked.blobs == 0
    assert sound(repository)
    report = verify_repository(repository)
    assert (report.unreferenced, list(report.backups)) == (0, ["two"])
    age(repository.location.path / "prune", WAIT)
    run(repository)
    assert list_marks(repository) == []
    assert files_of(repository.location.path / "prune") == []


def test_a_plan_changes_nothing(repository: Repository, tmp_path: Path) -> None:
    back_up(repository, "one", sources(tmp_path, "a"))
    back_up(repository, "two", sources(tmp_path, "b"))
    age(repository.location.path, 2 * WAIT)
    before = {path: path.read_bytes() for path in files_of(repository.location.path)}
    plan = plan_prune(repository, LAST, prune_wait_s=WAIT)
    assert plan.to_dict()["drop"] == ["one"]
    assert {path: path.read_bytes() for path in files_of(repository.location.path)} == before


def test_only_named_backups_are_subject_to_the_policy(repository: Repository, tmp_path: Path) -> None:
    for name in ("a1", "a2", "b1", "b2"):
        back_up(repository, name, sources(tmp_path, name))
    assert run(repository, LAST, names=["a1", "a2"]).dropped == ["a1"]
    assert repository.list_names() == ["a2", "b1", "b2"]


def test_blobs_of_a_create_under_way_are_not_marked(repository: Repository, tmp_path: Path) -> None:
    store_table(repository, sources(tmp_path, "a"))
    assert run(repository).marked.blobs == 0
    age(repository.location.path, WAIT)
    assert run(repository).marked.blobs == 6


@pytest.mark.parametrize(("change", "error"), [({}, IntegrityError), ({"format": 9}, UnsupportedError)])
def test_nothing_is_deleted_while_a_record_cannot_be_read(
    repository: Repository, tmp_path: Path, change: dict[str, int], error: type[FrazilError]
) -> None:
    back_up(repository, "one", sources(tmp_path, "a"))
    back_up(repository, "two", sources(tmp_path, "b"))
    path = repository.location.path / "backups/one.json"
    fields = json.loads(path.read_bytes())
    del fields["sha256"]
    path.write_bytes(seal(fields | change) if change else b"damaged")
    age(repository.location.path, 2 * WAIT)
    before = files_of(repository.location.path)
    for call in (lambda: plan_prune(repository, LAST, prune_wait_s=WAIT), lambda: run(repository, LAST)):
        with pytest.raises(error, match="'one'") as caught:
            call()
        assert "frazil backup delete" in str(caught.value.hint)
    assert files_of(repository.location.path) == before
    assert plan_prune(repository, None, prune_wait_s=WAIT, without=["one"]).mark.blobs == 6


def test_nothing_is_deleted_while_a_file_list_cannot_be_read(repository: Repository, tmp_path: Path) -> None:
    back_up(repository, "one", sources(tmp_path, "a"))
    record = back_up(repository, "two", sources(tmp_path, "b"))
    run(repository, RetentionPolicy(keep_last=2))
    state = record.tables[0].state
    path = repository.location.path / f"meta/{state.shard}/{state}.zst"
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    age(repository.location.path, 2 * WAIT)
    with pytest.raises(IntegrityError, match="the backup 'two' needs it"):
        run(repository, LAST)
    assert blobs_there(repository) == 12
    path.write_bytes(data)
    assert run(repository, LAST).marked.blobs == 6


def test_what_a_crash_left_is_removed(repository: Repository, tmp_path: Path) -> None:
    back_up(repository, "one", sources(tmp_path, "a"))
    rest = repository.location.path / ".0123.frazil-tmp"
    rest.write_bytes(b"part")
    repository.save_progress("table", "never-finished", {})
    run(repository)
    assert rest.exists()
    age(repository.location.path, 2 * WAIT)
    run(repository)
    assert not rest.exists()
    assert files_of(repository.location.path / "progress") == []
    assert sound(repository)


def test_a_tombstone_goes_when_no_backup_needs_it(repository: Repository, tmp_path: Path) -> None:
    back_up(repository, "one", sources(tmp_path, "a"))
    back_up(repository, "two", sources(tmp_path, "b"))
    erased, kept = BlobRef.of(b"a" * 100), BlobRef.of(b"b" * 100)
    repository.erase(erased, "why")
    repository.erase(kept, "why")
    age(repository.location.path, 2 * WAIT)
    run(repository, LAST)
    assert repository.read_tombstone(erased) is None
    assert repository.read_tombstone(kept) is not None


# Beside creates


def marked(repository: Repository, tmp_path: Path) -> dict[str, Path]:
    """A repository with a due mark of the blobs of a backup that is gone."""
    found = sources(tmp_path, "a", "b")
    back_up(repository, "gone", found)
    back_up(repository, "stays", sources(tmp_path, "x"))
    age(repository.location.path, 2 * WAIT)
    run(repository, LAST)
    age(repository.location.path / "prune", WAIT)
    return found


def test_a_create_cancels_a_mark_that_lists_what_it_needs(repository: Repository, tmp_path: Path) -> None:
    found = marked(repository, tmp_path)
    back_up(repository, "again", found)
    assert run(repository).deleted.blobs == 0
    assert sound(repository)
    assert sorted(repository.list_names()) == ["again", "stays"]


def test_a_create_leaves_marks_alone_that_list_nothing_it_needs(repository: Repository, tmp_path: Path) -> None:
    marked(repository, tmp_path)
    back_up(repository, "other", sources(tmp_path, "z"))
    assert run(repository).deleted.blobs == 7
    assert sound(repository)


def test_a_create_copies_again_what_a_prune_has_deleted_since_it_began(repository: Repository, tmp_path: Path) -> None:
    found = marked(repository, tmp_path)
    started = repository.now()
    table = store_table(repository, found)
    assert run(repository).deleted.blobs == 7
    lost = check_marks(repository, [table], started, prune_wait_s=WAIT)
    assert lost == [table.state]  # without the state it is not known what else is needed
    while lost:
        assert store_table(repository, found) == table
        lost = check_marks(repository, [table], started, prune_wait_s=WAIT)
    repository.write_record(record_of(repository, "again", table, started=started), prune_wait_s=WAIT)
    assert sound(repository)


def test_a_create_waits_for_a_prune_that_deletes(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = marked(repository, tmp_path)
    started = repository.now()
    table = store_table(repository, found)
    (mark,) = [one for one in list_marks(repository) if one.is_waiting]
    mark = advance(repository, mark, "delete", "a prune") or mark
    waits = []

    def pause(stop: threading.Event | None) -> None:
        waits.append(stop)
        if len(waits) == 2:
            repository.remove(f"data/{BlobRef.of(b'a' * 100).shard}/{BlobRef.of(b'a' * 100)}")
            advance(repository, mark, "done", "a prune")

    monkeypatch.setattr(completeness, "_pause", pause)
    assert check_marks(repository, [table], started, prune_wait_s=WAIT) == [BlobRef.of(b"a" * 100)]
    assert len(waits) == 2


def test_the_waiting_can_be_stopped(repository: Repository, tmp_path: Path) -> None:
    table = store_table(repository, marked(repository, tmp_path))
    (mark,) = [one for one in list_marks(repository) if one.is_waiting]
    advance(repository, mark, "delete", "a prune")
    stop = threading.Event()
    stop.set()
    with pytest.raises(StoppedError):
        check_marks(repository, [table], repository.now(), prune_wait_s=WAIT, stop=stop)


def test_a_prune_that_died_while_it_deleted_does_not_hold_a_create(repository: Repository, tmp_path: Path) -> None:
    table = store_table(repository, found := marked(repository, tmp_path))
    (mark,) = [one for one in list_marks(repository) if one.is_waiting]
    advance(repository, mark, "delete", "a dead prune")
    age(repository.location.path / "prune", 3600)
    assert check_marks(repository, [table], repository.now(), prune_wait_s=WAIT) == []
    back_up(repository, "again", found)
    assert run(repository).deleted.blobs == 0
    assert sound(repository)


def test_a_damaged_mark_deletes_nothing_and_holds_nobody(repository: Repository, tmp_path: Path) -> None:
    found = marked(repository, tmp_path)
    (path,) = (repository.location.path / "prune").glob("*.zst")
    data = path.read_bytes()
    path.write_bytes(data[:-1])
    back_up(repository, "again", found)
    assert [mark.is_waiting for mark in list_marks(repository)] == [False]
    path.write_bytes(data)
    assert run(repository).deleted.blobs == 0
    assert sound(repository)


def test_a_create_that_takes_longer_than_the_wait_fails(repository: Repository, tmp_path: Path) -> None:
    table = store_table(repository, sources(tmp_path, "a"))
    started = repository.now() - timedelta(seconds=WAIT)
    with pytest.raises(ConflictError, match="prune_wait_s"):
        check_marks(repository, [table], started, prune_wait_s=WAIT)
    with pytest.raises(ConflictError, match="prune_wait_s"):
        repository.write_record(record_of(repository, "late", table, started=started), prune_wait_s=WAIT)
    assert repository.list_names() == []


# Killed anywhere

STEPS = (
    "backup.prune.drop", "backup.prune.dropped", "backup.prune.claimed", "backup.prune.delete",
    "backup.prune.deleted", "backup.prune.mark", "backup.prune.marked", "backup.prune.remove_mark",
)  # fmt: skip
VICTIM = """
import os, signal, sys
from pathlib import Path
from frazil.backup import prune
from frazil.backup.retention import RetentionPolicy
from frazil.observe import faultpoints
from tests.repository_kit import WAIT, open_local
root, step, nth = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
prune._BATCH = 1
seen = 0
def kill(reached):
    global seen
    seen += reached == step
    if seen == nth:
        os.kill(os.getpid(), signal.SIGKILL)
with faultpoints.handled(kill):
    prune.run_prune(open_local(root, create=False), RetentionPolicy(keep_last=2), prune_wait_s=WAIT)
"""


def prepared(folder: Path, tmp_path: Path) -> Repository:
    """A repository in which a prune has all there is to do: to drop, to delete, to mark, and a mark that is over."""
    repository = open_local(folder)
    for number in range(3):
        back_up(repository, f"b{number}", sources(tmp_path, f"n{number}", "shared"))
    age(folder, 2 * WAIT)
    run(repository, RetentionPolicy(keep_last=2))  # marks b0
    age(folder, WAIT)
    back_up(repository, "b3", sources(tmp_path, "n3", "shared"))
    run(repository, RetentionPolicy(keep_last=2))  # deletes b0, and marks b1
    back_up(repository, "b4", sources(tmp_path, "n4", "shared"))
    age(folder, 2 * WAIT)
    return repository


@pytest.mark.parametrize("nth", [1, pytest.param(2, marks=pytest.mark.deep)])
@pytest.mark.parametrize("step", STEPS)
def test_a_prune_killed_at_any_step_leaves_a_sound_repository(tmp_path: Path, step: str, nth: int) -> None:
    repository = prepared(tmp_path / "r", tmp_path)
    killed = subprocess.run(
        [sys.executable, "-c", VICTIM, str(tmp_path / "r"), step, str(nth)], check=False, cwd=Path(__file__).parents[2]
    )
    if nth == 1:
        assert killed.returncode == -signal.SIGKILL
    assert sound(repository)
    # What a killed prune had begun is finished by later ones, and everything unneeded goes.
    for _ in range(3):
        age(tmp_path / "r", 2 * WAIT)
        run(repository, RetentionPolicy(keep_last=2))
        assert sound(repository)
    assert repository.list_names() == ["b3", "b4"]
    report = verify_repository(repository)
    assert (report.unreferenced, files_of(tmp_path / "r/prune")) == (0, [])


# Random schedules


class Clock:
    """The storage's clock: new files get its time, so that it can be moved at will."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.now = datetime(2030, 1, 1, tzinfo=UTC)
        self._known: dict[Path, int] = {}

    def stamp(self) -> None:
        at = self.now.timestamp()
        for path in files_of(self.folder):
            inode = path.stat().st_ino
            if self._known.get(path) != inode:
                os.utime(path, (at, at))
                self._known[path] = inode

    def advance(self, seconds: float) -> None:
        self.stamp()
        self.now += timedelta(seconds=seconds)


class Actors:
    """Threads of which one runs at a time, from fault point to fault point; a seed decides which."""

    def __init__(self, clock: Clock, rng: random.Random) -> None:
        self.clock, self.rng = clock, rng
        self._turn = threading.Condition()
        self._running: str | None = None
        self._waiting: dict[str, str] = {}
        self._alive: set[str] = set()
        self.errors: list[BaseException] = []

    def start(self, name: str, work: Callable[[], None]) -> None:
        def body() -> None:
            threading.current_thread().name = name
            try:
                self.pause("start")
                work()
            except BaseException as error:  # noqa: BLE001 - judged by the test
                if not isinstance(error, (ConflictError, Killed)):
                    self.errors.append(error)
            finally:
                with self._turn:
                    self._alive.discard(name)
                    self._running = None
                    self._turn.notify_all()

        with self._turn:
            self._alive.add(name)
            self._running = name
            threading.Thread(target=body, daemon=True).start()
            self._turn.wait_for(lambda: self._running is None, timeout=60)

    def pause(self, step: str) -> None:
        name = threading.current_thread().name
        if name not in self._alive:
            return
        with self._turn:
            self._waiting[name] = step
            self._running = None
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._running == name, timeout=60)
            self._waiting.pop(name, None)
        if self.rng.random() < 0.01:
            raise Killed

    def step(self) -> bool:
        """Lets one of them run to its next step; False: all are done."""
        with self._turn:
            if not self._waiting:
                return False
            self._running = self.rng.choice(sorted(self._waiting))
            self._turn.notify_all()
            self._turn.wait_for(lambda: self._running is None, timeout=60)
        self.clock.stamp()
        return True


class Killed(BaseException):
    """The process of an actor dies."""


def _after(first: Callable[[], None], function: Callable[..., Any]) -> Callable[..., Any]:
    def both(*args: Any, **options: Any) -> Any:
        first()
        return function(*args, **options)

    return both


@pytest.fixture
def clocked(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Repository, Clock], None]]:
    def install(repository: Repository, clock: Clock) -> None:
        monkeypatch.setattr(type(repository), "now", lambda _: clock.now)
        monkeypatch.setattr(prune, "_elapsed", lambda: clock.now.timestamp())
        for method in ("list", "head"):
            monkeypatch.setattr(LocalStore, method, _after(clock.stamp, vars(LocalStore)[method]))

    monkeypatch.setattr(prune, "_BATCH", 2)
    monkeypatch.setattr("os.fsync", lambda _: None)
    yield install


def schedule(tmp_path: Path, seed: int, install: Callable[[Repository, Clock], None]) -> tuple[int, int]:
    """Creates and prunes in random turns, while time passes. After each turn every listed backup is whole."""
    rng = random.Random(seed)
    folder = tmp_path / f"r{seed}"
    clock = Clock(folder)
    repository = open_local(folder)
    install(repository, clock)
    actors = Actors(clock, rng)
    contents = sources(tmp_path, *"abcdef")
    made = 0

    def create(name: str, names: list[str]) -> Callable[[], None]:
        def work() -> None:
            one = open_local(folder, create=False)
            back_up(one, name, {n: contents[n] for n in names}, uuid=rng.choice(["t1", "t2"]))

        return work

    def clean() -> None:
        run_prune(open_local(folder, create=False), RetentionPolicy(keep_last=1), prune_wait_s=WAIT)

    with faultpoints.handled(actors.pause):
        for turn in range(120):
            if len(actors._alive) < 3:
                made += 1
                if rng.random() < 0.5:
                    actors.start(f"create-{made}", create(f"b{made}", rng.sample("abcdef", 2)))
                else:
                    actors.start(f"prune-{made}", clean)
            actors.step()
            if rng.random() < 0.15:
                clock.advance(rng.choice([60, 1800, WAIT / 3, WAIT, 2 * WAIT]))
            if turn % 3 == 0:
                _judge(repository, seed, turn)
        while actors.step():
            pass
    assert not actors.errors, (seed, actors.errors)
    _judge(repository, seed, -1)
    for _ in range(3):
        clock.advance(3 * WAIT)
        run_prune(repository, RetentionPolicy(keep_last=1), prune_wait_s=WAIT)
        clock.stamp()
    _judge(repository, seed, -2)
    assert verify_repository(repository).unreferenced == 0, seed
    return len(repository.list_names()), made


def _judge(repository: Repository, seed: int, turn: int) -> None:
    for record in repository.list_records():
        assert isinstance(record, BackupRecord)
        assert missing_blobs(repository, record) == [], (seed, turn, record.name)


@pytest.mark.parametrize("seed", [*range(6), *(pytest.param(seed, marks=pytest.mark.deep) for seed in range(6, 60))])
def test_creates_beside_prunes_never_list_a_backup_that_lacks_a_blob(
    tmp_path: Path, seed: int, clocked: Callable[[Repository, Clock], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(completeness, "_pause", lambda _: faultpoints.reach("backup.check_marks.waiting"))
    schedule(tmp_path, seed, clocked)
