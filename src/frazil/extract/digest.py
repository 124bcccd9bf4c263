"""The extractor `hash`: the SHA-256 of the content."""

from __future__ import annotations

import hashlib
from typing import Any

from frazil.extract import Item, TooMuch, extractor

_PIECE = 1 << 20


@extractor(
    "hash",
    version="1",
    reads="whole",
    fields={"sha256": "of the content, 64 hex digits"},
)
def HASH(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """Computes the SHA-256 of an object, by which duplicates are found."""
    most = item.limits.max_bytes
    if item.size > most:
        raise TooMuch(f"{item.size} bytes are more than {most}")
    digest = hashlib.sha256()
    with item.open() as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return {"sha256": digest.hexdigest()}
