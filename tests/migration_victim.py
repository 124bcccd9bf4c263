"""Migrates between two SQLite files in child processes that kill themselves (SIGKILL) at a step.

    python -m tests.migration_victim SOURCE FOLDER FIRST EVERY

A step is an SQL statement or a commit, of either store. After each kill the target is compared and the migration
repeated. Prints one JSON object per step, until a migration ends before its step.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.engine import Engine

from frazil.documents.migration import plan_migration, run_migration
from frazil.documents.sql import reads
from frazil.documents.sql.engine import open_sqlite
from frazil.documents.sql.reads import SqlReads
from frazil.documents.sql.store import SqlDocumentStore

NAMES = ("source", "target")


def migrate(source: str, target: str) -> None:
    opened = SqlReads(open_sqlite(Path(source), read_only=True), b"")
    with SqlDocumentStore(f"sqlite:///{target}") as store:
        run_migration(opened, store, plan_migration(opened, store, NAMES))


def migrate_until(source: str, target: str, step: int) -> None:
    left = step

    def count(*_: Any, **__: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)
    migrate(source, target)


def main(source: str, folder: str, first: int, every: int) -> None:
    step = first
    while True:
        target = f"{folder}/{step}.db"
        child = os.fork()
        if child == 0:
            migrate_until(source, target, step)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(json.dumps(judge(step, source, target, was_killed=os.WIFSIGNALED(status))), flush=True)
        if not os.WIFSIGNALED(status):
            return
        step += every


def judge(step: int, source: str, target: str, *, was_killed: bool) -> dict[str, Any]:
    """Says what a migration has left behind, and what its repetition makes of it."""
    opened = SqlReads(open_sqlite(Path(source), read_only=True), b"")
    with SqlDocumentStore(f"sqlite:///{target}") as store:
        found = plan_migration(opened, store, NAMES)
        report = run_migration(opened, store, found)
        return {
            "step": step,
            "killed": was_killed,
            "present": found.present,
            "loaded": report.loaded,
            "same": store.fingerprint() == opened.fingerprint(),
        }


if __name__ == "__main__":
    reads._HISTORY_BATCH = reads._TABLE_BATCH = 4  # type: ignore[misc]
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
