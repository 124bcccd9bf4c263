"""Extractors that hang, crash, eat memory or shout, in real processes; and what a task tells the log of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from frazil.content.extraction.sources import open_source
from frazil.content.extraction.task import ExtractionTask
from frazil.content.scan.folder import etag
from frazil.content.thumbnails import ThumbnailStore, thumbnail_key
from frazil.content.topic import ensure_events_topic
from frazil.errors import FrazilError
from frazil.extract import Limits
from frazil.extract.engine.isolation import IsolatedExtraction, ObjectResult
from frazil.extract.engine.source import ObjectRef
from frazil.extract.engine.wire import Job, WorkerConfig
from frazil.extract.engine.worker_process import WorkerProcess, acquire_worker, close_idle_workers, release_worker
from frazil.extract.registry import TYPE, registry
from frazil.observe.faultpoints import handled
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.topics.reading.reader import TopicReader
from tests.extract_plugins import NAMES, install
from tests.sink_kit import SinkKit, sink_kit

pytestmark = pytest.mark.timeout(240)

#: Time enough for who does not hang, also on a machine that stands still for a while.
LIMITS = Limits(timeout_s=60.0, max_memory_bytes=200 << 20)
SHORT = replace(LIMITS, timeout_s=3.0)


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    install(tmp_path / "plugins", monkeypatch)
    yield
    close_idle_workers()
    registry.cache_clear()


def files(folder: Path, *keys: str) -> list[Job]:
    folder.mkdir(exist_ok=True)
    for key in keys:
        (folder / key).write_text(f"content of {key}")
    return [job_of(folder, key, number) for number, key in enumerate(keys)]


def job_of(folder: Path, key: str, number: int, **more: Any) -> Job:
    found = (folder / key).stat()
    wanted = ObjectRef(f"file://{folder}", key, etag=etag(found.st_mtime_ns, found.st_size), size=found.st_size)
    return Job(number, wanted, **more)


def inside(*names: str, threads: int = 4, limits: Limits = LIMITS) -> IsolatedExtraction:
    chosen = registry().choose((TYPE, *names))
    sources = {e.name: registry().found[e.name].source for e in chosen}
    return IsolatedExtraction(
        chosen, WorkerConfig(sources, limits, threads, open_source, S3Settings(), NetworkSettings())
    )


def looked(made: IsolatedExtraction, jobs: list[Job]) -> dict[str, ObjectResult]:
    try:
        done = list(made.run(jobs))
    finally:
        made.close()
    assert sorted(d.job.number for d in done) == sorted(job.number for job in jobs), "each object once"
    return {d.job.wanted.key: d for d in done}


def wrong(done: ObjectResult) -> dict[str, tuple[str, str]]:
    return {n: (r["status"], r["reason"]) for n, r in done.extractors.items() if r["status"] != "ok"}


PLAIN = [f"plain{n}" for n in range(30)]


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("hangs", "took longer than 3 s"),
        pytest.param("grips", "took longer than 3 s", marks=pytest.mark.slow),
        ("exits", "ended the process (exit code 3)"),
        ("crashes", "crashed the process (SIGSEGV)"),
        ("eats", "took more than 0.195312 GiB of memory"),
        ("leaves", "SystemExit: 5"),
        ("talks", "the result has 10,485,762 bytes of JSON; at most 1,048,576 are stored"),
        ("lonely", "ended the process (exit code 4)"),
    ],
)
def test_who_misbehaves_is_found_out_and_all_others_have_their_results(tmp_path: Path, name: str, reason: str):
    keys = [*PLAIN[:15], name, *PLAIN[15:]]
    limits = SHORT if "took longer" in reason else LIMITS
    done = looked(inside(name, "odd", "pictures", limits=limits), files(tmp_path / "files", *keys))
    assert wrong(done[name]) == {name: ("failed", reason)}
    assert set(done[name].extractors) == {TYPE, name, "odd", "pictures"}, "its other extractors have a result too"
    assert [wrong(done[key]) for key in PLAIN] == [{}] * len(PLAIN)
    assert done[PLAIN[0]].extractors["odd"]["data"] == {"size": len(f"content of {PLAIN[0]}")}
    assert all(d.thumbnail == b"small " + key.encode() for key, d in done.items())


def test_many_that_misbehave_at_once_are_each_found_out(tmp_path: Path):
    bad = ["exits1", "crashes1", "exits2", "leaves1", "eats1", "crashes-exits"]
    names = ("crashes", "eats", "exits", "leaves")
    made = inside(*names)
    done = looked(made, files(tmp_path / "files", *PLAIN[:10], *bad, *PLAIN[10:]))
    assert {key: set(wrong(done[key])) for key in bad} == {
        "exits1": {"exits"}, "crashes1": {"crashes"}, "exits2": {"exits"}, "leaves1": {"leaves"}, "eats1": {"eats"},
        "crashes-exits": {"crashes", "exits"},
    }  # fmt: skip
    assert [wrong(done[key]) for key in PLAIN] == [{}] * len(PLAIN)
    assert made.restarts >= 5


def test_what_libraries_print_does_not_get_between_the_results(tmp_path: Path):
    done = looked(inside("shouts"), files(tmp_path / "files", *PLAIN, "shouts"))
    assert all(wrong(d) == {} for d in done.values())
    assert done["shouts"].extractors["shouts"]["data"] == {"shouted": True}


def test_odd_values_arrive_as_json(tmp_path: Path):
    done = looked(inside("odd"), files(tmp_path / "files", "odd"))
    assert done["odd"].extractors["odd"]["data"] == {"nan": None, "text": "a?b", "1": [2]}


def test_a_process_that_is_killed_costs_nothing_but_time(tmp_path: Path):
    made = inside("odd", threads=2)
    jobs = files(tmp_path / "files", *[f"plain{n}" for n in range(2000)])
    done: list[ObjectResult] = []
    for one in made.run(jobs):
        done.append(one)
        child = made._fast._child
        if len(done) in (100, 700) and child is not None:
            os.kill(child.pid, signal.SIGKILL)
    made.close()
    assert sorted(d.job.number for d in done) == list(range(2000))
    assert made.restarts >= 2 and all(wrong(d) == {} for d in done)


def test_a_slow_reader_of_the_results_is_no_reason_to_end_anything(tmp_path: Path):
    made = inside("odd", limits=SHORT)
    jobs = files(tmp_path / "files", *PLAIN)
    done = []
    for one in made.run(jobs):
        if not done:
            time.sleep(1.5 * SHORT.timeout_s)
        done.append(one)
    made.close()
    assert made.restarts == 0 and [wrong(d) for d in done] == [{}] * len(PLAIN)


def test_a_process_is_used_again_by_the_next_task_and_ends_with_its_parent(tmp_path: Path):
    jobs = files(tmp_path / "files", "plain")
    made = inside("odd")
    looked(made, jobs)
    again = inside("odd")
    again._fast.add(jobs[0])
    while not again._fast.poll():
        time.sleep(0.01)
    child = again._fast._child
    assert child is not None and child.taken == 2, "the same one"
    again.close()
    code = (
        "import sys, time; from frazil.extract.engine.worker_process import WorkerProcess;"
        "from frazil.extract.engine.wire import *; from frazil.content.extraction.sources import open_source;"
        "from frazil.extract import Limits; from frazil.settings.model import *;"
        "c = WorkerProcess(WorkerConfig({}, Limits(), 1, open_source, S3Settings(), NetworkSettings()));"
        "print(c.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until = time.monotonic() + 60
    while _runs(pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(pid)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_a_process_that_cannot_begin_is_told_and_not_begun_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    made = inside("odd")
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(FrazilError, match="does not start") as raised:
        looked(made, files(tmp_path / "files", "plain"))
    assert raised.value.cause == "ended the process (exit code 1)"


def test_an_extractor_that_only_the_other_process_cannot_load_fails_alone(tmp_path: Path):
    made = inside("odd")
    (tmp_path / "plugins/misbehaving.py").write_text("raise ImportError('not here')")
    done = looked(made, files(tmp_path / "files", "plain"))
    assert done["plain"].extractors[TYPE]["status"] == "ok"
    assert wrong(done["plain"])["odd"][1] == "it could not be loaded by the worker process"


def test_objects_that_are_gone_or_have_changed_say_so_for_every_extractor(tmp_path: Path):
    jobs = files(tmp_path / "files", "stays", "goes", "changes")
    (tmp_path / "files/goes").unlink()
    (tmp_path / "files/changes").write_text("another content")
    done = looked(inside("odd", "lonely"), jobs)
    assert wrong(done["stays"]) == {}
    assert {n: s for n, (s, _) in wrong(done["goes"]).items()} == dict.fromkeys((TYPE, "odd", "lonely"), "gone")
    assert {n: s for n, (s, _) in wrong(done["changes"]).items()} == dict.fromkeys((TYPE, "odd", "lonely"), "changed")


def test_only_those_extractors_run_that_are_asked_for(tmp_path: Path):
    folder = tmp_path / "files"
    files(folder, "plain")
    asked = [
        job_of(folder, "plain", 0, detected_type="text/plain", names=("odd",)),
        job_of(folder, "plain", 1, detected_type="text/plain", names=("lonely",)),
        job_of(folder, "plain", 2, names=(TYPE, "lonely")),
    ]
    made = inside("odd", "lonely", "talks")
    done = {d.job.number: set(d.extractors) for d in made.run(asked)}
    made.close()
    assert done == {0: {"odd"}, 1: {"lonely"}, 2: {TYPE, "lonely"}}


def test_the_memory_that_others_took_before_is_not_blamed_on_an_object(tmp_path: Path):
    """A process that has leaked most of its memory is replaced, and the object has its result."""
    (tmp_path / "plugins/misbehaving.py").write_text(
        "from frazil.extract import extractor\n"
        "kept = []\n"
        "@extractor('odd')\n"
        "def odd(item):\n"
        "    kept.append(bytearray(30 << 20))\n"
        "    return {}\n"
    )
    made = inside("odd", threads=1)
    done = looked(made, files(tmp_path / "files", *PLAIN))
    assert all(wrong(d) == {} for d in done.values()) and made.restarts >= 3


def test_modules_in_the_current_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tmp_path / "files"
    jobs = files(folder, "plain")
    for name in ("orjson", "ctypes", "frazil", "sitecustomize"):
        (folder / f"{name}.py").write_text(f"open({str(tmp_path / 'run')!r}, 'w')")
    monkeypatch.chdir(folder)
    for here in ("", ".", str(folder)):
        monkeypatch.setattr(sys, "path", [here, *sys.path])
    assert wrong(looked(inside("odd"), jobs)["plain"]) == {}
    assert not (tmp_path / "run").exists()


def test_a_small_pipe_and_a_process_that_hangs_do_not_stop_the_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refused(*_: object) -> int:
        raise PermissionError(1, "pipe-user-pages-soft")

    monkeypatch.setattr("frazil.extract.engine.worker_process.fcntl.fcntl", refused)
    child = WorkerProcess(WorkerConfig({}, Limits(), 1, open_source, S3Settings(), NetworkSettings()))
    os.kill(child.pid, signal.SIGSTOP)
    jobs = [Job(n, ObjectRef("file:///none", "k" * 1000)) for n in range(500)]
    child.send(jobs)
    assert child.waits_for and child.receive() == ([], True)
    os.kill(child.pid, signal.SIGCONT)
    got = 0
    until = time.monotonic() + 60
    while got < 500 and time.monotonic() < until:
        got += len(child.receive()[0])
        time.sleep(0.01)
    assert got == 500 and not child.waits_for
    child.close()


def test_a_process_that_does_not_start_leaves_nothing_open(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(FileNotFoundError):
        WorkerProcess(WorkerConfig({}, Limits(), 1, open_source, S3Settings(), NetworkSettings()))
    assert set(Path("/proc/self/fd").iterdir()) <= before  # others may close something meanwhile


def test_what_an_extractor_has_started_ends_with_its_process_and_holds_nobody_up(tmp_path: Path):
    """A fork keeps the pipes open, and would live on after a crash."""
    (tmp_path / "plugins/misbehaving.py").write_text(
        "import os, time\n"
        "from frazil.extract import extractor\n"
        "@extractor('odd')\n"
        "def odd(item):\n"
        "    if item.key == 'forks':\n"
        f"        with open({str(tmp_path / 'pids')!r}, 'a') as file:\n"
        "            if (pid := os.fork()) == 0:\n"
        "                time.sleep(600)\n"
        "            file.write(f'{pid}\\n')\n"
        "        os._exit(3)\n"
        "    return {}\n"
    )
    done = looked(inside("odd", limits=Limits(timeout_s=60)), files(tmp_path / "files", *PLAIN, "forks"))
    assert wrong(done["forks"]) == {"odd": ("failed", "ended the process (exit code 3)")}
    pids = [int(line) for line in (tmp_path / "pids").read_text().split()]
    until = time.monotonic() + 60
    while any(_runs(pid) for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert pids and not any(_runs(pid) for pid in pids)


# -- a task, which tells the log ---------------------------------------------------------------------------------------


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    with sink_kit(tmp_path / "home") as made:
        yield made


def task_of(kit: SinkKit, names: tuple[str, ...], thumbnails: ThumbnailStore | None = None) -> ExtractionTask:
    model = kit.settings.model
    topic = ensure_events_topic(kit.client, kit.settings).name
    address = kit.client.address
    size, key = model.log.max_message_size, kit.log.key
    return ExtractionTask(address, topic, size, names, LIMITS, None, model.s3, model.network, thumbnails, key=key)


def row_of(job: Job, *names: str, **more: Any) -> dict[str, Any]:
    w = job.wanted
    row = {
        "bucket": w.bucket, "key": w.key, "version_id": "", "etag": w.etag, "size": w.size, "content_type": None,
        "last_modified": None, "is_latest": True, "detected_type": None, "created": "0A", "wanted": list(names),
    }  # fmt: skip
    return row | more


def told(kit: SinkKit) -> list[dict[str, Any]]:
    name = kit.settings.model.content.topic
    end = kit.log.info(name).end
    batches = TopicReader(kit.log, name).read(0, end=end)
    return [json.loads(payload) for batch in batches for payload in batch.column("payload").to_pylist()]


def test_a_task_tells_the_log_what_was_found_and_keeps_the_thumbnails(kit: SinkKit, tmp_path: Path):
    jobs = files(tmp_path / "files", *PLAIN, "exits")
    names = (TYPE, "exits", "pictures")
    store = ThumbnailStore.of(kit.settings)
    report = task_of(kit, names, store).run(row_of(job, *names) for job in jobs)
    assert report.error is None and report.objects == 31
    assert report.by_status == {"ok": 30, "failed": 1} and report.by_extractor["exits", "failed"] == 1
    assert report.failed == [(jobs[30].wanted.bucket, "exits", "exits", "failed", "ended the process (exit code 3)")]
    assert report.thumbnails == 31 and report.restarts >= 1 and report.end == kit.log.info("content_events").end
    (message,) = told(kit)
    assert (message["frazil"], message["bucket"], len(message["results"])) == ("extraction", jobs[0].wanted.bucket, 31)
    first = next(r for r in message["results"] if r["key"] == "plain0")
    assert (first["etag"], first["created"], first["detected_type"]) == (jobs[0].wanted.etag, "0A", "text/plain")
    assert first["extractors"]["exits"] == {"version": "1", "status": "ok", "reason": None, "data": {"size": 17}}
    name = thumbnail_key(jobs[0].wanted.bucket, "plain0", "", jobs[0].wanted.etag)
    assert store.get(name) == b"small plain0"


def test_thumbnails_that_cannot_be_written_are_counted_and_the_results_are_told(kit: SinkKit, tmp_path: Path):
    (tmp_path / "home/thumbnails").write_text("a file where the folder should be")
    jobs = files(tmp_path / "files", *PLAIN[:3])
    report = task_of(kit, (TYPE, "pictures"), ThumbnailStore.of(kit.settings)).run(row_of(j, "pictures") for j in jobs)
    assert (report.error, report.by_status, report.thumbnails, report.thumbnails_failed) == (None, {"ok": 3}, 0, 3)
    assert report.thumbnail_reason and len(told(kit)[0]["results"]) == 3


def test_what_was_found_before_a_fault_is_in_the_log(kit: SinkKit, tmp_path: Path):
    jobs = files(tmp_path / "files", *[f"plain{n}" for n in range(500)])
    seen = 0

    def fault(name: str) -> None:
        nonlocal seen
        if name != "content.extract.object":
            return  # the log has threads of its own
        seen += 1
        if seen == 450:
            raise RuntimeError("the disk is on fire")

    with handled(fault):
        report = task_of(kit, (TYPE,)).run(row_of(job, TYPE) for job in jobs)
    assert report.error is not None and report.error.cause == "RuntimeError: the disk is on fire"
    assert report.objects == 449 and sum(len(m["results"]) for m in told(kit)) >= 400


def test_an_idle_process_is_not_lent_when_it_is_dead():
    config = WorkerConfig({}, Limits(), 1, open_source, S3Settings(), NetworkSettings())
    first = acquire_worker(config)
    release_worker(first)
    os.kill(first.pid, signal.SIGKILL)
    first._process.wait()
    other = acquire_worker(config)
    assert other.pid != first.pid
    other.close()


def test_two_tasks_of_one_process_do_not_share_a_child(tmp_path: Path):
    jobs = files(tmp_path / "files", *PLAIN)
    found: list[int] = []

    def work() -> None:
        found.append(len(looked(inside("odd"), jobs)))

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [30, 30]


def test_the_names_of_the_plugins_are_those_that_are_tested():
    assert set(NAMES) <= set(registry().found)
