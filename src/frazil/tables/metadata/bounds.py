"""The bounds of a column: the lowest and the highest value that a file may have, as its manifest records them.

A bound may lie beyond the values, because long texts are cut. Where there is none, the file may have any value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyiceberg.manifest import DataFile
    from pyiceberg.types import NestedField

#: Stand for missing bounds of integers and times: a file without statistics may have any value.
LOWEST, HIGHEST = -(2**63), 2**63 - 1


def decode_bound(bounds: Mapping[int, bytes] | None, field_id: int, kind: Any) -> Any:
    """Decodes the lower or upper bound of a column of a type; None if there is none. Times are integers."""
    from pyiceberg.conversions import from_bytes

    raw = (bounds or {}).get(field_id)
    return None if raw is None else from_bytes(kind, raw)


def decode_bounds(file: DataFile, field: NestedField) -> tuple[Any, Any]:
    """Returns the lower and the upper bound of a column in a file; None for one that is missing."""
    lower = decode_bound(file.lower_bounds, field.field_id, field.field_type)
    return lower, decode_bound(file.upper_bounds, field.field_id, field.field_type)


def decode_integer_bounds(file: DataFile, field: NestedField) -> tuple[int, int]:
    """Returns both bounds of a column of integers or times; `LOWEST` or `HIGHEST` for one that is missing."""
    lower, upper = decode_bounds(file, field)
    return LOWEST if lower is None else int(lower), HIGHEST if upper is None else int(upper)
