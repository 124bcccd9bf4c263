"""The files of a table whose content a repository has, by path and size; on disk where they are many."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass

#: Kilobytes of memory. What is beyond that goes to a temporary file, which SQLite removes itself.
_CACHE_KB = 16_384


@dataclass(frozen=True)
class KnownFile:
    """A file that is in the index.

    Attributes:
        sha256: of its content; None: it is referenced, not copied.
        is_new: no earlier backup has it.
        is_certain: the repository has the content, rather than had it when a create did not finish.
    """

    sha256: str | None
    is_new: bool
    is_certain: bool


_OLD, _NEW, _UNCERTAIN = 0, 1, 2


class FileIndex:
    """Files by path and size. For one thread; close it in the end."""

    def __init__(self) -> None:
        self._db = sqlite3.connect("", isolation_level=None)
        self._db.execute(f"PRAGMA cache_size = -{_CACHE_KB}")
        self._db.execute("PRAGMA journal_mode = OFF")
        self._db.execute(
            "CREATE TABLE files (key BLOB PRIMARY KEY, size INTEGER, sha256 BLOB, origin INTEGER, round INTEGER)"
            " WITHOUT ROWID"
        )

    def add_old(self, files: Iterable[tuple[str, int, str | None]]) -> None:
        """Adds files of an earlier backup."""
        self._add(files, _OLD)

    def add_uncertain(self, files: Iterable[tuple[str, int, str | None]]) -> None:
        """Adds what creates that did not finish say they have copied."""
        self._add(files, _UNCERTAIN)

    def add_new(self, path: str, size: int, sha256: str | None) -> None:
        """Adds a file that this backup has copied."""
        self._db.execute(
            "INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?, 0)", (_key(path, size), size, _digest(sha256), _NEW)
        )

    def find(self, path: str, size: int) -> KnownFile | None:
        row = self._db.execute("SELECT sha256, origin FROM files WHERE key = ?", (_key(path, size),)).fetchone()
        if row is None:
            return None
        return KnownFile(row[0] and row[0].hex(), row[1] != _OLD, row[1] != _UNCERTAIN)

    def mark(self, path: str, size: int, round_: int) -> bool:
        """Marks a file as one that a round has met; returns False if it was marked before."""
        done = self._db.execute(
            "UPDATE files SET round = ? WHERE key = ? AND round != ?", (round_, _key(path, size), round_)
        )
        return done.rowcount == 1

    def close(self) -> None:
        self._db.close()

    def _add(self, files: Iterable[tuple[str, int, str | None]], origin: int) -> None:
        rows = ((_key(path, size), size, _digest(sha256), origin) for path, size, sha256 in files)
        self._db.execute("BEGIN")
        self._db.executemany("INSERT OR IGNORE INTO files VALUES (?, ?, ?, ?, 0)", rows)
        self._db.execute("COMMIT")


def _key(path: str, size: int) -> bytes:
    return hashlib.blake2b(f"{size} {path}".encode(errors="surrogatepass"), digest_size=16).digest()


def _digest(sha256: str | None) -> bytes | None:
    return None if sha256 is None else bytes.fromhex(sha256)
