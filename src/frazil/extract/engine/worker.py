"""The worker process of extraction. If it hangs, crashes or runs out of memory, it is replaced.

    python -m frazil.extract.engine.worker JOBS RESULTS BOARD PARENT

The first three are inherited file descriptors, so that the output of libraries does not mix with the results.
"""

from __future__ import annotations

import ctypes
import os
import pickle
import queue
import resource
import select
import signal
import sys
import threading
from dataclasses import replace
from functools import partial
from typing import Any

from frazil.extract import Extractor, Item, Look
from frazil.extract.engine import context
from frazil.extract.engine.item import ObjectItem
from frazil.extract.engine.run_extractors import run_extractors
from frazil.extract.engine.wire import (
    FrameDecoder,
    Job,
    StatusBoard,
    StatusMarker,
    WorkerConfig,
    encode_frame,
    write_all,
)
from frazil.extract.registry import TYPE, load

#: Seconds without a job after which the process ends.
IDLE_S = 60.0
#: Larger objects are read as a whole by one thread at a time.
_LARGE = 32 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_BROKEN = 70


class _FirstRunLock:
    """Serializes the first run of each extractor.

    Extractors import libraries and load models when they first run; concurrent threads would each load a model.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()

    def serialize(self, look: Look) -> Look:
        known = False

        def looked(item: Item) -> Any:
            nonlocal known
            if known:
                return look(item)
            with self._lock:
                try:
                    return look(item)
                finally:
                    known = True

        return looked


class Worker:
    """Runs jobs from a queue on several threads, and writes their results."""

    def __init__(self, config: WorkerConfig, results: int, board: StatusBoard) -> None:
        self._config, self._results, self._board = config, results, board
        loaded = load(config.extractors.values(), ())
        first = _FirstRunLock()
        self._extractors = {
            name: replace(one.extractor, look=first.serialize(one.extractor.look)) for name, one in loaded.found.items()
        }
        self._indexes = {name: place for place, name in enumerate(config.extractors)}
        self.jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._writing = threading.Lock()
        self._large = threading.Lock()
        self.open = 0
        """Jobs without a result."""

    def start(self) -> None:
        for line in range(self._config.threads):
            threading.Thread(target=self._work, args=(StatusMarker(self._board, line),), daemon=True).start()

    def take(self, packed: list[Any]) -> None:
        with self._writing:
            self.open += 1
        self.jobs.put(Job.unpack(packed))

    def _work(self, marker: StatusMarker) -> None:
        while True:
            job = self.jobs.get()
            try:
                found = self._look(job, marker)
                marker.idle()  # writing the result may block
                with self._writing:
                    self.open -= 1
                    write_all(self._results, found)
            except BaseException:  # noqa: BLE001 - the parent finds the culprit by running suspects alone
                os._exit(_BROKEN)

    def _look(self, job: Job, marker: StatusMarker) -> bytes:
        config = self._config
        extractors = self._chosen(job)
        marker.begin(job.number, self._indexes.get(TYPE, 0))
        item = ObjectItem(
            job.wanted,
            job.content_type,
            partial(config.open_source, job.wanted, config.s3, config.network),
            config.limits,
            marker.reading,
        )

        def begins(one: Extractor) -> None:
            marker.begin(job.number, self._indexes[one.name])

        is_large = (job.wanted.size or 0) > _LARGE and any(e.reads == "whole" for e in extractors)
        if is_large:
            marker.idle()
            self._large.acquire()
        try:
            found = run_extractors(item, extractors, detected_type=job.detected_type, begins=begins)
        finally:
            if is_large:
                self._large.release()
            item.close()
        message = {"n": job.number, "type": found.detected_type, "read": item.bytes_read, "found": found.extractors}
        return encode_frame(message, found.thumbnail)

    def _chosen(self, job: Job) -> list[Extractor]:
        if job.names is None:
            return list(self._extractors.values())
        return [self._extractors[name] for name in job.names if name in self._extractors]


def main() -> None:
    jobs, results, board, parent = map(int, sys.argv[1:])
    _die_with(parent)
    for one in (jobs, results, board):
        os.set_inheritable(one, False)  # child processes must not keep them open
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    frames = FrameDecoder()
    worker: Worker | None = None
    while _wait_readable(jobs, worker) and (data := os.read(jobs, 1 << 16)):
        for packed, extra in frames.feed(data):
            if worker is None:
                config: WorkerConfig = pickle.loads(extra)  # noqa: S301 - from the process that started this one
                worker = _start_worker(config, results, board)
            for one in packed:
                worker.take(one)
    os._exit(0)  # does not wait for threads that hang


def _start_worker(config: WorkerConfig, results: int, board: int) -> Worker:
    context.set_context(context.ExtractorContext(config.cache, config.s3, config.network))
    worker = Worker(config, results, StatusBoard(board, config.threads))
    worker.start()
    _limit_memory(config.limits.max_memory_bytes)
    write_all(results, encode_frame({"ready": os.getpid()}))
    return worker


def _wait_readable(jobs: int, worker: Worker | None) -> bool:
    """Waits for jobs, or for the end of the parent. Returns False after an idle period."""
    while not select.select([jobs], [], [], IDLE_S)[0]:
        if worker is None or not worker.open:
            return False
    return True


def _die_with(parent: int) -> None:
    """Ends this process when its parent ends, for whatever reason."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _limit_memory(more: int) -> None:
    """Limits writable memory beyond what is used now. Address space would say little in a process with threads."""
    limit = _data_bytes() + more
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _data_bytes() -> int:
    with open("/proc/self/status") as file:  # noqa: PTH123 - short-lived
        for line in file:
            if line.startswith("VmData:"):
                return int(line.split()[1]) * 1024
    return 0


if __name__ == "__main__":
    main()
