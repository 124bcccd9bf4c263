"""A log behind a broker: the same methods as the embedded log, over Arrow Flight."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from types import TracebackType
from typing import Any, Self

import pyarrow as pa

from frazil.errors import FrazilError, NotAllowedError, UnavailableError, UsageError
from frazil.log.batch import Batch
from frazil.log.frame import unpack_trusted
from frazil.log.local_reader import LocalFrames
from frazil.log.protocol import Ack, Chunk, Imported, Level, Registration, Retained, Span, Storage, TopicInfo
from frazil.log.remote.failures import make_no_broker_error, translate_error
from frazil.log.remote.stream import BatchStream, LostError
from frazil.log.remote.transport import flight
from frazil.log.remote.wire import PROTOCOL, to_json, unpack_chunk
from frazil.observe.resilience import retry, worth_retrying
from frazil.settings.model import NetworkSettings

#: A call of `wait` is split into calls of this length.
_WAIT_S = 20.0


class Client:
    """A client of a broker; implements `LogAccess`. Connects on the first call, and again when it has to.

    Thread safe. It can be pickled; the copy makes a connection of its own.

    Args:
        address: grpc://host:port, as `frazil serve` prints it.
        network: timeouts and retries.
        key: of the log's folder; proves that this process belongs to the same installation.
    """

    def __init__(self, address: str, network: NetworkSettings | None = None, key: str | None = None) -> None:
        self.address = _address(address)
        self.key = key
        self.network = network or NetworkSettings()
        self.where = f"broker at {self.address}"
        self._lock = threading.Lock()
        self._connecting = threading.Lock()
        self._connection: flight.FlightClient | None = None
        #: Idle streams by topic, and by whether they are for internal messages.
        self._idle: dict[tuple[str, bool], list[BatchStream]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Client, (self.address, self.network, self.key)

    # -- topics ------------------------------------------------------------------------------------------------------

    def create_topic(self, name: str, *, storage: Storage = "log", exist_ok: bool = False) -> TopicInfo:
        call = self._call if exist_ok else self._call_once
        return TopicInfo.from_dict(call("create_topic", name=name, storage=storage, exist_ok=exist_ok))

    def topics(self) -> list[TopicInfo]:
        return [TopicInfo.from_dict(info) for info in self._call("topics")]

    def info(self, topic: str) -> TopicInfo:
        return TopicInfo.from_dict(self._call("info", topic=topic))

    def delete_topic(self, topic: str) -> None:
        self._call_once("delete_topic", topic=topic)

    def configure(self, topic: str, changes: dict[str, Any]) -> TopicInfo:
        return TopicInfo.from_dict(self._call("configure", topic=topic, changes=changes))

    # -- publish -----------------------------------------------------------------------------------------------------

    def register(self, topic: str, name: str | None = None, producer_id: int | None = None) -> Registration:
        return Registration(**self._call("register", topic=topic, name=name, producer_id=producer_id))

    def append(self, topic: str, batch: Batch, level: Level | str | None = None, *, internal: bool = False) -> Ack:
        """Appends a batch. One with a producer and a sequence is resent when the connection breaks.

        Raises:
            LostError: the connection broke; a batch without a sequence may or may not be in the log.
            NotAllowedError: `internal`, and the key is missing or is not that of the log.
        """
        asked = None if level is None else Level(level)
        if batch.sequence < 0:
            return self._append(topic, batch, asked, internal)
        return retry(lambda: self._append(topic, batch, asked, internal), self.network, operation="broker append")

    def _append(self, topic: str, batch: Batch, level: Level | None, internal: bool) -> Ack:
        while True:
            stream, used = self._take_stream(topic, internal)
            try:
                stream.put(batch, level)
            except LostError:
                stream.close()
                if used:  # it broke while idle: nothing of the batch was sent
                    continue
                raise
            except BaseException:
                stream.close()
                raise
            return self._reply((topic, internal), stream)

    def _reply(self, use: tuple[str, bool], stream: BatchStream) -> Ack:
        try:
            return stream.reply()
        finally:
            if stream.is_answered:
                with self._lock:
                    self._idle.setdefault(use, []).append(stream)
            else:
                stream.close()

    def _take_stream(self, topic: str, internal: bool) -> tuple[BatchStream, bool]:
        with self._lock:
            idle = self._idle.get((topic, internal))
            if idle:
                return idle.pop(), True
        return self.stream(topic, internal=internal), False

    def stream(self, topic: str, *, internal: bool = False) -> BatchStream:
        """Opens a stream of batches. The caller closes it.

        Args:
            topic: the topic of all batches.
            internal: they come from a component of Frazil; the stream sends the key.

        Raises:
            NotAllowedError: there is no key.
        """
        if internal:
            self.require_key()
        connection = self._connected()
        return BatchStream(
            connection,
            topic,
            self.where,
            self.network.read_timeout,
            on_loss=lambda: self._discard_connection(connection),
            key=self.key if internal else None,
        )

    def require_key(self) -> None:
        """Raises NotAllowedError if this process cannot prove that it belongs to the broker's installation."""
        if self.key is None:
            raise NotAllowedError(
                f"cannot publish messages of Frazil's own to the {self.where} without the key of its log",
                cause="the log's folder is not on this machine, or this user may not read it",
                hint="run it as the user of `frazil serve` with the same home, or set log.key on both sides",
            )

    def sync(self, topic: str) -> int:
        return int(self._call("sync", topic=topic))

    # -- read --------------------------------------------------------------------------------------------------------

    def wait(self, topic: str, offset: int, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while True:
            left = max(0.0, deadline - time.monotonic())
            end = int(self._call("wait", topic=topic, offset=offset, timeout=min(left, _WAIT_S)))
            if end > offset or left <= _WAIT_S:
                return end

    def chunks(self, topic: str, start: int, end: int | None = None) -> Iterator[Chunk]:
        """Streams chunks; a broken stream is resumed behind the last chunk."""
        last: Chunk | None = None
        failed_since = attempts = 0.0
        while True:
            try:
                with closing(self._chunks(topic, start, end)) as chunks:
                    for last in chunks:
                        attempts = 0
                        yield last
            except FrazilError as error:
                now = time.monotonic()
                failed_since = failed_since if attempts else now
                attempts += 1
                out_of_patience = attempts >= self.network.retry_attempts or (
                    now - failed_since > self.network.retry_timeout
                )
                if not worth_retrying(error) or out_of_patience:
                    raise
                time.sleep(0.1 * attempts)
            else:
                return
            if last is not None:
                start = end_of(last)
            if end is not None and start >= end:
                return

    def _chunks(self, topic: str, start: int, end: int | None) -> Generator[Chunk]:
        ticket = flight.Ticket(to_json({"topic": topic, "start": start, "end": end, "format": "frames"}))
        # The timeout is that of the whole stream: one that hits it is resumed.
        options = flight.FlightCallOptions(timeout=self.network.read_timeout)
        connection = self._connected()
        try:
            reader = connection.do_get(ticket, options)
        except (pa.ArrowException, OSError) as error:
            raise self._handle_failure(error, connection) from error
        try:
            while True:
                try:
                    found = reader.read_chunk()
                except StopIteration:
                    return
                except (pa.ArrowException, OSError) as error:
                    raise self._handle_failure(error, connection) from error
                yield unpack_chunk(found.data, found.app_metadata)
        finally:
            reader.cancel()

    def places(self, topic: str, start: int, end: int) -> LocalFrames:
        """Returns where the visible frames of a range lie on the broker's machine, for `read_local_frames`.

        Raises:
            UsageError: the broker is older and does not support this.
        """
        return LocalFrames.from_dict(self._call("places", topic=topic, start=start, end=end))

    def spans(self, topic: str, start: int, max_bytes: int, pieces: int) -> list[Span]:
        return [Span(**s) for s in self._call("spans", topic=topic, start=start, max_bytes=max_bytes, pieces=pieces)]

    def offset_at(self, topic: str, time_us: int) -> int:
        return int(self._call("offset_at", topic=topic, time_us=time_us))

    def epoch_below(self, topic: str, offset: int) -> int:
        return int(self._call("epoch_below", topic=topic, offset=offset))

    def commit(self, topic: str, subscription: str, offset: int) -> None:
        self._call("commit", topic=topic, subscription=subscription, offset=offset)

    # -- retention ---------------------------------------------------------------------------------------------------

    def report(self, topic: str, sink: str, offset: int) -> None:
        self._call("report", topic=topic, sink=sink, offset=offset)

    def retain(
        self, topic: str, *, age_s: float | None = None, size: int | None = None, dry_run: bool = False
    ) -> Retained:
        return Retained(**self._call("retain", topic=topic, age_s=age_s, size=size, dry_run=dry_run))

    def import_segments(self, topic: str) -> Imported:
        return Imported(**self._call("import_segments", topic=topic))

    # -- calls -------------------------------------------------------------------------------------------------------

    def _call(self, action: str, **arguments: Any) -> Any:
        """Calls a method that may be repeated."""
        return retry(
            lambda: self._ask(self._connected(), action, arguments), self.network, operation=f"broker {action}"
        )

    def _call_once(self, action: str, **arguments: Any) -> Any:
        connection = retry(self._connected, self.network, operation="broker connect")
        return self._ask(connection, action, arguments)

    def _ask(
        self, connection: flight.FlightClient, action: str, arguments: dict[str, Any], timeout: float | None = None
    ) -> Any:
        options = flight.FlightCallOptions(timeout=timeout or self.network.read_timeout)
        try:
            (answer,) = connection.do_action(flight.Action(action, to_json(arguments)), options)
        except (pa.ArrowException, OSError) as error:
            raise self._handle_failure(error, connection) from error
        return json.loads(answer.body.to_pybytes())

    def _connected(self) -> flight.FlightClient:
        with self._connecting:
            connection = self._connection
            if connection is None:
                connection = self._connection = self._connect()
            return connection

    def _connect(self) -> flight.FlightClient:
        connection = flight.FlightClient(self.address, generic_options=_options(self.network))
        try:
            hello = self._ask(connection, "hello", {}, self.network.connect_timeout)
        except BaseException:
            connection.close()
            raise
        if hello.get("protocol") != PROTOCOL:
            connection.close()
            raise make_no_broker_error(
                self.where, f"it speaks version {hello.get('protocol')} of the protocol, not {PROTOCOL}"
            )
        return connection

    def _handle_failure(self, error: Exception, connection: flight.FlightClient) -> FrazilError:
        translated = translate_error(error, self.where)
        if isinstance(translated, UnavailableError):
            self._discard_connection(connection)
        return translated

    def _discard_connection(self, connection: flight.FlightClient) -> None:
        """Drops the connection, so that the next call makes a new one: gRPC is slow to notice that a broker is back."""
        with self._lock:
            if self._connection is not connection:
                return
            self._connection = None
            idle, self._idle = self._idle, {}
        _close_all(idle)

    def close(self) -> None:
        """Closes the connection. A later call connects again."""
        with self._lock:
            connection, self._connection = self._connection, None
            idle, self._idle = self._idle, {}
        _close_all(idle)
        if connection is not None:
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _close_all(idle: dict[tuple[str, bool], list[BatchStream]]) -> None:
    for streams in idle.values():
        for stream in streams:
            stream.close()


_ADDRESS = re.compile(r"grpc(\+tcp|\+tls)?://([^/:\[\]]+|\[[^/\]]+\]):\d{1,5}")


def _address(given: str) -> str:
    if not _ADDRESS.fullmatch(given.rstrip("/")):
        raise UsageError(f"{given!r} is not the address of a broker", hint="grpc://host:port")
    return given.rstrip("/")


def end_of(chunk: Chunk) -> int:
    """Returns the offset behind the last message of a chunk."""
    data = memoryview(chunk.data)
    at = end = 0
    while at < len(data):
        header = unpack_trusted(data, at)
        end = max(end, header.end_offset)
        at += header.frame_size
    return end


def _options(network: NetworkSettings) -> list[tuple[str, int]]:
    """Returns gRPC options: by default gRPC waits 20 s for a connection, and up to two minutes between tries."""
    return [
        ("grpc.min_reconnect_backoff_ms", int(network.connect_timeout * 1000)),
        ("grpc.initial_reconnect_backoff_ms", 50),
        ("grpc.max_reconnect_backoff_ms", 200),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
    ]
