"""Identifies messages of Frazil's own components, by a header that only they can set and the key that proves it.

The header `frazil-internal` marks a message that Frazil itself has published. A log accepts it only from a call in its
own process that says `internal`, or from a client that sends the key of the log's folder. So a reader can rely on the
header, whatever else the message says about itself.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from frazil.atomic_files import write_file
from frazil.errors import UsageError
from frazil.observe.logs import get_logger
from frazil.settings.model import LogSettings

#: The name of the mark; reserved in upper and lower case.
INTERNAL_HEADER = "frazil-internal"
_VALUE = "1"
#: The file with the key, in the log's folder.
KEY_FILE = "KEY"
#: The name of the proof in the metadata of a Flight call.
KEY_METADATA = "frazil-key"

_KEY = re.compile(r"[0-9a-f]{64}")

log = get_logger(__name__)


def add_mark(headers: Mapping[str, str]) -> dict[str, str]:
    """Returns headers with the mark of Frazil's own messages."""
    return {**headers, INTERNAL_HEADER: _VALUE}


def is_marked(headers: Mapping[str, str | None]) -> bool:
    """Returns whether a message of a log was published by Frazil itself."""
    return headers.get(INTERNAL_HEADER) == _VALUE


def has_mark(batch: pa.RecordBatch) -> bool:
    """Returns whether any message of a batch, in the log's types, has a header of the reserved name."""
    if "headers" not in batch.schema.names:
        return False
    column = batch.column("headers")
    # All keys of the column, even those behind a null: they are refused as well.
    return bool(pc.any(pc.equal(pc.utf8_lower(column.keys), INTERNAL_HEADER), min_count=0).as_py())


def refuse_mark(batch: pa.RecordBatch) -> None:
    """Raises UsageError if a message of a batch that is not internal has the reserved header.

    Raises:
        UsageError: one has.
    """
    if has_mark(batch):
        raise UsageError(
            f"the header '{INTERNAL_HEADER}' is reserved for messages of Frazil's own components",
            hint="publish the message without this header",
        )


def make_proof(key: str) -> str:
    """Returns the proof that a call sends: a digest, since metadata of calls is ASCII, and a key any text."""
    return hashlib.sha256(key.encode()).hexdigest()


def is_valid_proof(given: str, key: str) -> bool:
    """Returns whether a call with this proof comes from the same installation."""
    return bool(key) and hmac.compare_digest(given.encode(), make_proof(key).encode())


def get_configured_key(settings: LogSettings) -> str | None:
    """Returns the key in the settings, if there is one."""
    return (settings.key.get_secret_value() or None) if settings.key is not None else None


def read_key(folder: Path) -> str | None:
    """Returns the key of the log in a folder; None if there is none, or this user may not read it."""
    try:
        text = (folder / KEY_FILE).read_text("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return None
    return text if _KEY.fullmatch(text) else None


def ensure_key(folder: Path) -> str:
    """Returns the key of the log in a folder, and creates it if it is missing or others could have read it.

    Only the owner of the log calls this. If the folder cannot be written, the key lasts as long as this process.
    """
    try:
        found = read_key(folder) if _is_private(folder / KEY_FILE) else None
        if found is not None:
            return found
        return _write_key(folder, secrets.token_hex(32))
    except OSError as error:
        log.warning("the log's key cannot be kept, other processes cannot prove who they are", error=str(error))
        return secrets.token_hex(32)


def _is_private(path: Path) -> bool:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(found.st_mode) and not found.st_mode & 0o077 and found.st_uid == os.geteuid()


def _write_key(folder: Path, key: str) -> str:
    write_file(folder / KEY_FILE, key.encode(), durable=False, mode=0o600)
    return key
