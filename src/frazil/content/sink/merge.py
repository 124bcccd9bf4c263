"""Merges changes and notes with the stored rows of the same keys: the decision behind sink and reads alike."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.annotations.apply import apply_notes
from frazil.content.annotations.carry_over import Fetch, Shape, whole_rows
from frazil.content.columns import BASE
from frazil.content.fields import Fields
from frazil.content.sink.evidence import NOTE, READ_TO_DECIDE, of_stored, packed_notes, unpacked, unpacked_notes
from frazil.content.sink.resolve import Resolved, decide


def merge_changes(everything: pa.Table, fetch: Fetch, shape: Shape, fields: Fields, skew_s: float) -> Resolved | None:
    """Decides what is true of each version, and returns the rows that change with the positions they replace.

    Args:
        everything: in the schema `PACKED`: changes, notes, and the places of all stored rows with the same keys.
        fetch: reads columns of stored rows by file and position.
        shape: the columns that no event speaks of.
        fields: the custom columns.
        skew_s: how far clocks may differ.

    Returns:
        The rows that change; None if there are neither changes nor stored rows.
    """
    is_note, is_stored = (pc.is_valid(everything.column(name)) for name in (NOTE.name, "_file"))
    notes = unpacked_notes(everything.filter(is_note))
    stored = _read_stored(everything.filter(is_stored), fetch, shape)
    changes = unpacked(everything.filter(pc.invert(pc.or_(is_note, is_stored))))
    evidence = pa.concat_tables([of_stored(stored), changes])
    if not evidence.num_rows:
        return None  # notes about unknown versions
    decision = decide(evidence, skew_s, packed_notes(notes))
    base = decision.rows(fetch(BASE, *decision.needed()))
    rows = whole_rows(decision, base, stored, shape, fetch)
    rows, touched = apply_notes(rows, notes, decision.noted.tolist(), fields)
    wanted = decision.changed | touched
    return Resolved(rows.filter(pa.array(wanted)), *decision.replaced(wanted))


def _read_stored(rows: pa.Table, fetch: Fetch, shape: Shape) -> pa.Table:
    """Reads what the decision needs of stored rows, of which only the places are known."""
    place = rows.select(["_file", "_pos"]).combine_chunks()
    files, positions = (place.column(name).combine_chunks() for name in place.column_names)
    stored = fetch(pa.schema([*READ_TO_DECIDE, *shape.people]), files, positions)
    return stored.append_column("_file", files).append_column("_pos", positions)
