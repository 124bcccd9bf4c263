"""The broker: serves a log over Arrow Flight. `wire` describes the protocol."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field, ValidationError, validate_call

from frazil.errors import ConflictError, FrazilError, NotAllowedError, UnavailableError, UsageError, first_line
from frazil.log import metrics
from frazil.log.batch import Batch
from frazil.log.log import Log
from frazil.log.messages import decode_chunk, message_schema
from frazil.log.protocol import Ack, Level, TopicInfo
from frazil.log.remote.connections import Streams, cut_connections
from frazil.log.remote.put_pipeline import LARGE_BATCH, PutPipeline
from frazil.log.remote.transport import flight
from frazil.log.remote.wire import FRAMES, PROTOCOL, pack_chunk, pack_error, pack_reply, to_json, unpack_batch
from frazil.log.trust import KEY_METADATA, is_valid_proof
from frazil.observe.logs import get_logger
from frazil.settings.model import ServeSettings
from frazil.version import __version__

#: Methods of `LogAccess` that clients call as actions.
ACTIONS = (
    "create_topic", "topics", "info", "delete_topic", "configure", "register", "sync", "wait", "spans", "offset_at",
    "epoch_below", "report", "retain", "commit", "import_segments", "places",
)  # fmt: skip
#: A call of `wait` occupies a thread of the broker; so it is short, and clients repeat it.
LONGEST_WAIT_S = 30.0
MOST_WAITERS = 256
_WAIT_STEP_S = 0.5
_KEY_HINT = "run it as the user of `frazil serve` with the same home, or set log.key on both sides"

log = get_logger(__name__)
M = TypeVar("M", bound=BaseModel)


class Target(BaseModel):
    """The command of a DoPut descriptor: the topic of its record batches."""

    model_config = ConfigDict(extra="forbid")
    topic: str
    level: Level | None = None


class Request(BaseModel):
    """The ticket of a DoGet: a range of messages."""

    model_config = ConfigDict(extra="forbid")
    topic: str
    start: int | None = Field(None, ge=0)
    end: int | None = Field(None, ge=0)
    format: str = Field("arrow", pattern="^(arrow|frames)$")
    columns: list[str] | None = None


class Broker:
    """Serves a log. The log is not closed by `stop`; its owner closes it.

    Args:
        log: any log.
        host: the address to bind; any other than loopback is open to the network.
        port: the port to bind; with 0, `address` tells the free one that was taken.
        max_streams: open streams of producers and readers; further ones are refused.
    """

    def __init__(
        self, log: Log, host: str = "127.0.0.1", port: int = 0, *, max_streams: int = ServeSettings().max_streams
    ) -> None:
        self._log, self._host, self._port, self._max_streams = log, host, port, max_streams
        self._server: _Server | None = None

    @property
    def address(self) -> str:
        """The address for clients: grpc://host:port."""
        assert self._server is not None, "started"
        host = socket.gethostname() if self._host in ("0.0.0.0", "::") else self._host  # noqa: S104 - compared, not bound
        return f"grpc://{_bracketed(host)}:{self._server.port}"

    def start(self) -> Self:
        """Starts accepting calls; returns at once.

        Raises:
            ConflictError: the port is taken.
        """
        try:
            self._server = _Server(self._log, f"grpc://{_bracketed(self._host)}:{self._port}", self._max_streams)
        except (pa.ArrowException, OSError) as error:
            raise ConflictError(
                f"port {self._port} of {self._host} cannot be bound",
                cause=first_line(error),
                hint="another serve.flight_port, or 0 for any free one",
            ) from error
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Rejects new calls, lets running appends finish and be acknowledged, then closes the connections."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.stop_appends(timeout)
        # gRPC would wait forever for streams of idle producers.
        closing = threading.Thread(target=server.shutdown, name="frazil-broker-stop", daemon=True)
        closing.start()
        deadline = time.monotonic() + timeout
        while closing.is_alive() and time.monotonic() < deadline:
            cut_connections(server.port)
            closing.join(0.1)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


@contextmanager
def _translating_errors(call: str) -> Iterator[None]:
    """Sends errors of a handler to the client as Frazil's; unexpected ones are logged with their traceback."""
    outcome = "ok"
    try:
        yield
    except Exception as error:  # noqa: BLE001 - told, not swallowed
        outcome = "refused" if isinstance(error, FrazilError) else "failed"
        raise _translate_error(error) from None
    finally:
        metrics.CALLS.labels(call, outcome).inc()


def _translate_error(error: Exception) -> flight.FlightError:
    if isinstance(error, flight.FlightError):
        return error
    if not isinstance(error, FrazilError):
        log.error("the broker failed", error=repr(error), exc_info=error)
        error = FrazilError(f"the broker failed: {first_line(error)}", hint="its log says more")
    kind = flight.FlightUnavailableError if isinstance(error, UnavailableError) else flight.FlightServerError
    return kind(error.message, extra_info=pack_error(error))


class _ProofMiddleware(flight.ServerMiddleware):  # type: ignore[misc]  # PyArrow comes untyped
    """A call that carries the proof of a key."""

    def __init__(self, proof: str) -> None:
        self.proof = proof


class _ProofFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    def start_call(self, info: flight.CallInfo, headers: dict[str, list[str | bytes]]) -> _ProofMiddleware | None:
        """Keeps the proof of a call, if it has one."""
        given = next((values for name, values in headers.items() if name.lower() == KEY_METADATA), None)
        return _ProofMiddleware(str(given[0])) if given else None


class _Server(flight.FlightServerBase):  # type: ignore[misc]  # PyArrow comes untyped
    """The handlers. gRPC runs each call in a thread, which a stream occupies while it is open."""

    def __init__(self, served: Log, location: str, max_streams: int) -> None:
        self._log = served
        self._limit = served.settings.batch_limit
        self._streams = Streams(max_streams)
        self._lock = threading.Lock()
        self._ended = threading.Condition(self._lock)
        self._running = 0
        self._waiters = threading.BoundedSemaphore(MOST_WAITERS)
        self._draining = threading.Event()
        self._actions = {name: _checked(getattr(served, name)) for name in ACTIONS}
        self._actions["wait"] = _checked(self._wait)
        super().__init__(location, middleware={KEY_METADATA: _ProofFactory()})

    # -- stop --------------------------------------------------------------------------------------------------------

    def stop_appends(self, timeout: float) -> None:
        """Rejects new appends and waits for the running ones."""
        self._draining.set()
        with self._lock:
            self._ended.wait_for(lambda: self._running == 0, timeout)

    # From the arrival of a batch until its acknowledgement is sent. A context manager would cost more than both.

    def _begin(self) -> None:
        with self._lock:
            self._check_open()
            self._running += 1

    def _end(self) -> None:
        with self._lock:
            self._running -= 1
            if self._draining.is_set():
                self._ended.notify_all()

    def _check_open(self) -> None:
        if self._draining.is_set():
            raise UnavailableError("the broker is stopping", hint="try again when it runs: frazil serve")

    # -- actions -----------------------------------------------------------------------------------------------------

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        return [("hello", "Version of broker and protocol"), *((name, f"LogAccess.{name}") for name in ACTIONS)]

    @_translating_errors("action")
    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> list[bytes]:
        self._check_open()
        if action.type == "hello":
            return [to_json({"frazil": __version__, "protocol": PROTOCOL, "where": self._log.where})]
        if action.type not in self._actions:
            raise UsageError(f"there is no action '{action.type}'", hint=", ".join(ACTIONS))
        arguments = _arguments(action.body.to_pybytes())
        if action.type == "wait":
            arguments["hung_up"] = context.is_cancelled
        return [to_json(self._actions[action.type](arguments))]

    def _wait(self, topic: str, offset: int, timeout: float, hung_up: Callable[[], bool]) -> int:
        if not self._waiters.acquire(blocking=False):
            raise UnavailableError(
                f"{MOST_WAITERS} readers wait for messages already", hint="fewer readers, or poll `info`"
            )
        metrics.WAITING.inc()
        try:
            deadline = time.monotonic() + (min(timeout, LONGEST_WAIT_S) if timeout > 0 else 0)  # a NaN is not
            while True:
                left = deadline - time.monotonic()
                end = self._log.wait(topic, offset, max(0.0, min(left, _WAIT_STEP_S)))
                if end > offset or left <= 0 or hung_up():
                    return end
                self._check_open()
        finally:
            metrics.WAITING.dec()
            self._waiters.release()

    # -- publish -----------------------------------------------------------------------------------------------------

    @_translating_errors("exchange")
    def do_exchange(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader, writer: flight.MetadataRecordBatchWriter,
    ) -> None:  # fmt: skip
        """Serves Frazil's own batches. A refused batch does not end the stream."""
        topic = _topic_of(descriptor)
        call = context.get_middleware(KEY_METADATA)
        pipe: PutPipeline | None = None

        def answer(messages: list[memoryview]) -> None:
            self._begin()
            try:
                for reply in self._replies_to(topic, messages, None if call is None else call.proof):
                    writer.write_metadata(reply)
            finally:
                self._end()

        with ExitStack() as stack:
            stack.enter_context(self._streams.open())
            stack.enter_context(metrics.STREAMS.track_inprogress())
            for chunk in _received(reader, context):
                message = memoryview(chunk.app_metadata or b"")
                if pipe is None and len(message) >= LARGE_BATCH:
                    pipe = stack.enter_context(PutPipeline(answer))
                if pipe is None:
                    answer([message])
                else:
                    pipe.put(message)
                del chunk, message  # an idle stream keeps no memory

    def _replies_to(self, topic: str, messages: list[memoryview], proof: str | None) -> list[bytes]:
        """Appends batches in one commit; each is accepted or refused on its own. A wrong proof rejects all of them."""
        if proof is not None and not is_valid_proof(proof, self._log.key):
            refusal = pack_reply(NotAllowedError("the key of this call is not that of the log", hint=_KEY_HINT))
            return [refusal] * len(messages)
        replies: list[Ack | FrazilError | None] = []
        taken: list[tuple[Batch, Level | None]] = []
        for message in messages:
            try:
                taken.append(unpack_batch(message))
                replies.append(None)
            except FrazilError as error:
                replies.append(error)
        try:
            outcomes = self._log.append_many(topic, taken, internal=proof is not None)
        except FrazilError as error:
            outcomes = [error] * len(taken)
        following = iter(outcomes)
        return [pack_reply(reply or next(following)) for reply in replies]

    @_translating_errors("put")
    def do_put(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader, writer: flight.FlightMetadataWriter,
    ) -> None:  # fmt: skip
        """Accepts record batches of any Flight client, never internal ones. The first refused batch ends the stream."""
        target = _target_of(descriptor)
        with self._streams.open():
            for chunk in _received(reader, context):
                if chunk.data is None or not chunk.data.num_rows:
                    continue
                self._put(target, chunk.data, writer)
                del chunk

    def _put(self, target: Target, rows: pa.RecordBatch, writer: flight.FlightMetadataWriter) -> None:
        """Appends a record batch. It is copied on the way, so that its size is checked first."""
        size = rows.get_total_buffer_size()  # `nbytes` follows offsets, which are not validated yet
        if size > self._limit:
            raise UsageError(
                f"a batch of {size:,} bytes is over the limit of {self._limit:,}",
                hint="smaller batches, or a higher log.max_batch_size",
            )
        self._begin()
        try:
            ack = self._log.append(target.topic, Batch.of_arrow(rows), target.level)
            writer.write(to_json(ack))
        finally:
            self._end()

    # -- read --------------------------------------------------------------------------------------------------------

    @_translating_errors("get")
    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        request = _parsed(Request, ticket.ticket, "ticket")
        info = self._log.info(request.topic)
        start = info.start if request.start is None else request.start
        if request.format == "frames":
            return flight.GeneratorStream(FRAMES, self._frames(request.topic, start, request.end))
        schema = message_schema(info.view, _reject_unknown_columns(request.columns, info))
        return flight.GeneratorStream(schema, self._messages(info, start, request.end, schema))

    def _frames(self, topic: str, start: int, end: int | None) -> Iterator[tuple[pa.RecordBatch, bytes]]:
        with _translating_errors("frames"), self._streams.open():
            for chunk in self._log.chunks(topic, start, end):
                self._check_open()
                yield pack_chunk(chunk)

    def _messages(self, info: TopicInfo, start: int, end: int | None, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        with _translating_errors("messages"), self._streams.open():
            for chunk in self._log.chunks(info.name, start, end):
                self._check_open()
                yield from decode_chunk(chunk, info.view, start, end, schema.names).to_batches()

    def list_flights(self, context: flight.ServerCallContext, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with _translating_errors("list"):
            yield from (_flight_of(info) for info in self._log.topics())

    @_translating_errors("info")
    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        return _flight_of(self._log.info(_topic_of(descriptor)))

    @_translating_errors("schema")
    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        return flight.SchemaResult(message_schema(self._log.info(_topic_of(descriptor)).view))


def _received(
    reader: flight.MetadataRecordBatchReader, context: flight.ServerCallContext
) -> Iterator[flight.FlightStreamChunk]:
    """Yields what a client sends, until it ends the stream or disconnects."""
    while True:
        try:
            yield reader.read_chunk()
        except StopIteration:
            return
        except pa.ArrowException:
            if context.is_cancelled():
                return
            raise


# -- what clients ask for ----------------------------------------------------------------------------------------------


def _checked(method: Callable[..., Any]) -> Callable[[dict[str, Any]], Any]:
    """Returns the method with its arguments validated against its annotations, because they are untrusted."""
    validated = validate_call(method)

    def call(arguments: dict[str, Any]) -> Any:
        try:
            return validated(**arguments)
        except ValidationError as error:
            raise UsageError(f"arguments of '{method.__name__}' are wrong", cause=_why(error)) from error

    return call


def _arguments(body: bytes) -> dict[str, Any]:
    try:
        arguments = json.loads(body or b"{}")
    except ValueError as error:
        raise UsageError("the body of an action is no JSON") from error
    if not isinstance(arguments, dict):
        raise UsageError("the body of an action is a JSON object with its arguments")
    return arguments


def _parsed(model: type[M], content: bytes, what: str) -> M:
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        names = ", ".join(model.model_fields)
        raise UsageError(f"the {what} is wrong", cause=_why(error), hint=f"a JSON object with {names}") from error


def _why(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())


def _target_of(descriptor: flight.FlightDescriptor) -> Target:
    if descriptor.descriptor_type == flight.DescriptorType.CMD:
        return _parsed(Target, descriptor.command, "command")
    return Target(topic=_topic_of(descriptor))


def _topic_of(descriptor: flight.FlightDescriptor) -> str:
    if descriptor.descriptor_type == flight.DescriptorType.PATH and len(descriptor.path) == 1:
        return str(descriptor.path[0], "utf-8", "replace")
    raise UsageError("the descriptor names no topic", hint="FlightDescriptor.for_path(topic)")


def _reject_unknown_columns(columns: list[str] | None, info: TopicInfo) -> list[str] | None:
    names = message_schema(info.view).names
    unknown = sorted(set(columns or []) - set(names))
    if unknown:
        raise UsageError(f"topic '{info.name}' has no column '{unknown[0]}'", hint=", ".join(names))
    return columns


def _flight_of(info: TopicInfo) -> flight.FlightInfo:
    ticket = flight.Ticket(to_json({"topic": info.name, "start": info.start, "end": info.end, "format": "arrow"}))
    return flight.FlightInfo(
        message_schema(info.view),
        flight.FlightDescriptor.for_path(info.name),
        [flight.FlightEndpoint(ticket, [])],
        info.end - info.start,
        info.size,
    )
