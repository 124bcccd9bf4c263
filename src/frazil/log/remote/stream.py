"""The client's end of a stream of batches: batches are put, and their replies taken, in order."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress

import pyarrow as pa

from frazil.errors import UnavailableError
from frazil.log.batch import Batch
from frazil.log.protocol import Ack, Level
from frazil.log.remote.failures import translate_error
from frazil.log.remote.transport import flight
from frazil.log.remote.wire import pack_batch, unpack_reply
from frazil.log.trust import KEY_METADATA, make_proof


class LostError(UnavailableError):
    """The stream broke. Messages without a response may or may not be in the log."""


class BatchStream:
    """A stream of batches to one topic. Not thread safe.

    Args:
        client: a connection to the broker.
        topic: the topic of all batches.
        where: the broker, for messages.
        silence: seconds without a reply after which the broker counts as dead.
        on_loss: called when the connection breaks.
        key: of the log, for a stream of internal messages.
    """

    def __init__(
        self,
        client: flight.FlightClient,
        topic: str,
        where: str,
        silence: float,
        on_loss: Callable[[], None],
        key: str | None = None,
    ) -> None:
        self._topic, self._where, self._silence, self._on_loss = topic, where, silence, on_loss
        self._unanswered = 0
        self._waiting_since: float | None = None
        self._is_silent = self._is_broken = False
        try:
            headers = [] if key is None else [(KEY_METADATA.encode(), make_proof(key).encode())]
            options = flight.FlightCallOptions(headers=headers)
            self._writer, self._reader = client.do_exchange(flight.FlightDescriptor.for_path(topic), options)
        except (pa.ArrowException, OSError) as error:
            raise self._lost(error) from error
        _monitor.add(self)

    def put(self, batch: Batch, level: Level | None = None) -> None:
        """Sends a batch. Blocks while the broker does not keep up.

        Raises:
            LostError: the connection is gone.
        """
        if self._waiting_since is None:
            self._waiting_since = time.monotonic()
        try:
            self._writer.write_metadata(pack_batch(batch, level))
        except (pa.ArrowException, OSError) as error:
            raise self._lost(error) from error
        self._unanswered += 1

    def reply(self) -> Ack:
        """Returns the acknowledgement of the oldest unanswered batch.

        Raises:
            LostError: the connection is gone.
            FrazilError: the log has refused the batch; later ones are still answered.
        """
        try:
            chunk = self._reader.read_chunk()
        except StopIteration:
            raise self._lost(None) from None
        except (pa.ArrowException, OSError) as error:
            raise self._lost(error) from error
        self._unanswered -= 1
        self._waiting_since = time.monotonic() if self._unanswered else None
        return unpack_reply(memoryview(chunk.app_metadata), self._topic)

    @property
    def is_answered(self) -> bool:
        """Whether every batch has its reply, and the stream still works."""
        return not self._unanswered and not self._is_broken

    def close(self) -> None:
        _monitor.remove(self)
        if not self.is_answered:
            self._reader.cancel()
        with suppress(pa.ArrowException, OSError):  # the connection was broken already
            self._writer.close()

    def give_up_if_silent(self, now: float) -> None:
        """Cancels the stream if the broker does not answer. Called by another thread."""
        since = self._waiting_since
        if since is not None and now - since > self._silence:
            self._is_silent = True
            self._reader.cancel()

    def _lost(self, error: Exception | None) -> LostError:
        self._is_broken = True
        self._on_loss()
        translated = None if error is None else translate_error(error, self._where)
        if self._is_silent:
            cause = f"no reply for {self._silence:g} s"
        else:
            cause = (translated.cause or translated.message) if translated else "it has ended the stream"
        hint = translated.hint if translated else None
        return LostError(
            f"the connection to the {self._where} broke", cause=cause, hint=hint or "start it: frazil serve"
        )


class _SilenceMonitor:
    """One thread that watches all streams of the process: gRPC itself would wait forever for a broker that hangs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._streams: set[BatchStream] = set()
        self._thread: threading.Thread | None = None

    def add(self, stream: BatchStream) -> None:
        with self._lock:
            self._streams.add(stream)
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="frazil-stream-watch", daemon=True)
                self._thread.start()

    def remove(self, stream: BatchStream) -> None:
        with self._lock:
            self._streams.discard(stream)

    def _run(self) -> None:
        while True:
            time.sleep(0.25)
            now = time.monotonic()
            with self._lock:
                streams = list(self._streams)
            for stream in streams:
                stream.give_up_if_silent(now)


_monitor = _SilenceMonitor()
