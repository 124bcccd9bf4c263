"""The SQL of docs/search.md, and a table on which each query finds something."""

from __future__ import annotations

import json
import re
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.content_kit import an_object

_PAGE = (Path(__file__).parents[1] / "docs" / "search.md").read_text()
_EXAMPLES = re.findall(r"^```sql\n-- (duckdb|spark|both): (\w+)\n(.*?);\n```$", _PAGE, re.DOTALL | re.MULTILINE)

CAT, COPY, HERON = "2024/cat.jpg", "2024/copy.jpg", "2023/heron.png"
#: Example → what it finds.
ANSWERS: dict[str, list[tuple[Any, ...]]] = {
    "labels": [(CAT, ["tabby cat", "sofa"]), (COPY, ["tabby cat"])],
    "json": [(CAT, "EOS R5")],
    "box": [("2023/fiji.png", -17.5, -179.5), (HERON, -17.0, 179.0)],
    "radius": [(CAT, 0.0), (COPY, 4.064)],
    "similar": [(CAT, 0), (COPY, 1)],
    "duplicates": [("aa", 2, 5_000_000, CAT)],
    "years": [(2023, 1, 2_000_000), (2024, 2, 10_000_000)],
    "counts": [("tabby cat", 2), ("heron", 1), ("sofa", 1)],
    "tags": [(CAT,), (COPY,)],
}


def examples(dialect: str) -> dict[str, str]:
    """The queries for an engine, by name."""
    return {name: text for of, name, text in _EXAMPLES if of in (dialect, "both")}


def rows() -> list[dict[str, Any]]:
    gone = {"labels": ["tabby cat"], "is_latest": False, "perceptual_hash": 15, "content_hash": "aa", "size": 9}
    return [
        an_object(
            CAT, size=5_000_000, labels=["tabby cat", "sofa"], taken_at=datetime(2024, 5, 1, 12), latitude=48.8584,
            longitude=2.2945, perceptual_hash=0b1111, content_hash="aa", user_tags=["best"],
            metadata=json.dumps({"exif": {"Model": "EOS R5", "ISOSpeedRatings": 800}}),
        ),
        an_object(
            COPY, size=5_000_000, labels=["tabby cat"], taken_at=datetime(2024, 5, 2), latitude=48.86,
            longitude=2.35, perceptual_hash=0b1101, content_hash="aa", tags=[("project", "birds")],
        ),
        an_object(
            HERON, size=2_000_000, labels=["heron"], taken_at=datetime(2023, 12, 31), latitude=-17.0, longitude=179.0,
            perceptual_hash=-1, content_hash="bb", metadata=json.dumps({"exif": {"ISOSpeedRatings": 100}}),
        ),
        an_object("2023/fiji.png", latitude=-17.5, longitude=-179.5),
        an_object("gone.jpg", is_deleted=True, **gone),
        an_object("old.jpg", version_id="v1", **gone),
    ]  # fmt: skip


def plain(found: Any) -> list[tuple[Any, ...]]:
    """Rows of an Arrow table."""
    return [tuple(row.values()) for row in found.to_pylist()]
