"""Looks into objects in another process, watches it, and finds out who is guilty when it hangs or dies.

When the process dies, or one of its threads takes too long, another is begun. What was being done at that moment is
suspect, and is done again alone, one extractor of one object at a time: the one that does it again has failed, all
others have their results. What was only waiting goes back into the queue.
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

_LOOK_S = 0.2
#: Between two looks at what seems to be late.
_TWICE_S = 0.005
#: Results within so many seconds prove that the process as a whole goes on.
_GOES_ON_S = 2.0
#: Seconds in which a process has to begin: it imports the extractors.
_START_S = 120.0
#: Objects that may wait for the slow ones; then no others are begun.
_BEHIND = 64
#: Ends of a process in a row, without any result between them, after which something else is wrong.
_ENDS = 4


@dataclass
class ObjectResult:
    """What is known of an object.

    Attributes:
        job: which.
        detected_type: its media type; None: nobody could tell.
        extractors: name → `version`, `status`, `reason`, `data`, `seconds`.
        bytes_read: of it.
        thumbnail: a small picture; empty: none.
    """

    job: Job
    detected_type: str | None = None
    extractors: dict[str, dict[str, Any]] = field(default_factory=dict)
    bytes_read: int = 0
    thumbnail: bytes = b""

    @property
    def is_over(self) -> bool:
        """Whether the object is not there any more, so that nobody else need look."""
        return any(result["status"] in (GONE, CHANGED) for result in self.extractors.values())

    def settle_memory(self, *, guilty: bool) -> bool:
        """Those that had no memory left have failed, or have to run again; whether some have."""
        short = [name for name, result in self.extractors.items() if result["status"] == SUSPECT]
        for name in short:
            if guilty:
                self.extractors[name]["status"] = FAILED
            else:
                del self.extractors[name]
        return bool(short) and not guilty

    def add(self, told: dict[str, Any], thumbnail: bytes) -> None:
        self.detected_type = told["type"]
        self.extractors |= told["found"]
        self.bytes_read += told["read"]
        self.thumbnail = thumbnail or self.thumbnail

    def fail(self, one: Extractor, reason: str) -> None:
        self.put(one, FAILED, reason)

    def put(self, one: Extractor, status: str, reason: str | None) -> None:
        self.extractors[one.name] = {"version": one.version, "status": status, "reason": reason, "seconds": 0.0}


class WorkerLane:
    """Some extractors, and the process that they run in.

    Args:
        config: of the process.
        extractors: those of the configuration, in its order.
    """

    def __init__(self, config: WorkerConfig, extractors: Sequence[Extractor]) -> None:
        self.extractors = list(extractors)
        self._config = config
        self._waiting: deque[Job] = deque()
        self._sent: dict[int, Job] = {}
        #: What is suspect. As long as there is some, the first of it runs, and nothing else.
        self._alone: deque[ObjectResult] = deque()
        self._child: WorkerProcess | None = None
        self._ends = 0
        self._heard = 0.0
        self.restarts = 0

    @property
    def room(self) -> int:
        """So many more jobs it can take at once."""
        return 4 * self._config.threads - len(self._waiting) - len(self._sent) - len(self._alone)

    @property
    def is_idle(self) -> bool:
        return not (self._waiting or self._sent or self._alone)

    @property
    def must_begin(self) -> bool:
        return self._child is None and not self.is_idle

    @property
    def files(self) -> list[int]:
        """Where something can be read when it goes on."""
        return [] if self._child is None else [self._child.results, self._child.noise]

    @property
    def waits_for(self) -> list[int]:
        """Where more can be handed over when it can be written to."""
        return [] if self._child is None else self._child.waits_for

    def add(self, job: Job) -> None:
        self._waiting.append(job)

    def turn(self) -> list[ObjectResult]:
        """Hands out what waits, takes what has come, and looks after the process. Does not wait."""
        if self.is_idle:
            return []
        child = self._child or self._begin()
        self._hand_out(child)
        alive = child.is_alive  # looked at first: what it had to say then is read in full
        results, goes_on = child.receive()
        goes_on = goes_on and alive  # the pipe may be held open by what it has started
        late = self._late(child) if goes_on else None
        if late is not None:
            child.kill()
            results += child.receive()[0]
        done = self._take(results, child)
        if self._child is not child:
            return done  # it had no memory left, and was ended
        if late is not None:
            return done + self._after_end(child, *late)
        if not goes_on:
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
        self._heard = now()
        self._child = WorkerProcess(self._config) if self._alone else acquire_worker(self._config)
        return self._child

    def _end(self) -> None:
        """Ends the process. What it had not finished is done again."""
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
                job = replace(doing.job, names=(self._left(doing)[0],), detected_type=doing.detected_type)
                self._sent[job.number] = job
                child.send([job])
            return
        free = 2 * self._config.threads - len(self._sent)
        jobs = [self._waiting.popleft() for _ in range(min(free, len(self._waiting)))]
        if jobs:
            self._sent |= {job.number: job for job in jobs}
            child.send(jobs)

    def _left(self, doing: ObjectResult) -> list[str]:
        """Who has not yet looked into an object. As long as nobody has told its type, that comes first."""
        left = [e.name for e in self._asked(doing.job, doing.detected_type, doing.extractors)]
        return [TYPE] if TYPE in left else left

    def _asked(self, job: Job, kind: str | None, known: Container[str]) -> list[Extractor]:
        """Whose result is wanted and not known."""
        asked = [e for e in self.extractors if job.names is None or e.name in job.names]
        takes = [e for e in asked if e.name == TYPE or e.takes(kind or UNKNOWN_TYPE)]
        return [e for e in takes if e.name not in known]

    # -- taking ------------------------------------------------------------------------------------------------------

    def _take(self, results: list[tuple[dict[str, Any], bytes]], child: WorkerProcess) -> list[ObjectResult]:
        done: list[ObjectResult] = []
        suspects: list[ObjectResult] = []
        again = False
        for told, thumbnail in results:
            self._heard, self._ends = now(), 0
            job = self._sent.pop(told["n"])
            one = self._alone.popleft() if self._alone else ObjectResult(job)
            one.add(told, thumbnail)
            for absent in self._asked(job, told["type"], told["found"]):
                one.fail(absent, "it could not be loaded by the process that looks inside")
            # Only in a process that nobody has used before it is clear who took the memory.
            again |= one.settle_memory(guilty=child.taken == 1)
            (suspects if self._left(one) and not one.is_over else done).append(one)
        if again:
            self._end()
        self._alone.extendleft(reversed(suspects))
        return done

    # -- what goes wrong ---------------------------------------------------------------------------------------------

    def _late(self, child: WorkerProcess) -> tuple[list[ThreadStatus], str | None] | None:
        """Who takes too long, and the reason where it is clear who is to blame; else all that are at work."""
        limit, network, time = self._config.limits.timeout_s, self._config.network, now()
        if not child.ready and time - self._heard > _START_S:
            return [], None
        storage = 2 * network.read_timeout + network.retry_timeout + limit
        late = [line for line in child.busy() if time - line.began > (storage if line.state == READING else limit)]
        if not late:
            return None
        sleep(_TWICE_S)
        busy = child.busy()
        late = [line for line in late if line in busy]
        if not late:
            return None
        # A library that does not let go of the interpreter makes all others late too.
        if not self._alone and len(busy) > 1 and time - self._heard > min(_GOES_ON_S, limit / 4):
            return busy, None
        reading = late[0].state == READING
        return late, "storage: no answer in time" if reading else f"took longer than {limit:g} s"

    def _after_end(self, child: WorkerProcess, lines: list[ThreadStatus], reason: str | None) -> list[ObjectResult]:
        """Sorts what the process had: guilty, suspect, and what was only waiting."""
        if not lines:
            self._ends += 1
            if self._ends >= _ENDS:
                raise FrazilError(
                    "the process that looks inside objects does not run",
                    cause=child.last_words() or child.how_it_ended(),
                    hint="look at the plugins that are installed: frazil content extract --dry-run",
                )
        if self._alone:
            # One that gave its result at the last moment is not guilty, and the next has not begun.
            judged = [self._alone.popleft()] if lines and self._sent else []
            self._sent.clear()
            for one in judged:
                name = self._left(one)[0]
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
        self._alone.extendleft(reversed([one for one in judged if self._left(one)]))
        return [one for one in judged if not self._left(one)]


class IsolatedExtraction:
    """Looks into objects: in one process by a glance at their headers, in another what takes longer, or may do harm.

    Args:
        extractors: in the order in which they run.
        config: of the processes, with these extractors.
    """

    def __init__(self, extractors: Sequence[Extractor], config: WorkerConfig) -> None:
        self._fast = _lane([e for e in extractors if not _is_slow(e)], config)
        self._slow = _lane([e for e in extractors if _is_slow(e)], replace(config, threads=-(-config.threads // 2)))
        self._behind: dict[int, ObjectResult] = {}

    @property
    def restarts(self) -> int:
        return self._fast.restarts + self._slow.restarts

    def look(self, jobs: Iterable[Job]) -> Iterator[ObjectResult]:
        """What is found in each, in any order."""
        todo, has_more = iter(jobs), True
        lanes = (self._fast, self._slow)
        while has_more or not all(lane.is_idle for lane in lanes):
            while has_more and self._fast.room > 0 and len(self._behind) < _BEHIND:
                job = next(todo, None)
                has_more = job is not None
                if job is not None:
                    self._enter(job)
            came = [done for done in self._fast.turn() if not self._goes_on(done)]
            came += [self._joined(done) for done in self._slow.turn()]
            yield from came
            if not came and not any(lane.must_begin for lane in lanes):
                files = [file for lane in lanes for file in lane.files]
                select.select(files, [file for lane in lanes for file in lane.waits_for], [], _LOOK_S)

    def close(self) -> None:
        self._fast.close()
        self._slow.close()

    def _enter(self, job: Job) -> None:
        quick = job.detected_type is None or any(e.name in (job.names or [e.name]) for e in self._fast.extractors)
        if quick or not self._goes_on(ObjectResult(job, job.detected_type)):
            self._fast.add(job)

    def _goes_on(self, done: ObjectResult) -> bool:
        """Whether an object now waits for the slow ones."""
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
    """Those that read all of an object run together, so that it is read once."""
    return one.alone or one.reads == "whole"


def _lane(extractors: list[Extractor], config: WorkerConfig) -> WorkerLane:
    return WorkerLane(replace(config, extractors={e.name: config.extractors[e.name] for e in extractors}), extractors)
