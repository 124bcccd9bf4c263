"""Runs extractors in worker processes, and finds the extractor that hangs or crashes one.

When a process dies, or one of its threads exceeds the time limit, it is replaced. The objects it was working on become
suspects and are repeated alone, one extractor of one object at a time: the extractor that fails again is recorded as
failed, all others get their results. Jobs that were only queued are queued again.
"""

from __future__ import annotations

import select
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import sleep
from typing import Any

from frazil.errors import FrazilError
from frazil.extract import Extractor
from frazil.extract.engine.item import UNKNOWN_TYPE
from frazil.extract.engine.run_extractors import SUSPECT
from frazil.extract.engine.wire import READING, Job, ThreadStatus, WorkerConfig
from frazil.extract.engine.worker_process import WorkerProcess, acquire_worker, now, release_worker
from frazil.extract.registry import TYPE
from frazil.extract.status import CHANGED, FAILED, GONE

_POLL_S = 0.2
#: Between two reads of the status of a thread that seems late.
_RECHECK_S = 0.005
#: Results within so many seconds prove that the process as a whole makes progress.
_PROGRESS_S = 2.0
#: Seconds until a process must be ready: it imports the extractors.
_START_S = 120.0
#: Maximum number of objects that wait for slow extractors before no further ones are started.
_MAX_BEHIND = 64
#: Crashes in a row, without any result between them, that mean the process cannot run at all.
_MAX_CRASHES = 4


@dataclass
class ObjectResult:
    """The results of one object.

    Attributes:
        job: the job.
        detected_type: its media type; None if unknown.
        extractors: name → `version`, `status`, `reason`, `data`, `seconds`.
        bytes_read: bytes read of it.
        thumbnail: a small picture; empty if there is none.
    """

    job: Job
    detected_type: str | None = None
    extractors: dict[str, dict[str, Any]] = field(default_factory=dict)
    bytes_read: int = 0
    thumbnail: bytes = b""

    @property
    def is_over(self) -> bool:
        """Whether the object is gone or has changed, so that no other extractor needs to run."""
        return any(result["status"] in (GONE, CHANGED) for result in self.extractors.values())

    def settle_memory(self, *, guilty: bool) -> bool:
        """Marks extractors that ran out of memory as failed if they are to blame; else removes them, to run again.

        Returns whether some have to run again.
        """
        short = [name for name, result in self.extractors.items() if result["status"] == SUSPECT]
        for name in short:
            if guilty:
                self.extractors[name]["status"] = FAILED
            else:
                del self.extractors[name]
        return bool(short) and not guilty

    def add(self, message: dict[str, Any], thumbnail: bytes) -> None:
        self.detected_type = message["type"]
        self.extractors |= message["found"]
        self.bytes_read += message["read"]
        self.thumbnail = thumbnail or self.thumbnail

    def fail(self, one: Extractor, reason: str) -> None:
        self.put(one, FAILED, reason)

    def put(self, one: Extractor, status: str, reason: str | None) -> None:
        self.extractors[one.name] = {"version": one.version, "status": status, "reason": reason, "seconds": 0.0}


class WorkerLane:
    """Some extractors, the worker process that runs them, and its queue.

    Args:
        config: the configuration of the process.
        extractors: those of the configuration, in its order.
    """

    def __init__(self, config: WorkerConfig, extractors: Sequence[Extractor]) -> None:
        self.extractors = list(extractors)
        self._config = config
        self._waiting: deque[Job] = deque()
        self._sent: dict[int, Job] = {}
        #: Suspects. As long as there are any, only the first of them runs.
        self._alone: deque[ObjectResult] = deque()
        self._child: WorkerProcess | None = None
        self._crashes = 0
        self._last_result = 0.0
        self.restarts = 0

    @property
    def room(self) -> int:
        """How many more jobs it accepts."""
        return 4 * self._config.threads - len(self._waiting) - len(self._sent) - len(self._alone)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._sent or self._alone)

    @property
    def must_begin(self) -> bool:
        return self._child is None and not self.is_idle

    @property
    def files(self) -> list[int]:
        """File descriptors that become readable when there are results."""
        return [] if self._child is None else [self._child.results, self._child.noise]

    @property
    def waits_for(self) -> list[int]:
        """File descriptors that become writable when more jobs can be sent."""
        return [] if self._child is None else self._child.waits_for

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def poll(self) -> list[ObjectResult]:
        """Sends queued jobs, receives results and checks the process. Does not block."""
        if self.is_idle:
            return []
        child = self._child or self._begin()
        self._hand_out(child)
        alive = child.is_alive  # checked first, so that all results of a dead process are read
        results, is_open = child.receive()
        is_open = is_open and alive  # child processes may hold the pipe open
        late = self._late(child) if is_open else None
        if late is not None:
            child.kill()
            results += child.receive()[0]
        done = self._take(results, child)
        if self._child is not child:
            return done  # it had no memory left, and was ended
        if late is not None:
            return done + self._after_end(child, *late)
        if not is_open:
            reason = child.how_it_ended() if self._alone else None
            return done + self._after_end(child, child.busy(), reason)
        self._hand_out(child)
        return done

    def close(self) -> None:
        child, self._child = self._child, None
        if child is not None and self.is_idle and child.ready and child.is_alive:
            release_worker(child)
        elif child is not None:
            child.close()

    def _begin(self) -> WorkerProcess:
        self._last_result = now()
        self._child = WorkerProcess(self._config) if self._alone else acquire_worker(self._config)
        return self._child

    def _end(self) -> None:
        """Ends the process, and queues its unfinished jobs again."""
        if not self._alone:
            self._waiting.extendleft(reversed(self._sent.values()))
        self._sent.clear()
        if self._child is not None:
            self._child.close()
            self._child = None
        self.restarts += 1

    # -- handing out -------------------------------------------------------------------------------------------------

    def _hand_out(self, child: WorkerProcess) -> None:
        if self._alone:
            if not self._sent:
                doing = self._alone[0]
                job = replace(doing.job, names=(self._remaining(doing)[0],), detected_type=doing.detected_type)
                self._sent[job.number] = job
                child.send([job])
            return
        free = 2 * self._config.threads - len(self._sent)
        jobs = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        if jobs:
            self._sent |= {job.number: job for job in jobs}
            child.send(jobs)

    def _remaining(self, doing: ObjectResult) -> list[str]:
        """Returns the extractors that have not run on an object; the type detector alone if the type is unknown."""
        left = [e.name for e in self._wanted(doing.job, doing.detected_type, doing.extractors)]
        return [TYPE] if TYPE in left else left

    def _wanted(self, job: Job, kind: str | None, known: Container[str]) -> list[Extractor]:
        """Returns the extractors whose results are wanted and unknown."""
        asked = [e for e in self.extractors if job.names is None or e.name in job.names]
        takes = [e for e in asked if e.name == TYPE or e.takes(kind or UNKNOWN_TYPE)]
        return [e for e in takes if e.name not in known]

    # -- taking ------------------------------------------------------------------------------------------------------

    def _take(self, results: list[tuple[dict[str, Any], bytes]], child: WorkerProcess) -> list[ObjectResult]:
        done: list[ObjectResult] = []
        suspects: list[ObjectResult] = []
        again = False
        for message, thumbnail in results:
            self._last_result, self._crashes = now(), 0
            job = self._sent.pop(message["n"])
            one = self._alone.popleft() if self._alone else ObjectResult(job)
            one.add(message, thumbnail)
            for absent in self._wanted(job, message["type"], message["found"]):
                one.fail(absent, "it could not be loaded by the worker process")
            # Only in a fresh process is it clear which extractor took the memory.
            again |= one.settle_memory(guilty=child.taken == 1)
            (suspects if self._remaining(one) and not one.is_over else done).append(one)
        if again:
            self._end()
        self._alone.extendleft(reversed(suspects))
        return done

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def _late(self, child: WorkerProcess) -> tuple[list[ThreadStatus], str | None] | None:
        """Returns the threads that exceed the time limit, with the reason; all busy ones if the culprit is unclear."""
        limit, network, time = self._config.limits.timeout_s, self._config.network, now()
        if not child.ready and time - self._last_result > _START_S:
            return [], None
        storage = 2 * network.read_timeout + network.retry_timeout + limit
        late = [line for line in child.busy() if time - line.began > (storage if line.state == READING else limit)]
        if not late:
            return None
        sleep(_RECHECK_S)
        busy = child.busy()
        late = [line for line in late if line in busy]
        if not late:
            return None
        # A library that holds the interpreter's lock delays all other threads too.
        if not self._alone and len(busy) > 1 and time - self._last_result > min(_PROGRESS_S, limit / 4):
            return busy, None
        reading = late[0].state == READING
        return late, "storage: no answer in time" if reading else f"took longer than {limit:g} s"

    def _after_end(self, child: WorkerProcess, lines: list[ThreadStatus], reason: str | None) -> list[ObjectResult]:
        """Sorts the jobs of a dead process into failed, suspect and merely queued ones."""
        if not lines:
            self._crashes += 1
            if self._crashes >= _MAX_CRASHES:
                raise FrazilError(
                    "the worker process of extraction does not start",
                    cause=child.last_output_line() or child.how_it_ended(),
                    hint="check the installed plugins: frazil content extract --dry-run",
                )
        if self._alone:
            # One that delivered at the last moment has not failed, and the next has not started.
            judged = [self._alone.popleft()] if lines and self._sent else []
            self._sent.clear()
            for one in judged:
                name = self._remaining(one)[0]
                one.fail(next(e for e in self.extractors if e.name == name), reason or "crashed the process")
        else:
            judged = [
                ObjectResult(job, job.detected_type)
                for n in lines
                if (job := self._sent.pop(n.number, None)) is not None
            ]
            if reason is not None:
                guilty = {line.number: self.extractors[line.extractor] for line in lines}
                for one in judged:
                    one.fail(guilty[one.job.number], reason)
        self._end()
        self._alone.extendleft(reversed([one for one in judged if self._remaining(one)]))
        return [one for one in judged if not self._remaining(one)]


class IsolatedExtraction:
    """Runs extractors on objects: header readers in one process; slow and risky extractors in another.

    Args:
        extractors: in the order in which they run.
        config: the configuration of the processes, with these extractors.
    """

    def __init__(self, extractors: Sequence[Extractor], config: WorkerConfig) -> None:
        self._fast = _lane([e for e in extractors if not _is_slow(e)], config)
        self._slow = _lane([e for e in extractors if _is_slow(e)], replace(config, threads=-(-config.threads // 2)))
        self._behind: dict[int, ObjectResult] = {}

    @property
    def restarts(self) -> int:
        return self._fast.restarts + self._slow.restarts

    def run(self, jobs: Iterable[Job]) -> Iterator[ObjectResult]:
        """Yields the result of each object, in any order."""
        todo, has_more = iter(jobs), True
        lanes = (self._fast, self._slow)
        while has_more or not all(lane.is_idle for lane in lanes):
            while has_more and self._fast.room > 0 and len(self._behind) < _MAX_BEHIND:
                job = next(todo, None)
                has_more = job is not None
                if job is not None:
                    self._enter(job)
            came = [done for done in self._fast.poll() if not self._queue_slow(done)]
            came += [self._joined(done) for done in self._slow.poll()]
            yield from came
            if not came and not any(lane.must_begin for lane in lanes):
                files = [file for lane in lanes for file in lane.files]
                select.select(files, [file for lane in lanes for file in lane.waits_for], [], _POLL_S)

    def close(self) -> None:
        self._fast.close()
        self._slow.close()

    def _enter(self, job: Job) -> None:
        quick = job.detected_type is None or any(e.name in (job.names or [e.name]) for e in self._fast.extractors)
        if quick or not self._queue_slow(ObjectResult(job, job.detected_type)):
            self._fast.add(job)

    def _queue_slow(self, done: ObjectResult) -> bool:
        """Queues an object for the slow extractors if they apply; returns whether they do."""
        job, kind = done.job, done.detected_type or UNKNOWN_TYPE
        wanted = [e for e in self._slow.extractors if e.takes(kind) and (job.names is None or e.name in job.names)]
        if wanted and done.is_over:
            why = next(r for r in done.extractors.values() if r["status"] in (GONE, CHANGED))
            for one in wanted:
                done.put(one, why["status"], why["reason"])
            return False
        if wanted:
            self._behind[job.number] = done
            self._slow.add(replace(job, detected_type=kind, names=tuple(e.name for e in wanted)))
        return bool(wanted)

    def _joined(self, later: ObjectResult) -> ObjectResult:
        done = self._behind.pop(later.job.number)
        done.extractors |= later.extractors
        done.bytes_read += later.bytes_read
        done.thumbnail = done.thumbnail or later.thumbnail
        return done


def _is_slow(one: Extractor) -> bool:
    """Extractors that read whole objects run together, so that each is read once."""
    return one.alone or one.reads == "whole"


def _lane(extractors: list[Extractor], config: WorkerConfig) -> WorkerLane:
    return WorkerLane(replace(config, extractors={e.name: config.extractors[e.name] for e in extractors}), extractors)
