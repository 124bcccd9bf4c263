"""Notes as the sink has them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Annotation:
    """What one message says of one row.

    Attributes:
        kind: extraction or edit.
        bucket: of the row.
        key: of the row.
        version_id: of the row.
        offset: of the message; with `index` it is the order in which notes are applied.
        index: which entry of the message.
        at: when it was made, as text.
        body: the entry as it was sent.
    """

    kind: str
    bucket: str
    key: str
    version_id: str
    offset: int
    index: int
    at: str
    body: dict[str, Any]
