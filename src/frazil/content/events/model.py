"""The result of parsing a message: changes, and problems with their reasons."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from frazil.content.annotations.messages import Annotation

AUTO: Final = "auto"
AWS: Final = "aws"
MINIO: Final = "minio"
CEPH: Final = "ceph"
VERSITYGW: Final = "versitygw"
OTHER: Final = "other"

#: The dialects. `other` has no reliable order, so that HEAD requests decide.
DIALECTS: Final = (AWS, MINIO, CEPH, VERSITYGW, OTHER)

#: Reasons why a message, or one record of it, is unreadable. docs/events.md explains each.
REASONS: Final = (
    "not_json",
    "too_deep",
    "not_an_event",
    "sns_confirmation",
    "untrusted",
    "unknown_dialect",
    "unknown_event",
    "version",
    "no_bucket",
    "bad_bucket",
    "no_key",
    "bad_key",
    "bad_version_id",
    "bad_time",
    "bad_number",
    "bad_text",
)

#: A record under the names of the columns of CHANGE, all but `offset`.
Change = dict[str, Any]


@dataclass(frozen=True)
class Problem:
    """A message, or one record of it, that cannot be used."""

    reason: str
    error: str
    index: int = 0


@dataclass
class Parsed:
    """The parsed message: its changes, its problems, and the number of records that change nothing.

    Or what it says of rows (notes), or of the table (orders).
    """

    changes: list[Change] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    ignored: int = 0
    notes: list[Annotation] = field(default_factory=list)
    orders: list[dict[str, Any]] = field(default_factory=list)


class Unreadable(Exception):  # noqa: N818  # it never leaves this package: it becomes a Problem
    """Raised for a record, or a whole message, that cannot be parsed."""

    def __init__(self, reason: str, error: str) -> None:
        super().__init__(error)
        self.reason = reason
