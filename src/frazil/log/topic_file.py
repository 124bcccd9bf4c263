"""`topic.json`: the definition of a topic."""

from __future__ import annotations

import datetime
import json
import secrets
import zlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, get_args

import pyarrow as pa

from frazil.errors import (
    FrazilError,
    IntegrityError,
    NotAllowedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    first_line,
    translate_os_error,
)
from frazil.log.disk import Disk
from frazil.log.names import check_name
from frazil.log.protocol import Storage, TopicInfo

FORMAT = 1
NAME = "topic.json"
#: The sink of every topic with a table.
ARCHIVE = "archive"


@dataclass(frozen=True)
class TopicFile:
    log_id: str
    storage: Storage
    created_at: str
    sinks: list[str] = field(default_factory=list)
    retention_age_s: float | None = None
    retention_bytes: int | None = None
    floor: int = 0
    """No offset below is given out: a table that has adopted this log knows those of its former one."""
    format: int = FORMAT

    @classmethod
    def create(cls, folder: Path, name: str, storage: Storage, disk: Disk) -> Self:
        """Creates a topic, which exists from the moment its file does."""
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        made = cls(secrets.token_hex(16), _check_storage(storage), now, _default_sinks(storage, []))
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            if any(folder.glob("*.seg")):
                raise IntegrityError(
                    f"{folder} has messages, and its {NAME} is missing", hint="restore it from a backup of the folder"
                )
            for left in folder.iterdir():  # of a topic whose creation was not completed
                if left.is_file():
                    disk.remove(left)
            made._write(folder, disk)
            disk.sync_folder(folder.parent)
        except OSError as error:
            raise _make_write_error(folder / NAME, error) from error
        return made

    @classmethod
    def read(cls, folder: Path) -> Self:
        path = folder / NAME
        try:
            content = json.loads(path.read_bytes())
            found = int(content["format"])
            crc = content.pop("crc")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise IntegrityError(f"{path} is damaged", hint="restore it from a backup of the folder") from error
        if crc != _crc(content):
            raise IntegrityError(
                f"{path} is damaged", cause="its CRC does not fit", hint="restore it from a backup of the folder"
            )
        if found > FORMAT:
            raise UnsupportedError(
                f"the log of topic '{folder.name}' has format {found}, and this Frazil knows up to {FORMAT}",
                cause="a newer Frazil has written it",
                hint="a newer Frazil on this machine",
            )
        try:
            return cls(**{k: v for k, v in content.items() if k in cls.__dataclass_fields__})
        except TypeError as error:
            raise IntegrityError(f"{path} is damaged", hint="restore it from a backup of the folder") from error

    def update(self, changes: dict[str, Any], folder: Path, disk: Disk) -> Self:
        """Returns a copy with some values changed, after writing it to disk."""
        allowed = ("storage", "sinks", "retention_age_s", "retention_bytes", "floor")
        if unknown := [k for k in changes if k not in allowed]:
            raise UsageError(f"a topic has no setting '{unknown[0]}'", hint=f"one of {', '.join(allowed)}")
        values = dict(changes)
        storage = _check_storage(values.get("storage", self.storage))
        sinks = _check_sinks(values["sinks"], storage) if "sinks" in values else self.sinks
        for key in ("retention_age_s", "retention_bytes"):
            if values.get(key) is not None and not (isinstance(values[key], int | float) and 0 <= values[key] < 2**63):
                raise UsageError(f"{key} is a number of 0 or more, or nothing; not {values[key]!r}")
        if "floor" in values:
            values["floor"] = max(self.floor, _check_floor(values["floor"]))
        made = replace(self, **{**values, "storage": storage, "sinks": _default_sinks(storage, sinks)})
        try:
            made._write(folder, disk)
        except OSError as error:
            raise _make_write_error(folder / NAME, error) from error
        return made

    def _write(self, folder: Path, disk: Disk) -> None:
        content = asdict(self)
        disk.replace(folder / NAME, json.dumps(content | {"crc": _crc(content)}, indent=2).encode())

    @classmethod
    def describe_broken(cls, name: str, folder: Path, problem: str, broker_addr: str) -> TopicInfo:
        """Returns what is known of a topic that cannot be opened."""
        try:
            kept = cls.read(folder)
        except (IntegrityError, UnsupportedError):
            kept = cls("", "log", "")
        return TopicInfo(
            name=name, log_id=kept.log_id, epoch=0, storage=kept.storage, created_at=kept.created_at,
            broker_addr=broker_addr, sync_mode="", start=0, end=0, written=0, size=0, segments=0, first_time_us=None,
            last_time_us=None, extra=pa.schema([]), sinks=dict.fromkeys(kept.sinks), problem=problem,
        )  # fmt: skip


def _crc(content: dict[str, Any]) -> int:
    """Computes the checksum: one flipped bit could change the log's id or its retention unnoticed."""
    return zlib.crc32(json.dumps(content, sort_keys=True).encode())


def _make_write_error(path: Path, error: OSError) -> FrazilError:
    known = translate_os_error(error)
    if isinstance(known, NotAllowedError):
        return known
    return UnavailableError(
        f"{path} cannot be written", cause=first_line(error), hint="free some space on that disk; nothing has changed"
    )


def _check_storage(storage: str) -> Storage:
    if storage not in get_args(Storage):
        raise UsageError(f"there is no storage '{storage}'", hint=f"one of {', '.join(get_args(Storage))}")
    return storage  # type: ignore[return-value]  # just checked


def _check_floor(floor: Any) -> int:
    if not isinstance(floor, int) or isinstance(floor, bool) or not 0 <= floor < 2**62:
        raise UsageError(f"floor is an offset, not {floor!r}")
    return floor


def _check_sinks(sinks: Any, storage: Storage) -> list[str]:
    if not isinstance(sinks, list) or not all(isinstance(s, str) for s in sinks):
        raise UsageError(f"sinks are a list of names, not {sinks!r}")
    if ARCHIVE in sinks and storage == "log":
        raise UsageError(
            f"the sink '{ARCHIVE}' writes the topic's table, and a topic with storage 'log' has none",
            hint="frazil topic migrate --to iceberg",
        )
    return list(dict.fromkeys(check_name(sink, "sink") for sink in sinks))


def _default_sinks(storage: str, sinks: list[str]) -> list[str]:
    others = [s for s in sinks if s != ARCHIVE]
    return [ARCHIVE, *others] if storage == "iceberg" else others
