"""The document store of a server: opened when it is needed, again after a failure, and used outside the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Literal, Protocol, TypeVar

from frazil.api.worker_threads import WorkerThreads
from frazil.documents.store import DocumentStore
from frazil.errors import FrazilError, UnavailableError, first_line
from frazil.observe.logs import get_logger
from frazil.observe.metrics import counter, gauge

T = TypeVar("T")


class Closable(Protocol):
    def close(self) -> None: ...


OpenStore = Callable[[], DocumentStore]
State = Literal["opening", "ready", "unavailable"]

REQUESTS = counter(
    "frazil_documents_requests_total",
    "Requests to the document store over HTTP, by outcome: ok, refused, unavailable, failed",
    "operation",
    "outcome",
)
SECONDS = counter(
    "frazil_documents_request_seconds_total", "Seconds that requests to the document store took", "operation"
)
AVAILABLE = gauge("frazil_documents_available", "1 while the document store answers, 0 while it cannot be used")
EXPORTS = gauge("frazil_documents_exports", "Streams of documents that are being sent now")

#: Writes wait for a commit or a sync together, so many of them may wait at the same time.
_WRITERS = 32
_READERS = 8
#: Streams that are sent at the same time: each holds a connection of the store for as long as its client reads.
_STREAMS = 4
#: Seconds that a request waits for the first opening of the store, or for its turn to stream.
_PATIENCE_S = 20.0
#: Seconds that calls have to end in when the server stops.
_CLOSING_S = 10.0
#: Seconds after a failed opening in which it is not tried again.
_PAUSE_S = 2.0

log = get_logger(__name__)


@contextmanager
def stating_nothing_stored() -> Iterator[None]:
    """Of a write that comes to nothing before it reaches the store: its client may repeat it, elsewhere too."""
    try:
        yield
    except UnavailableError as error:
        error.details["stored"] = "no"
        raise


class DocumentsAccess:
    """Belongs to one app and one event loop.

    Args:
        open_store: opens the store; None: this server has none.
    """

    def __init__(self, open_store: OpenStore | None = None) -> None:
        self._open_store = open_store
        self._store: DocumentStore | None = None
        self._opening = threading.Lock()
        self._problem: FrazilError | None = None
        self._tried_at = 0.0
        self._used = False
        self._closed = False
        self._readers = WorkerThreads(_READERS, "frazil-documents-read")
        self._writers = WorkerThreads(_WRITERS, "frazil-documents-write")
        self._streams = asyncio.Semaphore(_STREAMS)

    @property
    def state(self) -> State | None:
        """None: nobody has used the store yet."""
        if self._problem is not None:
            return "unavailable"
        if self._store is not None:
            return "ready"
        return "opening" if self._used else None

    def start(self) -> None:
        """Begins to open the store, so that the first request does not have to wait for it."""
        self._used = True
        self._readers.submit(self._try_open)

    def store(self) -> DocumentStore:
        """Returns the store, opened if need be, for work outside of requests.

        Raises:
            UnavailableError: it cannot be opened now.
        """
        return self._opened()

    async def read(self, operation: str, call: Callable[[DocumentStore], T]) -> T:
        return await self._readers.run(lambda: self._run(operation, self._opened, call))

    async def write(self, operation: str, call: Callable[[DocumentStore], T]) -> T:
        return await self._writers.run(lambda: self._run(operation, self._opened_for_write, call))

    @asynccontextmanager
    async def streaming(self) -> AsyncIterator[None]:
        """Takes one of the few turns to stream.

        Raises:
            UnavailableError: none became free for long.
        """
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._streams.acquire()
        except TimeoutError:
            raise UnavailableError(
                f"{_STREAMS} streams of documents are being sent already", hint="send it again a little later"
            ) from None
        EXPORTS.inc()
        try:
            yield
        finally:
            EXPORTS.dec()
            self._streams.release()

    async def run(self, call: Callable[[], T]) -> T:
        """Runs a further step of a request that has begun."""
        return await self._readers.run(call)

    def close_later(self, lines: Closable) -> None:
        """Ends a stream, read to its end or not, without waiting for it."""
        self._readers.submit(lines.close)

    def close(self) -> None:
        """Waits for the calls that run, but not for a database that never answers, and closes the store."""
        self._closed = True
        end = time.monotonic() + _CLOSING_S
        have_ended = [pool.close(end - time.monotonic()) for pool in (self._writers, self._readers)]
        if not all(have_ended):
            log.warning("the document store does not answer, and is left in the middle of a call")
        if self._store is not None:
            self._store.close()

    def _run(self, operation: str, opened: Callable[[], DocumentStore], call: Callable[[DocumentStore], T]) -> T:
        begun, outcome = time.monotonic(), "failed"
        try:
            found = call(opened())
            outcome = "ok"
            self._note(None)
        except UnavailableError as error:
            outcome = "unavailable"
            self._note(error)
            raise
        except FrazilError as error:
            outcome = "refused" if error.http_status < 500 else "failed"
            raise
        else:
            return found
        finally:
            REQUESTS.labels(operation, outcome).inc()
            SECONDS.labels(operation).inc(time.monotonic() - begun)

    def _note(self, problem: FrazilError | None) -> None:
        self._problem = problem
        AVAILABLE.set(problem is None)

    def _try_open(self) -> None:
        try:
            self._opened()
        except FrazilError as error:
            log.warning("the document store cannot be opened, requests to it will try again", error=error.in_one_line)

    def _opened_for_write(self) -> DocumentStore:
        with stating_nothing_stored():
            return self._opened()

    def _opened(self) -> DocumentStore:
        """Returns the store, opened by one thread while the others wait for the first try and no longer."""
        if self._store is not None:
            return self._store
        if self._open_store is None:
            raise UnavailableError("this server has no document store", hint="frazil serve")
        self._used = True
        if not self._opening.acquire(timeout=0 if self._problem else _PATIENCE_S):
            raise self._problem_again() or UnavailableError(
                "the document store is being opened", hint="send it again a little later"
            )
        try:
            return self._store or self._open()
        finally:
            self._opening.release()

    def _open(self) -> DocumentStore:
        assert self._open_store is not None
        again = self._problem_again()
        if again is not None and time.monotonic() < self._tried_at + _PAUSE_S:
            raise again
        try:
            store = self._open_store()
        except Exception as error:
            if not isinstance(error, FrazilError):
                log.exception("unexpected error while the document store was opened")
            cause = error.in_one_line if isinstance(error, FrazilError) else first_line(error)
            hint = error.hint if isinstance(error, FrazilError) else "the server's log says more"
            unavailable = UnavailableError("the document store cannot be opened", cause=cause, hint=hint)
            self._note(unavailable)
            raise unavailable from error
        finally:
            self._tried_at = time.monotonic()
        self._note(None)
        if self._closed:
            store.close()
            raise UnavailableError("the server is stopping", hint="send it again when it is back")
        self._store = store
        return store

    def _problem_again(self) -> UnavailableError | None:
        """Returns the last failure as an error of this request alone."""
        known = self._problem
        return None if known is None else UnavailableError(known.message, cause=known.cause, hint=known.hint)
