"""Carries columns that no event sets from the stored row into the row that replaces it.

Extracted metadata stays while the content is the same. What people have entered, and columns that other programs added
to the table, stay with the key.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.annotations.apply import PENDING
from frazil.content.columns import EXTRACTED, OBJECTS, USERS
from frazil.content.fields import Fields
from frazil.content.sink.resolve import Decision

Fetch = Callable[[pa.Schema, pa.Array, pa.Array], pa.Table]


@dataclass(frozen=True)
class Shape:
    """The kinds of columns of a table.

    Attributes:
        found: columns that belong to the content: standard and custom columns.
        people: columns that belong to the key: what people have entered, and columns of other programs.
    """

    found: pa.Schema
    people: pa.Schema

    @classmethod
    def of(cls, table: pa.Schema, fields: Fields) -> Shape:
        extra = [pa.field(f.name, f.type) for f in table if f.name not in OBJECTS.names]
        custom = set(fields.own_names)
        # The documents of many rows exceed 32-bit offsets.
        found = [f.with_type(pa.large_string()) if f.name == "metadata" else f for f in EXTRACTED]
        return cls(
            pa.schema([*found, *(f for f in extra if f.name in custom)]),
            pa.schema([*USERS, *(f for f in extra if f.name not in custom)]),
        )


def complete_rows(decision: Decision, base: pa.Table, stored: pa.Table, shape: Shape, fetch: Fetch) -> pa.Table:
    """Completes rows with all columns of the table.

    Args:
        decision: the rows to write.
        base: these rows, with the columns that events and observations decide.
        stored: the first rows of the evidence, with the columns of `shape.people`.
        shape: the other columns.
        fetch: reads columns of stored rows by file and position.
    """
    before = decision.before
    carried = stored.select(shape.people.names).combine_chunks().take(pa.array(before, mask=before < 0))
    same = np.flatnonzero(decision.same_content)
    kept = fetch(shape.found, *decision.places(before[same]))
    index = np.full(base.num_rows, -1, np.int64)
    index[same] = np.arange(len(same))
    found = kept.combine_chunks().take(pa.array(index, mask=index < 0))
    made = {f.name: base.column(f.name) for f in base.schema}
    made |= {name: carried.column(name) for name in carried.column_names}
    made |= {name: found.column(name) for name in found.column_names}
    made["extraction_status"] = _status(made)
    fields = [*base.schema, *shape.found, *shape.people]
    return pa.table([made[f.name] for f in fields], schema=pa.schema([pa.field(f.name, f.type) for f in fields]))


def _status(columns: dict[str, Any]) -> Any:
    """Returns the extraction status: pending without results; null for tombstones and delete markers."""
    nothing = pc.or_(columns["is_deleted"], columns["is_delete_marker"])
    waits = pc.fill_null(columns["extraction_status"], PENDING)
    return pc.if_else(nothing, pa.scalar(None, pa.string()), waits)
