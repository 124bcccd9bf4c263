"""Migrates documents in processes that kill themselves (SIGKILL) at a step.

    python -m tests.migration_victim sqlite SOURCE FOLDER FIRST EVERY
    python -m tests.migration_victim iceberg SOURCE HOME STEP

A step is an SQL statement or a commit, of either store; on Iceberg also a staged file and an append to the log, before
and after. The first form does this again and again with new SQLite files, compares the target after each kill and
repeats the migration; it prints one JSON object per step, until a migration ends before its step.
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

from frazil.documents.iceberg.staging import Staging
from frazil.documents.migration import plan_migration, run_migration
from frazil.documents.open import open_store
from frazil.documents.sql import reads
from frazil.documents.sql.engine import open_sqlite
from frazil.documents.sql.reads import SqlReads
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import DocumentStore
from frazil.log import Log
from frazil.settings import load_settings

NAMES = ("source", "target")


def migrate(source: str, target: DocumentStore) -> None:
    opened = SqlReads(open_sqlite(Path(source), read_only=True), b"")
    with target as store:
        run_migration(opened, store, plan_migration(opened, store, NAMES))


def kill_at(step: int) -> None:
    left = step

    def count(*_: Any, **__: Any) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            count()
            made = function(*args, **kwargs)
            count()
            return made

        return call

    event.listen(Engine, "before_cursor_execute", count)
    event.listen(Engine, "commit", count)
    Staging.write = counted(Staging.write)  # type: ignore[method-assign]
    Log.append = counted(Log.append)  # type: ignore[method-assign]


def main(source: str, folder: str, first: int, every: int) -> None:
    step = first
    while True:
        target = f"{folder}/{step}.db"
        child = os.fork()
        if child == 0:
            kill_at(step)
            migrate(source, SqlDocumentStore(f"sqlite:///{target}"))
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
    if sys.argv[1] == "iceberg":
        settings = load_settings(flags={"home": sys.argv[3]}, environ={})
        kill_at(int(sys.argv[4]))
        migrate(sys.argv[2], open_store(settings, "iceberg"))
    else:
        main(sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
