"""A store of documents in Iceberg to break, and a plain sink that needs no Spark."""

from __future__ import annotations

import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.documents.arrow import HISTORY_SCHEMA, table_to_revisions
from frazil.documents.iceberg.staging import open_staging
from frazil.documents.iceberg.store import IcebergDocumentStore, open_iceberg_store
from frazil.documents.merge import spread_added
from frazil.documents.messages import decode_messages
from frazil.documents.names import DOCUMENTS, history_name, metadata_name
from frazil.documents.tables import add_columns, added_columns, ensure_history, ensure_metadata
from frazil.log.log import Log
from frazil.log.messages import decode_chunk
from frazil.log.protocol import LogAccess
from frazil.settings import Settings, load_settings
from frazil.tables import Position, commit_append, find_position
from frazil.tables.position import position_key
from frazil.tables.store import LazyStore
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_all_rows
from frazil.topics import open_log
from tests.machine import machine_flags

TOPIC = "documents"


@dataclass
class Home:
    """The home of one installation.

    Attributes:
        folder: with log, projection and, unless settings say otherwise, the catalog.
        flags: settings.
        config: a file with more of them.
    """

    folder: Path
    flags: dict[str, str] = field(default_factory=dict)
    config: Path | None = None

    @property
    def settings(self) -> Settings:
        flags = {**machine_flags(), "home": str(self.folder), "log.min_free": "0", **self.flags}
        return load_settings(config=self.config, flags={**flags, "database.url": "iceberg"}, environ={})

    @property
    def link(self) -> Path:
        return self.folder / "documents" / "projection.db"

    def store(self, **options: Any) -> IcebergDocumentStore:
        """A store that is the owner for one call."""
        return IcebergDocumentStore(self.settings, **options)

    @contextmanager
    def owner(self) -> Iterator[tuple[IcebergDocumentStore, Log]]:
        """A store in the process that has the log open, as in a server."""
        with open_log(self.settings) as log, open_iceberg_store(self.settings, log) as store:
            yield store, log

    def python(self, code: str, *arguments: str) -> subprocess.Popen[str]:
        """Runs code in a process of its own, with `settings` and these arguments as `arguments`."""
        flags = {**self.flags, "home": str(self.folder)}
        start = (
            "import sys\nfrom pathlib import Path\nfrom tests.documents_iceberg_kit import Home\n"
            f"home = Home(Path({str(self.folder)!r}), {flags!r})\narguments = sys.argv[1:]\n"
        )
        return subprocess.Popen(
            [sys.executable, "-c", start + code, *arguments],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def copy_log(self, name: str) -> None:
        shutil.copytree(self.folder / "log", self.folder / name)

    def bring_log_back(self, name: str) -> None:
        shutil.rmtree(self.folder / "log")
        shutil.copytree(self.folder / name, self.folder / "log")

    def copy_projection(self, target: Path) -> None:
        """Copies the main file alone, as somebody would who does not know of its write-ahead log."""
        shutil.copyfile(self.link.resolve(), target)

    def advance(self, access: LogAccess, *, end: int | None = None, history_only: bool = False) -> None:
        """Takes what the log has into the tables, in one batch, as the sink does."""
        with LazyStore(self.settings) as tables:
            self._advance(tables, access, end, history_only)

    def _advance(self, tables: LazyStore, access: LogAccess, end: int | None, history_only: bool) -> None:
        store, info = tables.store(), access.info(TOPIC)
        history, metadata = ensure_history(store, self.settings), ensure_metadata(store, self.settings)
        before = find_position(history, DOCUMENTS, TOPIC)
        start = 0 if before is None else before.offsets[0]
        end = info.end if end is None else end
        for chunk in access.chunks(TOPIC, start, end) if start < end else ():
            batch = decode_messages(decode_chunk(chunk, info.view, start, end))
            history = add_columns(store, history, batch.columns)
            metadata = add_columns(store, metadata, batch.columns)
            parts = [batch.revisions_table]
            for file in batch.bulk:
                rows = open_staging(store, self.settings).read(file)
                parts.append(rows.append_column("offset", pa.array([file.offset] * rows.num_rows, pa.int64())))
            spread, rejected = spread_added(pa.concat_tables(parts), added_columns(history))
            assert not rejected
            writer = TableWriter(WriteTarget.of(history), "test")
            names = [*HISTORY_SCHEMA.names, *(column.name for column in added_columns(history))]
            writer.add(convert_all_rows(spread.select(names), writer.schema))
            reached = Position(DOCUMENTS, TOPIC, {0: end}, info.log_id, info.epoch, str(uuid.uuid4()))
            history = commit_append(store, history, writer.finish(), expected=before, reached=reached).table
            before = find_position(history, DOCUMENTS, TOPIC)
        if not history_only and before is not None:
            self._replace_present(store.load(history_name(self.settings)), store.load(metadata_name(self.settings)))

    def _replace_present(self, history: Any, metadata: Any) -> None:
        found = find_position(history, DOCUMENTS, TOPIC)
        assert found is not None
        rows = history.scan().to_arrow()
        latest: dict[str, tuple[int, int]] = {}
        for at, stored in enumerate(table_to_revisions(rows)):
            key, number = stored.revision.document_id, stored.revision.revision
            if number > latest.get(key, (0, 0))[0]:
                latest[key] = (number, at)
        present = rows.take(pa.array([at for _, at in latest.values()], pa.int64()))
        present = present.filter(pa.compute.not_equal(present.column("operation"), "delete"))
        from pyiceberg.io.pyarrow import schema_to_pyarrow

        made = convert_all_rows(
            present.select([f.name for f in metadata.schema().fields]),
            schema_to_pyarrow(metadata.schema(), include_field_ids=False),
        )
        metadata.overwrite(made, snapshot_properties={position_key(DOCUMENTS, TOPIC): found.to_json()})


def put(store: IcebergDocumentStore, document_id: str, **values: Any) -> Any:
    return store.put_metadata({"document_id": document_id, "filename": f"{document_id}.pdf", **values})


def everything(store: IcebergDocumentStore) -> tuple[Any, ...]:
    """All that a store answers about past and present."""
    documents = [document for batch in store.iterate() for document in batch]
    revisions = [stored for batch in store.stored_revisions() for stored in batch]
    return revisions, documents, store.get_statistics(), store.columns()
