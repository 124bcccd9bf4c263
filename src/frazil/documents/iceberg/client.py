"""The client of a running server: it decides and publishes what this process writes."""

from __future__ import annotations

import http.client
import json
import select
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final
from urllib.parse import urlsplit

from frazil.documents.messages import BulkFile
from frazil.documents.model import FIELD_NAMES, Column, Document, Revision, parse_time, plain_time
from frazil.documents.store import Write
from frazil.errors import FrazilError, UnavailableError, UsageError, first_line
from frazil.log.remote.wire import to_json, unpack_error
from frazil.log.trust import KEY_METADATA, make_proof
from frazil.settings.model import NetworkSettings

#: Takes what only Frazil's own processes may ask, see `IcebergDocumentStore.answer_internal`. The header
#: `frazil-key` proves that the client belongs to the installation of the log: `frazil.log.trust.proves`.
INTERNAL_PATH: Final = "/api/v1/documents:internal"
_TIMES: Final = frozenset({"restore_requested_at", "restore_expiry", "created_at", "updated_at"})
#: Idle connections that are kept.
_KEPT: Final = 32


class DocumentClient:
    """Talks to a server over HTTP. Any number of threads may use one.

    Args:
        address: `http://host:port`, as the server has announced it.
        key: of the log's folder.
        network: patience with the server.
    """

    def __init__(self, address: str, key: str | None, network: NetworkSettings) -> None:
        self.address = address
        self._key, self._network = key, network
        split = urlsplit(address)
        self._host, self._port = split.hostname or "127.0.0.1", split.port
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def write(self, writes: Sequence[Write]) -> list[Revision]:
        """Sends a batch of writes.

        Args:
            writes: the batch.

        Raises:
            FrazilError: as the store of the server raised it.
            UnavailableError: the server does not answer. `details["stored"]` is "unknown" if the batch may be applied.
        """
        answer = self._ask(action="write", writes=[_plain_write(write) for write in writes])
        known = {name: Column(name, kind) for name, kind in answer["columns"].items()}
        return [parse_revision(found, known) for found in answer["revisions"]]

    def add_column(self, name: str, kind: str) -> Column:
        return Column(**self._ask(action="add_column", name=name, column_type=kind)["column"])

    def publish_bulk(self, files: Sequence[BulkFile]) -> int:
        """Publishes staged files, and returns how many revisions were new."""
        return int(self._ask(action="bulk", files=[asdict(file) for file in files])["revisions"])

    def refresh(self, *, rebuild: bool = False) -> None:
        """Makes the server bring the projection up to the end of the log, or build it anew."""
        self._ask(action="rebuild" if rebuild else "refresh")

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers[KEY_METADATA] = make_proof(self._key)
        status, body = self._send(_to_json(request), headers)
        try:
            answer: dict[str, Any] = json.loads(body)
        except ValueError:
            raise UnavailableError(
                f"the server at {self.address} gave no answer that Frazil understands",
                cause=f"HTTP status {status}: {body[:200]!r}",
                hint="frazil doctor",
            ) from None
        if status >= 400:
            raise _rebuild_error(answer)
        return answer

    def _send(self, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        connection, is_sent = self._take(), False
        try:
            connection.request("POST", INTERNAL_PATH, body, headers)
            is_sent = True
            response = connection.getresponse()
            answer = response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise self._unreachable(error, is_sent=is_sent) from error
        except BaseException:
            connection.close()
            raise
        self._give_back(connection, response)
        return answer

    def _unreachable(self, error: Exception, *, is_sent: bool) -> FrazilError:
        unavailable = UnavailableError(
            f"the server at {self.address} does not answer", cause=first_line(error), hint="frazil serve"
        )
        if is_sent:
            return unavailable.adding("whether the request was carried out is not known", stored="unknown")
        unavailable.details["stored"] = "no"
        return unavailable

    def _take(self) -> http.client.HTTPConnection:
        """Returns an idle connection that the server has not closed, or a new one."""
        while True:
            with self._lock:
                if not self._idle:
                    return http.client.HTTPConnection(self._host, self._port, timeout=self._network.read_timeout)
                connection = self._idle.pop()
            if connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]:
                return connection
            connection.close()

    def _give_back(self, connection: http.client.HTTPConnection, response: http.client.HTTPResponse) -> None:
        with self._lock:
            if not response.will_close and len(self._idle) < _KEPT:
                self._idle.append(connection)
                return
        connection.close()


def parse_revision(found: Mapping[str, Any], columns: Mapping[str, Column]) -> Revision:
    """Returns the revision that `Revision.to_dict` has made plain."""
    fields: dict[str, Any] = {}
    added: dict[str, Any] = {}
    for name, value in found.items():
        if name in FIELD_NAMES:
            fields[name] = parse_time(value, name) if name in _TIMES and value is not None else value
        elif name in columns and value is not None:
            added[name] = parse_time(value, name) if columns[name].type == "timestamp" else value
    document = Document(**fields, columns=added)
    return Revision(document, found["operation"], parse_time(found["valid_from"], "valid_from"))


def _plain_write(write: Write) -> dict[str, Any]:
    return {
        "operation": write.operation,
        "document_id": write.document_id,
        "values": dict(write.values),
        "if_match": write.if_match,
        "idempotency_key": write.idempotency_key,
    }


def _to_json(content: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(content, default=_plain, allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(
            "the request cannot be written as JSON", cause=first_line(error), hint="texts, numbers, booleans, times"
        ) from None


def _plain(value: Any) -> Any:
    made = plain_time(value)
    if made is value:
        raise TypeError(f"a value is {type(value).__name__}")
    return made


def _rebuild_error(answer: Mapping[str, Any]) -> FrazilError:
    """Returns the error that the server raised, from problem details or from the older form."""
    given = {"cause": None, "hint": None, "error": "FrazilError", "message": answer.get("detail"), **answer}
    error = unpack_error(to_json(given))
    known = {"type", "title", "status", "detail", "instance", "error", "message", "cause", "hint", "retryable"}
    error.details |= {name: value for name, value in answer.items() if name not in known | {"exit_code"}}
    return error
