"""Evidence: stored rows and new changes in one form: what each states about a version of an object, and how new it is.

A piece of evidence has registers. `created`, `updated`, `deleted` and `classed` (a change of the storage class) are
texts of sequence and tie, with the event's time; `observed` is a time. A change has the one or two that it is about. A
row of the table has those that have won so far, and its other columns are the content that the winner brought.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.annotations.messages import Annotation
from frazil.content.columns import BASE, CREATE, DELETE, OBSERVED, ORDER, UPDATE

REGISTERS = {"created": CREATE, "updated": UPDATE, "deleted": DELETE}
#: Characters of a tie and the slash before it. The slash sorts before every character of a sequence.
TIE = 17

#: File and position of a stored row; null for a change.
PLACE = pa.schema([pa.field("_file", pa.string()), pa.field("_pos", pa.int64())])
STORED = pa.schema([*BASE, *PLACE])
EVIDENCE = pa.schema([*(f for f in BASE if f.name != "frazil_order"), *ORDER, *PLACE])
EVIDENCE = pa.schema([pa.field(f.name, f.type) for f in EVIDENCE])
#: The columns that decide whether a stored row is still valid.
DECISIVE = (
    *("bucket", "key", "version_id", "etag", "size", "last_modified", "is_latest", "is_deleted"),
    *("is_delete_marker", "dialect", "check_after"),
    *(f.name for f in ORDER),
    *PLACE.names,
)
#: The columns of the table that contain them.
READ_TO_DECIDE = pa.schema([f for f in BASE if f.name in DECISIVE or f.name == "frazil_order"])
#: The other columns of a change. Between stages they are one value, because only those of winners are read.
CONTENT = tuple(f.name for f in EVIDENCE if f.name not in DECISIVE)
#: A row is a stored row, a change, or an annotation of a version.
NOTE = pa.field("note", pa.binary())
PACKED = pa.schema([*(EVIDENCE.field(name) for name in DECISIVE), pa.field("content", pa.binary()), NOTE])


def packed(evidence: pa.Table) -> pa.Table:
    """Packs evidence of changes for the shuffle between two stages, where every column of a row costs twice."""
    columns = [evidence.column(name).to_pylist() for name in CONTENT]
    content = pa.array([pickle.dumps(row, -1) for row in zip(*columns, strict=True)], pa.binary())
    made = evidence.select(list(DECISIVE)).append_column("content", content)
    return made.append_column(NOTE, pa.nulls(made.num_rows, NOTE.type))


def packed_notes(notes: Sequence[Annotation]) -> pa.Table:
    """Packs annotations for the same shuffle, which brings them to the rows with their key."""
    named = {name: [getattr(note, name) for note in notes] for name in ("bucket", "key", "version_id")}
    named[NOTE.name] = [pickle.dumps(note, -1) for note in notes]
    return pa.table(
        [pa.array(named[f.name], f.type) if f.name in named else pa.nulls(len(notes), f.type) for f in PACKED],
        schema=PACKED,
    )


def unpack_notes(rows: pa.Table) -> list[Annotation]:
    """Unpacks annotations, in log order."""
    notes: list[Annotation] = [pickle.loads(data) for data in rows.column(NOTE.name).to_pylist()]  # noqa: S301 - our own
    return sorted(notes, key=lambda note: (note.offset, note.index))


def unpack_evidence(rows: pa.Table) -> pa.Table:
    """Unpacks evidence."""
    values = [pickle.loads(text) for text in rows.column("content").to_pylist()]  # noqa: S301 - from our own tasks
    turned = list(zip(*values, strict=True)) if values else [()] * len(CONTENT)
    made = {name: rows.column(name) for name in DECISIVE}
    made |= {name: pa.array(of, EVIDENCE.field(name).type) for name, of in zip(CONTENT, turned, strict=True)}
    return _table(made)


def of_stored(rows: pa.Table) -> pa.Table:
    """Converts stored rows and their positions to evidence. Missing columns are null."""
    order = rows.column("frazil_order").combine_chunks()
    parts = {f.name: pc.struct_field(order, f.name) for f in ORDER}
    return _table({name: rows.column(name) for name in rows.column_names if name != "frazil_order"} | parts)


def of_changes(changes: pa.Table) -> pa.Table:
    """Converts changes to evidence, without those that need a HEAD request.

    Events of a second dialect cannot be compared with those of the first: they count as observations at their time.
    """
    usable = pc.is_valid(changes.column("sequence"))
    is_observed = pc.equal(changes.column("dialect"), OBSERVED)
    changes = changes.filter(pc.or_(usable, is_observed))
    return _evidence(changes, _as_bool(pc.equal(changes.column("dialect"), OBSERVED)))


def unverified(changes: pa.Table) -> pa.Table:
    """Converts changes to observations at their time, to be checked as soon as possible."""
    seen = _evidence(changes, np.ones(changes.num_rows, bool))
    return _table({name: seen.column(name) for name in seen.column_names} | {"check_after": changes.column("time")})


def demote(evidence: pa.Table, rows: Any) -> pa.Table:
    """Turns the events in some rows into observations at their time."""
    mask = pa.array(rows)
    gone = pc.is_valid(evidence.column("deleted"))
    time = pc.coalesce(*(evidence.column(f"{name}_time") for name in REGISTERS))
    made = {name: evidence.column(name) for name in evidence.column_names}
    made["observed_time"] = pc.if_else(mask, time, evidence.column("observed_time"))
    made["observed_gone"] = pc.if_else(mask, gone, evidence.column("observed_gone"))
    for name in (*REGISTERS, "classed"):
        for column in (name, f"{name}_time"):
            made[column] = pc.if_else(mask, pa.scalar(None, EVIDENCE.field(column).type), evidence.column(column))
    for column in ("sequencer", "sequence", "dialect"):
        made[column] = pc.if_else(mask, pa.scalar(None, pa.string()), evidence.column(column))
    return _table(made)


def _evidence(changes: pa.Table, observed: Any) -> pa.Table:
    kind = changes.column("record_type")
    text = pc.binary_join_element_wise(changes.column("sequence"), changes.column("tie"), "/")
    time = changes.column("time")
    made: dict[str, Any] = {n: changes.column(n) for n in changes.column_names if n in EVIDENCE.names}
    event = pa.array(~observed)
    seen = pa.array(observed)
    for name, record_type in REGISTERS.items():
        mask = pc.and_(event, pc.equal(kind, record_type))
        made[name] = _where(mask, text)
        made[f"{name}_time"] = _where(mask, time)
    classed = pc.is_valid(changes.column("storage_class"))
    made |= {name: _where(classed, made[name.replace("classed", "updated")]) for name in ("classed", "classed_time")}
    made["observed_time"] = _where(seen, time)
    made["observed_gone"] = _where(seen, pc.equal(kind, DELETE))
    made["observed_latest"] = _where(seen, changes.column("is_latest"))
    made["dialect"] = _where(event, changes.column("dialect"))
    made["is_latest"] = pa.nulls(len(changes), pa.bool_())
    return _table(made)


def _where(mask: Any, values: Any) -> Any:
    return pc.if_else(mask, values, pa.scalar(None, values.type))


def _as_bool(column: Any) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.asarray(column.to_numpy(zero_copy_only=False) if isinstance(column, pa.Array) else column.to_numpy())


def _table(columns: dict[str, Any]) -> pa.Table:
    count = len(next(iter(columns.values())))
    made = [columns.get(f.name, pa.nulls(count, f.type)) for f in EVIDENCE]
    return pa.table([_cast(c, f.type) for c, f in zip(made, EVIDENCE, strict=True)], schema=EVIDENCE)


def _cast(column: Any, kind: pa.DataType) -> Any:
    return column if column.type == kind else column.cast(kind)
