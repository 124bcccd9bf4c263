"""Progress of long work on files: how much of it is done, how fast, and how long the rest will take."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds over which the rate is measured.
_WINDOW_S = 20.0


@dataclass(frozen=True)
class ProgressState:
    """Progress at one moment.

    Attributes:
        stage: what is done, such as `copy`.
        subject: of which table; empty between tables.
        files: done.
        total_files: to do in all, as far as it is known by now.
        bytes: done.
        total_bytes: to do in all, as far as it is known by now.
        elapsed_s: since the stage began.
        rate: bytes per second over the last 20 s.
        eta_s: seconds until the end of the stage; None while that cannot be said.
        is_last: the stage is over.
    """

    stage: str
    subject: str
    files: int
    total_files: int
    bytes: int
    total_bytes: int
    elapsed_s: float
    rate: float
    eta_s: float | None
    is_last: bool = False

    def to_dict(self) -> dict[str, object]:
        return {**vars(self), "elapsed_s": round(self.elapsed_s, 3), "rate": round(self.rate)}


class Progress:
    """Counts, and reports now and then. Thread safe.

    Args:
        report: called with the state, at most every `interval_s` and at the end of a stage; None: nothing is reported.
        interval_s: between two reports.
        clock: seconds.
    """

    def __init__(
        self,
        report: Callable[[ProgressState], None] | None = None,
        *,
        interval_s: float = 0.5,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._report, self._interval, self._clock = report, interval_s, clock
        self._lock = threading.RLock()
        self.begin("")

    def begin(self, stage: str, subject: str = "", *, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Begins a stage, with what is known of its size."""
        with self._lock:
            self._stage, self._subject = stage, subject
            self._files = self._bytes = 0
            self._total_files, self._total_bytes = files, bytes
            self._began = self._reported = self._clock()
            self._samples: deque[tuple[float, int, int]] = deque([(self._began, 0, 0)])

    def expect(self, files: int = 0, bytes: int = 0) -> None:  # noqa: A002
        """Says how much there is to do in the stage, as far as it is known by now."""
        with self._lock:
            self._total_files, self._total_bytes = files, bytes

    def advance(self, files: int = 1, bytes: int = 0) -> None:  # noqa: A002
        """Adds to what is done."""
        with self._lock:
            self._files += files
            self._bytes += bytes
            now = self._clock()
            if now - self._reported >= self._interval:
                self._reported = now
                self._sample(now)
                self._send(self._state(now))

    def end(self) -> None:
        """Ends the stage."""
        with self._lock:
            now = self._clock()
            self._sample(now)
            self._send(self._state(now, is_last=True))

    def state(self) -> ProgressState:
        with self._lock:
            return self._state(self._clock())

    def _sample(self, now: float) -> None:
        self._samples.append((now, self._files, self._bytes))
        while len(self._samples) > 2 and now - self._samples[1][0] > _WINDOW_S:
            self._samples.popleft()

    def _state(self, now: float, *, is_last: bool = False) -> ProgressState:
        then, files, size = self._samples[0]
        span = max(now - then, 1e-9)
        rate = (self._bytes - size) / span
        return ProgressState(
            self._stage, self._subject, self._files, max(self._files, self._total_files), self._bytes,
            max(self._bytes, self._total_bytes), now - self._began, rate,
            0.0 if is_last else self._eta(rate, (self._files - files) / span), is_last,
        )  # fmt: skip

    def _eta(self, rate: float, files_rate: float) -> float | None:
        """Returns the longer of the estimates by bytes and by files: many small files are slow for their size."""
        estimates = []
        for left, per_second in (
            (self._total_bytes - self._bytes, rate),
            (self._total_files - self._files, files_rate),
        ):
            if left > 0:
                if per_second <= 0:
                    return None
                estimates.append(left / per_second)
        return max(estimates, default=0.0)

    def _send(self, state: ProgressState) -> None:
        if self._report is not None:
            self._report(state)
