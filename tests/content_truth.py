"""Generates changes of objects and resolves them in a plain loop: the reference for `frazil.content.sink.resolve`."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from frazil.content.columns import BASE, CHANGE, CREATE, DELETE, KEPT, OBSERVED, UPDATE
from frazil.content.sink.evidence import DECISIVE, STORED, of_changes, of_stored, unverified
from frazil.content.sink.resolve import Resolved, decide, resolve

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
RANK = {CREATE: 0, UPDATE: 1, DELETE: 2}


@dataclass(frozen=True)
class Told:
    """One change, told by an event or seen by a look."""

    kind: str = CREATE
    key: str = "a"
    version: str = ""
    sequence: str | None = "1"
    second: float = 0.0
    etag: str | None = None
    size: int | None = None
    storage_class: str | None = None
    marker: bool = False
    dialect: str = "aws"
    latest: bool | None = None
    content_type: str | None = None
    bucket: str = "b"
    modified: float | None = None
    """When the object was written, if that is not the time of the change."""

    @property
    def tie(self) -> str:
        return hashlib.sha256(repr(self).encode()).hexdigest()[:16]

    @property
    def time(self) -> datetime.datetime:
        return BEGIN + datetime.timedelta(seconds=self.second)

    @property
    def _modified(self) -> datetime.datetime:
        return self.time if self.modified is None else BEGIN + datetime.timedelta(seconds=self.modified)

    def row(self, offset: int = 0) -> dict[str, Any]:
        return {
            "offset": offset, "index": 0, "dialect": self.dialect, "event_name": f"test:{self.kind}",
            "record_type": self.kind, "bucket": self.bucket, "key": self.key, "version_id": self.version,
            "sequencer": self.sequence, "sequence": self.sequence, "tie": self.tie, "time": self.time,
            "needs_asking": False, "etag": self.etag, "size": self.size, "storage_class": self.storage_class,
            "content_type": self.content_type, "is_delete_marker": self.marker, "is_latest": self.latest,
            "last_modified": self._modified if self.kind == CREATE else None,
        }  # fmt: skip


def seen(second: float, *, gone: bool = False, **given: Any) -> Told:
    kind = DELETE if gone else CREATE
    return Told(kind, second=second, dialect=OBSERVED, sequence=None, **given)


def changes(told: Iterable[Told]) -> pa.Table:
    return pa.Table.from_pylist([t.row(i) for i, t in enumerate(told)], CHANGE)


class Memory:
    """A table in memory that takes batches as the sink's table does."""

    def __init__(self, skew_s: float = 5.0) -> None:
        self._skew = skew_s
        self.rows: dict[int, dict[str, Any]] = {}
        self.writes = 0
        self._next = 0

    def take(self, told: Sequence[Told]) -> Resolved:
        return self._take(told, of_changes(changes(told)))

    def take_unverified(self, told: Sequence[Told]) -> Resolved:
        """Events that only the bucket can judge, while it does not answer."""
        return self._take(told, unverified(changes(told)))

    def _take(self, told: Sequence[Told], new: pa.Table) -> Resolved:
        keys = {(t.bucket, t.key) for t in told}
        stored = [
            {**row, "_file": "f", "_pos": place}
            for place, row in self.rows.items()
            if (row["bucket"], row["key"]) in keys
        ]
        known = of_stored(pa.Table.from_pylist(stored, STORED))
        result = self._resolved(known, new)
        for place in result.positions.to_pylist():
            del self.rows[place]
        for row in result.rows.to_pylist():
            self.rows[self._next] = row
            self._next += 1
        self.writes += result.rows.num_rows
        return result

    def _resolved(self, known: pa.Table, new: pa.Table) -> Resolved:
        """As the sink does it: first without the content of stored rows, which is then looked up where it is needed."""
        bare = [known[n] if n in DECISIVE else pa.nulls(len(known), known[n].type) for n in known.column_names]
        decision = decide(pa.concat_tables([pa.table(bare, schema=known.schema), new]), self._skew)
        _, places = decision.needed()
        content = pa.Table.from_pylist([self.rows[place] for place in places.to_pylist()], BASE)
        result = decision.result(content)
        assert result == resolve(pa.concat_tables([known, new]), self._skew)
        return result

    def state(self) -> list[dict[str, Any]]:
        return sorted(self.rows.values(), key=lambda r: (r["bucket"], r["key"], r["version_id"]))

    def row(self, key: str = "a", version: str = "") -> dict[str, Any]:
        (found,) = [r for r in self.rows.values() if (r["key"], r["version_id"]) == (key, version)]
        return found


def expected(told: Iterable[Told]) -> list[dict[str, Any]]:
    """What is true after events of one dialect, whatever their order: a loop over each version, in words."""
    versions: dict[tuple[str, str, str], list[Told]] = {}
    for t in told:
        versions.setdefault((t.bucket, t.key, t.version), []).append(t)
    rows = {place: _row(place, events) for place, events in versions.items()}
    for bucket, key in {place[:2] for place in rows}:
        alive = [r for r in rows.values() if (r["bucket"], r["key"]) == (bucket, key) and not r["is_deleted"]]
        if not alive:
            continue
        # Sequences order the versions; where the creation of one was never told, their times have to.
        by = "_made" if all(r["_made"] is not None for r in alive) else "_time"
        max(alive, key=lambda r: (r[by], r["version_id"]))["is_latest"] = True
    found = [{k: v for k, v in row.items() if k[0] != "_"} for row in rows.values()]
    return sorted(found, key=lambda r: (r["bucket"], r["key"], r["version_id"]))


def _row(place: tuple[str, str, str], events: list[Told]) -> dict[str, Any]:
    newest = {k: max((e for e in events if e.kind == k), key=_order, default=None) for k in RANK}
    last = max((e for e in newest.values() if e is not None), key=lambda e: (e.sequence, RANK[e.kind]))
    content = newest[CREATE] or newest[UPDATE] or newest[DELETE]
    classed = max((e for e in events if e.kind == UPDATE and e.storage_class), key=_order, default=None)
    made = newest[CREATE]
    is_newer = classed is not None and (made is None or _order(classed)[0] >= _order(made)[0])
    assert content is not None
    return {
        "bucket": place[0], "key": place[1], "version_id": place[2], "sequencer": last.sequence,
        "sequence": last.sequence, "etag": content.etag, "size": content.size,
        "storage_class": classed.storage_class if is_newer and classed else content.storage_class,
        "content_type": content.content_type, "last_modified": content.row()["last_modified"],
        "is_latest": False, "is_deleted": last.kind == DELETE, "is_delete_marker": content.marker,
        "event_name": f"test:{last.kind}", "changed_at": last.time, "dialect": last.dialect,
        "_made": made.sequence if made else None, "_time": content.row()["last_modified"] or last.time,
    }  # fmt: skip


def _order(event: Told) -> tuple[str, str]:
    assert event.sequence is not None
    return event.sequence, event.tie


def shown(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The columns that `expected` speaks of."""
    hidden = {"frazil_order", "check_after", "tags", "user_metadata", *(f.name for f in KEPT)}
    return [{k: v for k, v in row.items() if k not in hidden} for row in rows]
