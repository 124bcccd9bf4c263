"""Marks of a prune: lists of blobs that are to be deleted, and the steps that each of them has taken.

A step is an object that is created only where there is none, so that of two who want to take the next step one does.
That is all that prunes and creates agree through; no other lock exists.

    (none) ──► delete ──► delete … ──► done      by a prune; repeated while it runs, taken over when it is silent
       └─────► cancel                            by a create that needs one of the blobs
"""

from __future__ import annotations

import json
import re
import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Literal

from frazil.backup.format import BlobRef, compress, decompress, seal, unseal
from frazil.backup.references import KINDS, Kind
from frazil.backup.repository import Repository
from frazil.errors import ConflictError, IntegrityError, NotFoundError

Action = Literal["delete", "cancel", "done"]
#: A prune that deletes repeats its step far more often. After so long without one it counts as dead.
SILENT = timedelta(minutes=15)

_MARK = re.compile(r"prune/([0-9a-f-]{36})\.json\.zst")
_STEP = re.compile(r"prune/([0-9a-f-]{36})\.([0-9]{6})\.json")


@dataclass(frozen=True)
class Step:
    """The last step that a mark has taken; `at` by the storage's clock."""

    number: int
    action: Action
    by: str
    at: datetime


@dataclass(frozen=True)
class Mark:
    """A mark; `created_at` by the storage's clock. None: only its steps are left."""

    id: str
    created_at: datetime | None
    step: Step | None
    keys: tuple[str, ...]

    @property
    def is_waiting(self) -> bool:
        return self.step is None

    @property
    def is_over(self) -> bool:
        return self.step is not None and self.step.action != "delete"

    def is_silent(self, now: datetime) -> bool:
        """Whether the prune that began to delete seems to be dead."""
        return self.step is not None and self.step.action == "delete" and now - self.step.at >= SILENT


def list_marks(repository: Repository) -> list[Mark]:
    """Returns all marks, the oldest first."""
    marks: dict[str, datetime] = {}
    steps: dict[str, list[tuple[int, str, datetime]]] = {}
    for info in repository.store.list("prune"):
        if match := _MARK.fullmatch(info.key):
            marks[match[1]] = info.last_modified
        elif match := _STEP.fullmatch(info.key):
            steps.setdefault(match[1], []).append((int(match[2]), info.key, info.last_modified))
    found = []
    for mark_id in {*marks, *steps}:
        taken = sorted(steps.get(mark_id, []))
        keys = ([_mark_key(mark_id)] if mark_id in marks else []) + [key for _, key, _ in taken]
        step = _read_step(repository, *taken[-1]) if taken else None
        found.append(Mark(mark_id, marks.get(mark_id), step, tuple(keys)))
    return sorted(found, key=lambda mark: (mark.created_at is not None, mark.created_at or 0, mark.id))


def _read_step(repository: Repository, number: int, key: str, at: datetime) -> Step:
    where = f"{repository.root}/{key}"
    try:
        found = unseal(repository.store.get(key), where, what="step of a prune")
        return Step(number, found["action"], found["by"], at)
    except (IntegrityError, KeyError, NotFoundError):
        # Damaged: as if a prune were deleting. When it is silent for long enough, the mark is taken over or ended.
        return Step(number, "delete", "", at)


def advance(repository: Repository, mark: Mark, action: Action, by: str) -> Mark | None:
    """Takes the next step of a mark; None: another process took it."""
    number = 1 if mark.step is None else mark.step.number + 1
    key = f"prune/{mark.id}.{number:06}.json"
    try:
        repository.store.put_if_absent(key, seal({"action": action, "by": by, "token": uuid.uuid4().hex}))
    except ConflictError:
        return None
    at = repository.store.head(key).last_modified
    return Mark(mark.id, mark.created_at, Step(number, action, by, at), (*mark.keys, key))


def write_mark(repository: Repository, blobs: dict[Kind, list[BlobRef]]) -> str:
    """Marks blobs for deletion; returns the id of the mark."""
    mark_id = str(uuid.uuid4())
    content = seal({"id": mark_id, **{kind: [str(blob) for blob in blobs[kind]] for kind in KINDS}})
    repository.store.put(_mark_key(mark_id), compress(content))
    return mark_id


def read_mark(repository: Repository, mark: Mark) -> dict[Kind, list[BlobRef]] | None:
    """Returns the blobs of a mark; None: it is damaged, or was removed."""
    key = _mark_key(mark.id)
    where = f"{repository.root}/{key}"
    try:
        found = unseal(decompress(repository.store.get(key), where), where, what="mark of a prune")
        return {kind: [BlobRef.parse(name) for name in found[kind]] for kind in KINDS}
    except (IntegrityError, NotFoundError, KeyError, json.JSONDecodeError):
        return None


def remove_mark(repository: Repository, mark: Mark) -> None:
    """Removes a mark and then its steps: without them it would count as waiting."""
    for key in mark.keys:
        repository.discard(key)


def _mark_key(mark_id: str) -> str:
    return f"prune/{mark_id}.json.zst"
