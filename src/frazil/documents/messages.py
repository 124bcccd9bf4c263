"""The messages of the topic of documents: every change of a store in Iceberg is one of them.

Only the process that owns the log publishes them, with the mark of internal messages:

{"type": "revision", "version": 1, "operation": "put", "valid_from": "2026-02-28T12:00:00.000001Z", "document": {…},
 "idempotency_key": "…", "digest": "…"}
{"type": "column", "version": 1, "name": "department", "column_type": "string"}
{"type": "bulk", "version": 1, "files": [{"uri": "s3://…", "rows": 50000, "bytes": 1048576, "sha256": "…"}]}
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from frazil.documents.arrow import ADDED, OFFSET, REVISION_SCHEMA, STAMP_SCHEMA, TIME, encode_added
from frazil.documents.fields import check_column
from frazil.documents.model import FIELD_NAMES, Column
from frazil.errors import FrazilError, first_line
from frazil.log.trust import is_marked
from frazil.tables.writing.type_conversion import RejectedRow

if TYPE_CHECKING:
    from frazil.documents.sql.records import StoredRevision

VERSION: Final = 1
_REVISION, _COLUMN, _BULK = "revision", "column", "bulk"
_OPERATIONS: Final = frozenset({"put", "update", "delete", "undelete"})
_fields_of = attrgetter(*FIELD_NAMES)
#: Revisions with the offset of their message.
DECODED_SCHEMA: Final = pa.schema([*REVISION_SCHEMA, OFFSET])


@dataclass(frozen=True)
class BulkFile:
    """A staged Parquet file of revisions in `REVISION_SCHEMA`, named by a message.

    Attributes:
        uri: where it lies.
        rows: revisions in it.
        bytes: its size.
        sha256: of its bytes, hexadecimal.
        offset: of the message that names it; -1: no message does yet.
    """

    uri: str
    rows: int
    bytes: int
    sha256: str
    offset: int = field(default=-1, compare=False)


@dataclass(frozen=True)
class DecodedBatch:
    """The content of messages.

    Attributes:
        revisions_table: in `DECODED_SCHEMA`, in the order of the log.
        columns: added columns, in the order of the log.
        bulk: staged files, in the order of the log. They are not read.
        misfits: messages that are none of these, or that Frazil itself has not published.
    """

    revisions_table: pa.Table
    columns: list[Column]
    bulk: list[BulkFile]
    misfits: list[RejectedRow]


def encode_revision(stored: StoredRevision) -> bytes:
    """Returns the message of one revision."""
    revision = stored.revision
    document: dict[str, Any] = dict(zip(FIELD_NAMES, _fields_of(revision.document), strict=True))
    if revision.document.columns and (added := encode_added(revision.document.columns)):
        document[ADDED.name] = orjson.Fragment(added)
    message = {
        "type": _REVISION,
        "version": VERSION,
        "operation": revision.operation,
        "valid_from": revision.valid_from,
        "document": document,
    }
    if stored.idempotency_key is not None:
        message |= {"idempotency_key": stored.idempotency_key, "digest": stored.digest}
    return orjson.dumps(message, default=dict, option=orjson.OPT_UTC_Z)


def encode_column(column: Column) -> bytes:
    """Returns the message that adds a column."""
    return orjson.dumps({"type": _COLUMN, "version": VERSION, "name": column.name, "column_type": column.type})


def encode_bulk(files: Sequence[BulkFile]) -> bytes:
    """Returns the message that names staged files: their revisions are all added at once."""
    named = [{k: v for k, v in asdict(file).items() if k != "offset"} for file in files]
    return orjson.dumps({"type": _BULK, "version": VERSION, "files": named})


def decode_messages(messages: pa.Table) -> DecodedBatch:
    """Decodes messages of the log. Nothing in them makes this fail: what cannot be decoded is a misfit.

    Args:
        messages: with the columns `offset`, `payload` and, if there are any, `headers`.
    """
    decoder = _Decoder()
    offsets = messages.column("offset").to_pylist()
    payloads = messages.column("payload").to_pylist()
    own = _find_internal(messages)
    for row, (offset, payload) in enumerate(zip(offsets, payloads, strict=True)):
        if row in own:
            decoder.add(row, offset, payload)
        else:
            decoder.reject(row, "untrusted", "Frazil itself has not published this message")
    return decoder.finish()


class _RejectedError(Exception):
    """A message that cannot be decoded: its reason, and what is wrong."""


class _Decoder:
    def __init__(self) -> None:
        self._rows: list[int] = []
        self._revisions: list[dict[str, Any]] = []
        self._columns: list[Column] = []
        self._bulk: list[BulkFile] = []
        self._misfits: list[RejectedRow] = []

    def reject(self, row: int, reason: str, error: str) -> None:
        self._misfits.append(RejectedRow(row, reason, error[:500]))

    def add(self, row: int, offset: int, payload: bytes) -> None:
        try:
            self._add(row, offset, payload)
        except _RejectedError as error:
            self.reject(row, *error.args)
        except FrazilError as error:
            self.reject(row, "invalid", error.in_one_line)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            self.reject(row, "invalid", f"{type(error).__name__}: {first_line(error)}")

    def _add(self, row: int, offset: int, payload: bytes) -> None:
        try:
            message = orjson.loads(payload)
        except ValueError as error:
            raise _RejectedError("not_json", first_line(error)) from None
        if message["version"] != VERSION:
            raise _RejectedError("unsupported_version", f"it is {message['version']!r:.50}, not {VERSION}")
        match message["type"]:
            case "revision":
                self._revisions.append(_flatten(message, offset))
                self._rows.append(row)
            case "column":
                self._columns.append(check_column(str(message["name"]), str(message["column_type"])))
            case "bulk":
                self._bulk += [BulkFile(**{**file, "offset": offset}) for file in message["files"]]
            case kind:
                raise _RejectedError("unknown_type", f"the type is {kind!r:.50}")

    def finish(self) -> DecodedBatch:
        try:
            table = _to_table(self._revisions)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            table = self._to_table_by_row()
        self._misfits.sort(key=lambda misfit: misfit.row)
        return DecodedBatch(table, self._columns, self._bulk, self._misfits)

    def _to_table_by_row(self) -> pa.Table:
        """Finds the revisions whose values do not have the types of the schema."""
        fitting = []
        for row, revision in zip(self._rows, self._revisions, strict=True):
            try:
                fitting.append(_to_table([revision]))
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                self.reject(row, "invalid", first_line(error))
        return pa.concat_tables([DECODED_SCHEMA.empty_table(), *fitting]).combine_chunks()


def _flatten(message: dict[str, Any], offset: int) -> dict[str, Any]:
    made: dict[str, Any] = message["document"]
    if message["operation"] not in _OPERATIONS:
        raise _RejectedError("invalid", f"the operation is {message['operation']!r:.50}")
    made["tags"] = list(made["tags"].items())
    made["attributes"] = orjson.dumps(made["attributes"]).decode()
    added = made.get(ADDED.name)
    made[ADDED.name] = orjson.dumps(added).decode() if added else None
    for name in STAMP_SCHEMA.names:
        made[name] = message.get(name)
    made[OFFSET.name] = offset
    return made


def _to_table(revisions: list[dict[str, Any]]) -> pa.Table:
    columns = []
    for kind in DECODED_SCHEMA:
        values = [revision[kind.name] for revision in revisions]
        if not kind.nullable and None in values:
            raise ValueError(f"'{kind.name}' is missing")
        plain = pa.string() if kind.type == TIME else kind.type
        columns.append(pa.array(values, plain).cast(kind.type))
    return pa.table(columns, schema=DECODED_SCHEMA)


def _find_internal(messages: pa.Table) -> set[int]:
    """The rows that Frazil itself has published."""
    if "headers" not in messages.column_names:
        return set()
    headers = messages.column("headers").to_pylist()
    return {row for row, pairs in enumerate(headers) if pairs and is_marked(dict(pairs))}
