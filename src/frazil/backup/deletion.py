"""Deletes backups by name. What they alone needed is left to prune."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from frazil.backup.repository import Repository, record_key
from frazil.errors import IntegrityError, LockedError, UnsupportedError


def require_deletable(repository: Repository, names: Sequence[str]) -> None:
    """Checks that backups exist, whether or not their records can be read, and that they may be deleted.

    Raises:
        NotFoundError: there is no backup of such a name; the hint offers near names.
        LockedError: Object Lock protects one.
    """
    for name in names:
        with suppress(IntegrityError, UnsupportedError):  # a damaged record is a reason to delete it
            repository.read_record(name)
        until = repository.find_lock(record_key(name))
        if until is not None:
            raise LockedError(
                f"backup '{name}' is locked until {until:%Y-%m-%d %H:%M} UTC", hint="repeat when that is over"
            )


def delete_backups(repository: Repository, names: Sequence[str]) -> None:
    """Deletes the records of backups.

    Raises:
        LockedError: Object Lock protects one. Those before it are deleted.
    """
    for name in names:
        until = repository.remove(record_key(name))
        if until is not None:
            raise LockedError(f"backup '{name}' is locked until {until:%Y-%m-%d %H:%M} UTC")
