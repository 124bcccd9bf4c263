"""The store of documents in Iceberg."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, ParamSpec, TypeVar

from frazil.documents.arrow import REVISION_SCHEMA, revisions_to_table
from frazil.documents.convenience import Convenience
from frazil.documents.fields import check_column, is_document_id
from frazil.documents.iceberg.client import DocumentClient
from frazil.documents.iceberg.follow import find_mismatch
from frazil.documents.iceberg.keeper import ProjectionKeeper
from frazil.documents.iceberg.lease import OwnerLease
from frazil.documents.iceberg.owner import DocumentOwner
from frazil.documents.iceberg.projection import Projection, ProjectionFolder
from frazil.documents.iceberg.projection_reads import ProjectionReads
from frazil.documents.iceberg.staging import open_staging
from frazil.documents.loading import plan_load, require_columns
from frazil.documents.messages import BulkFile
from frazil.documents.model import Column, Revision
from frazil.documents.sql.engine import snapshot
from frazil.documents.sql.records import load_columns, load_histories
from frazil.documents.store import StoreKind, Write
from frazil.errors import (
    ConflictError,
    FrazilError,
    IntegrityError,
    LockedError,
    NotFoundError,
    UnavailableError,
    UsageError,
)
from frazil.log.owner import OwnerInfo, read_owner
from frazil.log.trust import get_configured_key, read_key
from frazil.observe.logs import get_logger
from frazil.tables.store import LazyStore
from frazil.topics.connection import connect as connect_log
from frazil.topics.connection import log_folder, silent

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.documents.consistency import ConsistencyReport
    from frazil.documents.iceberg.table_reads import TableReads
    from frazil.log.log import Log
    from frazil.log.protocol import LogAccess
    from frazil.settings import Settings

logger = get_logger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

#: Revisions of one staged file, about.
_BULK: Final = 20_000
#: Seconds between two looks for staged files that are not needed any more.
_TIDIED_EVERY_S: Final = 3600.0
#: Seconds to wait for another process that has the log.
_PATIENCE_S: Final = 30.0


def open_iceberg_store(settings: Settings, log: Log | None = None) -> IcebergDocumentStore:
    """Opens the store of documents in Iceberg.

    Args:
        settings: the settings.
        log: of a server, which has it open and is the owner; None: the store finds the owner, or becomes it for each
            write.

    Raises:
        UnavailableError: the projection has to be built, and the catalog does not answer.
    """
    store = IcebergDocumentStore(settings, log)
    if log is not None:
        try:
            store.refresh()
        except BaseException:
            store.close()
            raise
    return store


def _now() -> datetime:
    return datetime.now(UTC)


class IcebergDocumentStore(ProjectionReads, Convenience):
    """Writes go through the topic log, reads come from the projection.

    Args:
        settings: the settings.
        log: open in this process, which then decides all revisions; None: another process may have it.
        now: the clock of revisions.
    """

    def __init__(self, settings: Settings, log: Log | None = None, *, now: Callable[[], datetime] = _now) -> None:
        self._settings = settings
        self._topic = settings.model.documents.topic
        self._log_folder = log_folder(settings)
        self._folder = ProjectionFolder(settings.model.home / "documents")
        self._lease = OwnerLease(settings, self._folder, now)
        self._lock = threading.RLock()
        self._clients: dict[str, DocumentClient] = {}
        self._tables = LazyStore(settings)
        self._reading: Projection | None = None
        self._tidied_next = 0.0
        self._owner: DocumentOwner | None = None
        if log is not None:
            self._owner = DocumentOwner(settings, log, ProjectionKeeper(settings, log, self._folder), now=now)

    @property
    def kind(self) -> StoreKind:
        return "iceberg"

    # -- writes ------------------------------------------------------------------------------------------------------

    def write(self, writes: Sequence[Write]) -> list[Revision]:
        """Applies a batch of writes in order, all or nothing. It returns when they are durable in the log.

        Raises:
            UsageError: a field is wrong.
            NotFoundError: a document does not exist.
            ConflictError: another revision than expected, a forbidden transition, or a key of another request.
            UnavailableError: log or server do not answer; `details["stored"]` says what is known.
        """
        if not writes:
            return []
        return self._by_owner(lambda owner: owner.write(writes), lambda client: client.write(writes))

    def load_revisions(self, revisions: Iterable[Sequence[Revision]]) -> int:
        """Adds complete histories of documents, and returns how many revisions were new.

        They are staged as files, which one message of the log names. Each given sequence is applied as a whole. What
        the store already has, equal in all fields, is skipped.

        Raises:
            UsageError: a revision is wrong, or one is missing.
            ConflictError: the store has another past under one of the ids.
        """
        return sum(self._load(some) for some in _gather(revisions, _BULK))

    def _load(self, revisions: Sequence[Revision]) -> int:
        return self._by_owner(
            lambda owner: self._tidy_after(owner, owner.load(revisions)),
            lambda client: _publish_all(client, self._stage(revisions)),
        )

    def load_table(self, revisions: pa.Table) -> int:
        """Does what `load_revisions` does, from one Arrow table in `REVISION_SCHEMA`, several times as fast.

        Args:
            revisions: sorted by document id and revision. Their fields were checked, or come from another store.
        """
        if not revisions.num_rows:
            return 0
        require_columns(revisions, self.columns())
        staging = open_staging(self._tables.store(), self._settings)
        file = staging.write(revisions)
        try:
            return self._publish_bulk([file], revisions.cast(REVISION_SCHEMA))
        except (ConflictError, UsageError):  # nothing was published
            staging.remove(file)
            raise

    def publish_bulk(self, files: Sequence[BulkFile]) -> int:
        """Publishes staged files by one message, and returns how many of their revisions were new."""
        return self._publish_bulk(files, None) if files else 0

    def _publish_bulk(self, files: Sequence[BulkFile], staged: pa.Table | None) -> int:
        return self._by_owner(
            lambda owner: self._tidy_after(owner, owner.publish_bulk(files, staged)),
            lambda client: client.publish_bulk(files),
        )

    def _tidy_after(self, owner: DocumentOwner, made: int) -> int:
        """Removes former staged files now and then, after others were published; returns what these have made."""
        if time.monotonic() >= self._tidied_next:
            self._tidied_next = time.monotonic() + _TIDIED_EVERY_S
            try:
                owner.remove_staged_files()
            except (FrazilError, OSError) as error:  # what was published stays published
                logger.warning("old staged files stay for now", error=str(error))
        return made

    def add_column(self, name: str, type: str) -> Column:  # noqa: A002 - the field's word
        """Adds a metadata column without rewriting data. Adding an equal one again changes nothing."""
        check_column(name, type)
        return self._by_owner(lambda owner: owner.add_column(name, type), lambda client: client.add_column(name, type))

    def answer_internal(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Answers what another process of this installation asks, see `DocumentClient`.

        Args:
            request: the JSON object that was sent to `INTERNAL_PATH`. The caller has checked the key.
        """
        match request.get("action"):
            case "write":
                # First: what fails after the write would look as if it had failed.
                types = {name: column.type for name, column in self.columns().items()}
                made = self.write([Write(**write) for write in request["writes"]])
                return {"revisions": [revision.to_dict() for revision in made], "columns": types}
            case "bulk":
                return {"revisions": self.publish_bulk([BulkFile(**file) for file in request["files"]])}
            case "add_column":
                return {"column": asdict(self.add_column(request["name"], request["column_type"]))}
            case "refresh":
                self.refresh()
                return {}
            case "rebuild":
                self.rebuild()
                return {}
            case action:
                raise UsageError(f"action {action!r:.50} does not exist")

    # -- reads -------------------------------------------------------------------------------------------------------

    def refresh(self) -> None:
        """Brings the projection in line with the log, whoever has it."""
        if self._owner is not None:
            self._owner.keeper.current()
        elif not self._is_in_line():
            self._by_owner(lambda owner: owner.keeper.follow(), lambda client: client.refresh())

    def verify(self, progress: Callable[[int], None] = lambda _: None) -> ConsistencyReport:
        """Compares the projection with tables and log, row by row, and the parts of the projection with each other."""
        from frazil.documents.consistency import check_consistency
        from frazil.documents.iceberg.verify import ComparedTables, PartsComparison

        report = check_consistency(self, progress)
        tables = ComparedTables.load(self._tables.store(), self._settings)
        read_bulk = open_staging(self._tables.store(), self._settings).read
        with self._log_access() as access:
            self.refresh()
            with snapshot(self._projection().engine) as connection:
                parts = PartsComparison(access, self._topic, tables, connection, read_bulk, self._folder.folder, report)
                parts.run(progress)
        return report

    def via_table(self, *, explains: bool = False) -> TableReads:
        """Returns reads that answer from the Iceberg tables and the log's tail, not from the projection.

        Args:
            explains: whether row groups are counted too, which reads the footers of files once more.
        """
        from frazil.documents.iceberg.table_reads import TableReads

        return TableReads(self._settings, self._tables, self._log_access, self._cursor_key, explains=explains)

    @contextmanager
    def _log_access(self) -> Iterator[LogAccess]:
        """The log: of this process, behind its broker, or opened for the time of the block."""
        if self._owner is not None:
            yield self._owner.log
            return
        found = read_owner(self._log_folder)
        if found is not None and "flight" in found.addresses:
            with connect_log(self._settings, note=silent) as access:
                yield access
        else:
            self._by_owner(lambda owner: owner.keeper.follow(), lambda client: client.refresh())  # waits for its turn
            with self._lease.owner() as owner:
                yield owner.log

    def _is_in_line(self) -> bool:
        """Whether a pipeline has the log, which decides no revisions, and the projection has all of it."""
        owner = read_owner(self._log_folder)
        if owner is None or "http" in owner.addresses or "flight" not in owner.addresses:
            return False
        try:
            found = self._folder.open(read_only=True)
        except FrazilError:
            return False
        if found is None:
            return False
        with closing(found), connect_log(self._settings, note=silent) as access:
            position = found.position()
            try:
                info = access.info(self._topic)
            except NotFoundError:
                return False
            if position is None or position.offset != info.end:
                return False
            return find_mismatch(access, info, position) is None

    def rebuild(self, reason: str = "on request") -> None:
        """Builds the projection anew from the history table and the log."""
        self._by_owner(lambda owner: owner.keeper.rebuild(reason), lambda client: client.refresh(rebuild=True))

    def _projection(self) -> Projection:
        if self._owner is not None:
            return self._owner.keeper.current()
        found = self._reading
        if found is not None and self._folder.identity() == found.identity:
            return found
        with self._lock:
            if self._reading is None or self._folder.identity() != self._reading.identity:
                self._reading = self._open_projection()
            return self._reading

    def _open_projection(self) -> Projection:
        """Opens the file after its owner has brought it in line with the log: a power failure may have left it behind.

        From then on it is in line: a write is acknowledged after it is in the file.
        """
        for _ in range(3):
            self.refresh()
            try:
                found = self._folder.open(read_only=True)
            except IntegrityError as error:
                self.rebuild(error.in_one_line)
                continue
            if found is not None:
                return found
        raise UnavailableError(
            f"the projection of documents in {self._folder.folder} cannot be opened", hint="frazil docs verify"
        )

    def _repair(self, damaged: Projection, reason: str) -> None:
        if self._owner is not None:
            keeper = self._owner.keeper
            with keeper.lock:
                if keeper.current() is damaged:
                    keeper.rebuild(reason)
            return
        with self._lock:
            if self._reading is damaged:
                self._reading = None
                self.rebuild(reason)

    # -- owner -------------------------------------------------------------------------------------------------------

    def _by_owner(self, here: Callable[[DocumentOwner], T], there: Callable[[DocumentClient], T]) -> T:
        """Calls the owner of the log: in this process, behind a server, or this process for the time of the call."""
        if self._owner is not None:
            return here(self._owner)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            server = self._find_server()
            try:
                if server is not None:
                    return there(server)
                with self._lease.owner() as owner:
                    return here(owner)
            except (LockedError, UnavailableError) as error:
                is_gone = isinstance(error, LockedError) or error.details.get("stored") == "no"
                if not is_gone or time.monotonic() > deadline:
                    raise
            time.sleep(random.uniform(0.005, 0.03))  # noqa: S311 - out of step with others

    def _find_server(self) -> DocumentClient | None:
        found: OwnerInfo | None = read_owner(self._log_folder)
        address = None if found is None else found.addresses.get("http")
        if address is None:
            return None
        with self._lock:
            if address not in self._clients:
                key = get_configured_key(self._settings.model.log) or read_key(self._log_folder)
                self._clients[address] = DocumentClient(address, key, self._settings.model.network)
            return self._clients[address]

    def _stage(self, revisions: Sequence[Revision]) -> list[BulkFile]:
        """Stages the revisions that the store does not seem to have; the server decides."""
        ids = {revision.document_id for revision in revisions if is_document_id(revision.document_id)}
        with self.connection() as connection:
            made = plan_load(revisions, load_histories(connection, ids), load_columns(connection), _now())
        if not made:
            return []
        return [open_staging(self._tables.store(), self._settings).write(revisions_to_table(made))]

    def close(self) -> None:
        self._lease.close()
        if self._owner is not None:
            self._owner.keeper.close()
        with self._lock:
            for client in self._clients.values():
                client.close()
            if self._reading is not None:
                self._reading.close()
                self._reading = None
        self._tables.close()


def _publish_all(client: DocumentClient, files: Sequence[BulkFile]) -> int:
    return client.publish_bulk(files) if files else 0


def _gather(sequences: Iterable[Sequence[Revision]], size: int) -> Iterator[list[Revision]]:
    """Puts sequences together, until there are about so many revisions."""
    gathered: list[Revision] = []
    for sequence in sequences:
        if gathered and len(gathered) + len(sequence) > size:
            yield gathered
            gathered = []
        gathered += sequence
    if gathered:
        yield gathered
