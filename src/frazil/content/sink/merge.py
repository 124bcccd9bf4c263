"""Merges changes and annotations with the stored rows of the same keys. Both sink and reads use it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.annotations.apply import apply_notes
from frazil.content.annotations.carry_over import Fetch, Shape, complete_rows
from frazil.content.columns import BASE
from frazil.content.fields import Fields
from frazil.content.sink.evidence import NOTE, READ_TO_DECIDE, of_stored, packed_notes, unpack_evidence, unpack_notes
from frazil.content.sink.resolve import Resolved, decide


def merge_changes(everything: pa.Table, fetch: Fetch, shape: Shape, fields: Fields, skew_s: float) -> Resolved | None:
    """Decides the state of each version. Returns the rows that change, with the positions they replace.

    Args:
        everything: in the schema `PACKED`: changes, annotations, and positions of all stored rows with the same keys.
        fetch: reads columns of stored rows by file and position.
        shape: the columns that no event sets.
        fields: the custom columns.
        skew_s: maximum clock skew.

    Returns:
        The rows that change; None if there are neither changes nor stored rows.
    """
    is_note, is_stored = (pc.is_valid(everything.column(name)) for name in (NOTE.name, "_file"))
    notes = unpack_notes(everything.filter(is_note))
    stored = _read_stored(everything.filter(is_stored), fetch, shape)
    changes = unpack_evidence(everything.filter(pc.invert(pc.or_(is_note, is_stored))))
    evidence = pa.concat_tables([of_stored(stored), changes])
    if not evidence.num_rows:
        return None  # annotations of unknown versions
    decision = decide(evidence, skew_s, packed_notes(notes))
    base = decision.rows(fetch(BASE, *decision.needed()))
    rows = complete_rows(decision, base, stored, shape, fetch)
    rows, touched = apply_notes(rows, notes, decision.noted.tolist(), fields)
    wanted = decision.changed | touched
    return Resolved(rows.filter(pa.array(wanted)), *decision.replaced(wanted))


def _read_stored(rows: pa.Table, fetch: Fetch, shape: Shape) -> pa.Table:
    """Reads the columns of stored rows that the decision needs, by their positions."""
    place = rows.select(["_file", "_pos"]).combine_chunks()
    files, positions = (place.column(name).combine_chunks() for name in place.column_names)
    stored = fetch(pa.schema([*READ_TO_DECIDE, *shape.people]), files, positions)
    return stored.append_column("_file", files).append_column("_pos", positions)
