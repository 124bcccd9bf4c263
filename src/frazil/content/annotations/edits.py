"""An edit by a person: tags, a note or a rating of one object, or the erasure of its metadata.

It needs no library, so that a command can send it to a server at once.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from types import EllipsisType
from typing import Any, Final

from frazil.content.buckets import require_text
from frazil.errors import UsageError

MAX_TAG: Final = 128
MAX_TAGS: Final = 100
MAX_NOTE: Final = 64 * 1024

#: Marks what an edit does not change.
STAYS: Final = ...


@dataclass(frozen=True)
class Edit:
    """An edit of one object.

    Attributes:
        key: its key.
        version_id: which version; None: the latest that is there, and for `erase` all of them.
        add: tags that it gets.
        remove: tags that it loses.
        only: all the tags that it has from now on, before `add` and `remove`; None: those that it has.
        note: a text; None: it has none any more.
        rating: 1 to 5; None: it has none any more.
        erase: forget all that was extracted or entered.
    """

    key: str
    version_id: str | None = None
    add: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    note: str | EllipsisType | None = STAYS
    rating: int | EllipsisType | None = STAYS
    erase: bool = False

    def check(self) -> None:
        """Raises UsageError if the edit is invalid or empty."""
        require_text(self.key, "key")
        if not self.key:
            raise UsageError("the key is empty", hint="the object's key, or path in the folder")
        for tag in (*self.add, *self.remove, *(self.only or ())):
            check_tag(tag)
        if both := sorted(set(self.add) & set(self.remove)):
            raise UsageError(f"the tag '{both[0]}' is both added and removed", hint="one of them")
        if isinstance(self.note, str):
            _check_note(self.note)
        if isinstance(self.rating, int) and not 1 <= self.rating <= 5:
            raise UsageError(f"a rating is 1 to 5, not {self.rating}", hint="a number from 1 to 5")
        entered = self.add or self.remove or self.only is not None or self.note is not STAYS or self.rating is not STAYS
        if self.erase and entered:
            raise UsageError("an erasure cannot have tags, note or rating", hint="erase it, or edit it")
        if not self.erase and not entered:
            raise UsageError(f"nothing is said of '{self.key}'", hint="tags, a note, a rating, or erase")

    def tags(self, had: Iterable[str]) -> list[str]:
        """Returns the tags after the edit, computed as in the sink."""
        before = had if self.only is None else self.only
        return [tag for tag in dict.fromkeys((*before, *self.add)) if tag not in self.remove]

    def entry(self, row: dict[str, Any]) -> dict[str, Any]:
        """Returns the entry of the message, for one row."""
        entry: dict[str, Any] = {"key": row["key"], "version_id": row["version_id"]}
        if self.erase:
            # Applies to this content only; later content of the same key is unaffected.
            return entry | {"erase": True, "etag": row["etag"]}
        if self.only is not None:
            entry["set"] = list(dict.fromkeys(self.only))
        entry |= {name: list(tags) for name, tags in (("add", self.add), ("remove", self.remove)) if tags}
        entry |= {name: value for name in ("note", "rating") if (value := getattr(self, name)) is not STAYS}
        return entry


def check_tag(tag: str) -> None:
    """Raises UsageError if a tag is invalid."""
    require_text(tag, "tag")
    if not tag.strip():
        raise UsageError("a tag is empty", hint="a word, such as holiday")
    if len(tag) > MAX_TAG:
        raise UsageError(f"the tag '{tag[:20]}…' has {len(tag)} characters", hint=f"at most {MAX_TAG}")
    if any(unicodedata.category(char) == "Cc" for char in tag):
        raise UsageError(f"the tag {tag!r} has a control character", hint="letters, digits and other visible ones")


def _check_note(note: str) -> None:
    require_text(note, "note")
    size = len(note.encode())
    if size > MAX_NOTE:
        raise UsageError(f"the note has {size:,} bytes", hint=f"at most {MAX_NOTE:,}")
    if "\x00" in note:
        raise UsageError("the note has a NUL character", hint="text")
