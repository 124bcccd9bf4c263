"""What `tests/component/test_witness.py` watches from outside: `python -m tests.witness_work FOLDER`.

It publishes, commits and removes as the product does, and writes into the file `points` what it believes to be on disk.
"""

from __future__ import annotations

import os
import sys
import uuid
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from frazil.log.batch import Batch
from frazil.observe.faultpoints import handled
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import open_store
from frazil.tables import TableStore, commit_append, find_position
from frazil.tables.writing.data_files import WriteTarget
from frazil.tables.writing.position_deletes import write_position_deletes
from frazil.topics.layout import ARCHIVE
from frazil.topics.storage import open_storage
from tests.golden_make import settings_of
from tests.sink_kit import SinkKit, sink_kit_of
from tests.tables import Wrapped, applied_but_lost

TOPIC = "orders"


class CrashError(BaseException):
    pass


class Work:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._points = os.open(folder / "points", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
        self._number = 0

    def point(self, name: str) -> None:
        os.write(self._points, f"{name}\n".encode())

    def publish(self, kit: SinkKit, count: int = 1) -> None:
        """A segment has room for about three of these."""
        for _ in range(count):
            self._number += 1
            kit.publish(TOPIC, b"%d " % self._number + b"=" * 1000)
            self.point(f"published {self._number}")

    def log(self, kit: SinkKit) -> None:
        kit.create(TOPIC)
        self.point("created")
        self.publish(kit, 8)
        kit.log.register(TOPIC, "billing")
        self.point("registered")
        kit.log.commit(TOPIC, "dashboard", 3)
        self.point("subscribed")
        kit.log.configure(TOPIC, {"retention_bytes": 0})
        self.point("configured")
        kit.log.append_many(TOPIC, [(Batch.of_messages([b"one", b"two"]), None)])
        self.point("appended")

    def tables(self, kit: SinkKit) -> None:
        """Each commit is followed by retention, which removes what the log need not keep any more."""
        kit.engine(TOPIC).catch_up()
        self.point("committed")
        self.retain(kit)
        self.by_server(kit)
        self.found(kit)
        self.crashed(kit)
        self.told_by_storage(kit)
        self.delete_row(kit)

    def server(self, kit: SinkKit, *commits: object) -> TableStore:
        """A catalog that is a server on this machine: it writes metadata.json itself, and syncs nothing."""
        kit.store.catalog.__dict__.pop("_write_metadata", None)
        return TableStore(Wrapped(kit.store.catalog, commits), kit.store.settings)

    def by_server(self, kit: SinkKit) -> None:
        self.publish(kit, 4)
        kit.engine(TOPIC, store=self.server(kit)).catch_up()
        self.point("committed by a server")
        self.retain(kit)

    def found(self, kit: SinkKit) -> None:
        self.publish(kit, 4)
        kit.engine(TOPIC, store=self.server(kit, applied_but_lost)).catch_up()
        self.point("committed by a server whose answer was lost")
        self.retain(kit)

    def crashed(self, kit: SinkKit) -> None:
        """The commit has landed, and the process that made it ends: the next one tells the log."""
        self.publish(kit, 4)
        self.land_and_die(kit)
        engine = kit.engine(TOPIC, store=self.server(kit))
        engine.run_batch(at_once=True)
        self.retain(kit)

    def told_by_storage(self, kit: SinkKit) -> None:
        """The same, and the log hears of it by `frazil topic retain`."""
        self.publish(kit, 4)
        self.land_and_die(kit)
        kit.tables._store = self.server(kit)
        open_storage(kit.client, kit.settings, TOPIC, kit.tables).retain_log(age_s=None, size=0, dry_run=False)
        self.point("retained by storage")

    def delete_row(self, kit: SinkKit) -> None:
        table = kit.table(TOPIC)
        position = find_position(table, ARCHIVE, TOPIC)
        assert position is not None
        file = next(iter(table.scan().plan_files())).file
        partitions = {file.file_path: (file.spec_id, file.partition)}
        rows = pa.array([file.file_path]), pa.array([0])
        deletes = write_position_deletes(WriteTarget.of(table), "d", *rows, partitions)
        reached = replace(position, batch_id=str(uuid.uuid4()))
        on = table.metadata.current_snapshot_id
        commit_append(kit.store, table, deletes, expected=position, reached=reached, on=on)
        self.point("deleted")

    def land_and_die(self, kit: SinkKit) -> None:
        def die(step: str) -> None:
            if step == "tables.commit.after":
                raise CrashError

        with handled(die), suppress(CrashError):
            kit.engine(TOPIC, store=self.server(kit)).catch_up()

    def retain(self, kit: SinkKit) -> None:
        assert kit.log.retain(TOPIC, size=0).segments, "nothing was removed"
        self.point("retained")

    def storage(self) -> None:
        store = open_store(f"file://{self._folder}/store", s3=S3Settings(), network=NetworkSettings())
        store.put("a/b/c", b"put")
        self.point("put")
        store.put("a/b/c", b"put over it")
        self.point("put over")
        store.put_if_absent("a/d", b"new")
        self.point("put where nothing was")
        store.put_if_match("a/d", b"newer", store.head("a/d").etag)
        self.point("put where the etag fits")
        store.copy("a/d", "e/f")
        self.point("copied")


def main(folder: Path) -> None:
    work = Work(folder)
    with sink_kit_of(settings_of(folder / "home")) as kit:
        work.log(kit)
        work.tables(kit)
    work.storage()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
