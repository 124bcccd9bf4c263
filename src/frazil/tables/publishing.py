"""Publishes a prepared metadata.json: gives it a name in a catalog, or exchanges it for the one that a table has.

Nothing is visible before the one request that publishes, and all of it after. A reply that is lost is looked up.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, cast

from frazil.catalogs import flavor_of, parse_name, pointers
from frazil.catalogs.kinds import Flavor
from frazil.errors import (
    CircuitOpenError,
    ConflictError,
    FrazilError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from frazil.observe.faultpoints import reach
from frazil.observe.logs import get_logger
from frazil.observe.resilience import worth_retrying
from frazil.tables.create import ensure_namespace
from frazil.tables.errors import CommitUnknownError
from frazil.tables.metadata_losses import find_losses, normalize
from frazil.tables.metadata_updates import diff_metadata
from frazil.tables.store import TableStore, back_off

if TYPE_CHECKING:
    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.table import Table

    from frazil.catalogs.pointers import PointerCatalog

Identifier = tuple[str, ...]
Metadata = Mapping[str, Any]
#: register: a new name for the file. compare-and-set: the name moves to the file if it points to the expected one.
#: updates: one commit of the differences, because a REST server writes metadata.json itself.
#: create+updates: the same for a new name where the service assigns the location (`reserve_table`).
Method = Literal["register", "compare-and-set", "updates", "create+updates"]

#: Marks an empty table that waits for its metadata. The commit that publishes removes it.
_RESERVED = "frazil.reserved"
_FORMAT_WITH_ROW_IDS = 3
_LOG_LENGTH, _LOG_DEFAULT = "write.metadata.previous-versions-max", 100

log = get_logger(__name__)


@dataclass(frozen=True)
class PublicationPlan:
    """How metadata will be published, and what the catalog cannot keep of it.

    Attributes:
        identifier: of the table.
        flavor: the kind of catalog.
        method: see `Method`.
        expected: the metadata file that the catalog names now, which must not have changed; None for a new name.
        uuid: the UUID that the metadata must carry (that of the existing table); None where it is free.
        location: where the table must lie because the service assigned it (S3 Tables); None where it is free.
        losses: what the published table will lack, one sentence each.
        current_only: whether the metadata may hold the current snapshot only.
    """

    identifier: Identifier
    flavor: Flavor
    method: Method
    expected: str | None
    uuid: str | None
    location: str | None
    losses: tuple[str, ...]
    current_only: bool = False

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "identifier": ".".join(self.identifier), "losses": list(self.losses)}


@dataclass(frozen=True)
class Published:
    """A table as the catalog shows it after publishing.

    Attributes:
        identifier: of the table.
        metadata_location: the file that the catalog names: the prepared one, or one that a REST server wrote.
        uuid: of the table.
        losses: what differs from the prepared metadata, one sentence each.
        previous: the metadata file that the catalog named before; None for a new name.
    """

    identifier: Identifier
    metadata_location: str
    uuid: str
    losses: tuple[str, ...]
    previous: str | None


def plan_publication(
    store: TableStore,
    identifier: Identifier,
    metadata: Metadata,
    *,
    replace: bool,
    current_only: bool = False,
    location: str | None = None,
    relocated: bool = False,
) -> PublicationPlan:
    """Returns how `publish` will proceed. Changes nothing.

    Args:
        store: with the catalog.
        identifier: the name to publish under.
        metadata: what will be published.
        replace: publish over a table that exists.
        current_only: the metadata holds one snapshot and no reference but main: what Nessie can keep.
        location: where the caller wants the table to lie; None leaves it to the caller's default.
        relocated: the paths in the metadata are final. Otherwise each snapshot is expected to get a new manifest list.

    Raises:
        ConflictError: the name is taken (without `replace`).
        NotFoundError: the table does not exist (with `replace`).
        UnsupportedError: this catalog cannot hold the metadata, or not at this location.
    """
    identifier = parse_name(".".join(identifier), store.settings.name)
    name = ".".join(identifier)
    flavor = flavor_of(store.settings, dict(store.catalog.properties))
    _check_supported(flavor, name, metadata, location, current_only=current_only)
    found = _read(store, identifier)
    if found is not None and not replace and not _is_reserved(found[1]):
        raise ConflictError(
            f"the table {name} exists in the catalog '{store.settings.name}'", hint="choose another name, or replace it"
        )
    if found is None:
        if replace:
            raise NotFoundError(
                f"table {name} to replace does not exist in catalog '{store.settings.name}'",
                hint="publish it as a new table",
            )
        method: Method = "create+updates" if flavor == "s3tables" else "register"
        losses = _losses_of_new(flavor, metadata)
        return PublicationPlan(identifier, flavor, method, None, None, None, losses, current_only)
    pointer, base = found
    uuid = str(base["table-uuid"])
    assigned = base["location"] if flavor == "s3tables" else None
    if store.settings.resolved_kind != "rest":
        return PublicationPlan(identifier, flavor, "compare-and-set", pointer, uuid, None, (), current_only)
    wanted = {**metadata, "table-uuid": uuid} | ({"location": assigned} if assigned else {})
    if not relocated:
        wanted["snapshots"] = [{**s, "manifest-list": "relocated"} for s in metadata.get("snapshots") or ()]
    losses = diff_metadata(base, wanted, keeps_history=flavor != "nessie").losses
    return PublicationPlan(identifier, flavor, "updates", pointer, uuid, assigned, losses, current_only)


def reserve_table(store: TableStore, plan: PublicationPlan, metadata: Metadata) -> PublicationPlan:
    """Creates an empty table where the service assigns the location, and returns the plan with `location` and `uuid`.

    Only for the method `create+updates`. A repeated call finds the table that an interrupted run reserved.

    Raises:
        ConflictError: the name is taken.
    """
    from frazil.catalogs.rest import create_raw_table

    wanted = normalize(metadata)
    schema = min(wanted["schemas"], key=lambda schema: schema["schema-id"])
    first_spec: dict[str, Any] = next((s for s in wanted["partition-specs"] if s["spec-id"] == 0), {"fields": []})
    version = wanted["format-version"]
    if version >= _FORMAT_WITH_ROW_IDS and any(s.get("first-row-id") is None for s in wanted["snapshots"]):
        version = 2  # the table was upgraded, and so is this one, after its older snapshots
    body = {
        "schema": {**schema, "schema-id": 0},
        "partition-spec": {"spec-id": 0, "fields": first_spec["fields"]},
        "write-order": {"order-id": 0, "fields": []},
        "properties": {"format-version": str(version), _RESERVED: "true"},
    }

    def create() -> None:
        ensure_namespace(store, plan.identifier[:-1])
        create_raw_table(_rest(store), plan.identifier, body)

    try:
        store.call_once(create)
    except CircuitOpenError:
        raise
    except FrazilError as error:
        found = _read(store, plan.identifier)
        if found is None:
            raise
        log.info("the table already existed", table=".".join(plan.identifier), error=error.message)
    found = _read(store, plan.identifier)
    if found is None or not _is_reserved(found[1]):
        raise ConflictError(f"the table {'.'.join(plan.identifier)} exists", hint="choose another name, or replace it")
    pointer, base = found
    uuid, location = str(base["table-uuid"]), str(base["location"])
    losses = diff_metadata(base, {**metadata, "table-uuid": uuid, "location": location}).losses
    return replace(plan, method="updates", expected=pointer, uuid=uuid, location=location, losses=losses)


def publish(store: TableStore, plan: PublicationPlan, metadata_location: str, metadata: Metadata) -> Published:
    """Publishes metadata as planned. May be repeated with the same arguments after any error.

    Args:
        store: with the catalog.
        plan: of `plan_publication`, or of `reserve_table`.
        metadata_location: the metadata.json, which is complete and durable, and all that it refers to.
        metadata: its content.

    Raises:
        ConflictError: the name was taken, or the table was changed, since the plan was made. Nothing is changed.
        CommitUnknownError: no answer came, and the catalog does not show the metadata (yet).
        UsageError: the metadata does not fit the plan: another UUID or location, or more than one snapshot.
    """
    _check_fits(plan, metadata)
    publication = _Publication(store, plan, metadata_location, metadata)
    publication.run()
    if publication.is_exact:
        return Published(plan.identifier, metadata_location, str(metadata["table-uuid"]), (), plan.expected)
    pointer, shown = publication.find_state()
    losses = () if pointer == metadata_location else find_losses(shown, metadata)
    if unplanned := set(losses) - set(plan.losses):
        log.warning("the catalog keeps less than planned", table=".".join(plan.identifier), losses=sorted(unplanned))
    return Published(plan.identifier, pointer, str(shown["table-uuid"]), losses, plan.expected)


def append_metadata_log(metadata: Metadata, pointer: str) -> dict[str, Any]:
    """Returns changed metadata as the successor of a metadata file: newer, and with that file at the end of its log."""
    before = int(metadata["last-updated-ms"])
    log = [*(metadata.get("metadata-log") or ()), {"timestamp-ms": before, "metadata-file": pointer}]
    try:
        most = max(1, int((metadata.get("properties") or {}).get(_LOG_LENGTH, _LOG_DEFAULT)))
    except ValueError:
        most = _LOG_DEFAULT
    now = max(time.time_ns() // 1_000_000, before + 1)
    return {**metadata, "last-updated-ms": now, "metadata-log": log[-most:]}


def new_metadata_location(table: Table) -> str:
    """Returns a name for the next metadata file of a table, where its properties want it."""
    from pyiceberg.catalog import MetastoreCatalog
    from pyiceberg.table.locations import load_location_provider

    version = MetastoreCatalog._parse_metadata_version(table.metadata_location) + 1
    return load_location_provider(table.location(), table.properties).new_table_metadata_file_location(version)


def read_pointer(store: TableStore, identifier: Identifier) -> str | None:
    """Returns the metadata file that the catalog names for a table now, which PyIceberg need not understand.

    None if there is no such table.
    """
    return store.call(lambda: pointers.read_pointer(store.catalog, identifier), "read_pointer")


class _Publication:
    """One call of `publish`, over all its attempts."""

    def __init__(self, store: TableStore, plan: PublicationPlan, location: str, metadata: Metadata) -> None:
        self._store = store
        self._plan = plan
        self._location = location
        self._metadata = metadata
        self._name = ".".join(plan.identifier)
        #: The catalog names the prepared file itself, and no server writes another one.
        self.is_exact = store.settings.resolved_kind != "rest"
        self._landed: tuple[str, dict[str, Any]] | None = None

    def find_state(self) -> tuple[str, dict[str, Any]]:
        """Returns pointer and metadata right after publishing, even where others have committed since."""
        if self._landed is not None:
            return self._landed
        found = _read(self._store, self._plan.identifier)
        if found is None:
            raise ConflictError(f"the table {self._name} was dropped right after it was published")
        return self._states_since(*found)[-1]

    def run(self) -> None:
        attempts = self._store.network.retry_attempts
        for attempt in range(1, attempts + 1):
            try:
                self._send()
            except CircuitOpenError:  # nothing was sent
                raise
            except (UnsupportedError, UsageError):
                raise
            except FrazilError as error:
                if self._has_landed(error):
                    return
                # The table is as it was expected: either this attempt lands later or the next one does, not both.
                if not (worth_retrying(error) or type(error) is FrazilError):
                    raise
                if attempt == attempts:
                    raise self._unknown(error) from error
                back_off(attempt + 3)
            else:
                return

    def _send(self) -> None:
        catalog, plan = self._store.catalog, self._plan
        identifier, metadata = plan.identifier, self._metadata
        reach("tables.publish.before")
        if plan.method == "register":
            self._store.call(lambda: ensure_namespace(self._store, identifier[:-1]), "create_namespace")
            if self._store.settings.resolved_kind == "rest":
                from frazil.catalogs.rest import register_raw_table

                self._store.call_once(lambda: register_raw_table(_rest(self._store), identifier, self._location))
            else:
                pointed = cast("PointerCatalog", catalog)
                self._store.call_once(lambda: pointed.insert_pointer(identifier, self._location, metadata))
        elif plan.method == "compare-and-set":
            pointed, expected = cast("PointerCatalog", catalog), cast("str", plan.expected)
            self._store.call_once(lambda: pointed.move_pointer(identifier, expected, self._location, metadata))
        elif plan.method == "updates":
            self._commit_updates()
        else:
            raise UsageError(f"{self._name} has no location yet", hint="call reserve_table first")
        reach("tables.publish.after")

    def _commit_updates(self) -> None:
        from frazil.catalogs.rest import commit_raw_updates

        found = _read(self._store, self._plan.identifier)
        if found is None or found[0] != self._plan.expected:
            raise self._conflict(None if found is None else found[0])
        difference = diff_metadata(found[1], self._metadata, keeps_history=self._plan.flavor != "nessie")
        catalog, identifier = _rest(self._store), self._plan.identifier
        self._store.call_once(
            lambda: commit_raw_updates(catalog, identifier, difference.requirements, difference.updates)
        )

    def _has_landed(self, error: FrazilError) -> bool:
        """Whether an attempt that failed is found in the catalog; False if the table is as it was.

        Raises:
            ConflictError: another writer was faster.
            CommitUnknownError: the catalog does not answer.
        """
        reach("tables.publish.lookup")
        try:
            found = _read(self._store, self._plan.identifier)
        except UnavailableError as unavailable:
            raise self._unknown(error) from unavailable
        pointer = None if found is None else found[0]
        if pointer == self._plan.expected:
            return False
        if found is not None:
            for location, metadata in self._states_since(*found):
                if location == self._location or self._is_wanted(metadata):
                    self._landed = location, metadata
                    return True
        raise self._conflict(pointer) from error

    def _states_since(self, pointer: str, metadata: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
        """Reads the table's current metadata and that after each commit since its publication, newest first."""
        states = [(pointer, metadata)]
        for entry in reversed(metadata.get("metadata-log") or ()):
            location = entry["metadata-file"]
            if location == self._plan.expected or states[-1][0] == self._location:
                break
            try:
                states.append((location, self._read_file(location)))
            except FrazilError as error:
                log.warning("an earlier metadata file cannot be read", location=location, error=error.message)
                break
        return states

    def _read_file(self, location: str) -> dict[str, Any]:
        catalog = self._store.catalog
        return self._store.call(lambda: pointers.read_metadata_file(catalog, location), "read_metadata", "storage")

    def _is_wanted(self, metadata: Metadata) -> bool:
        """Whether a state is what the server made of the metadata. Where it keeps the file, the location tells."""
        if self._plan.method != "updates" and self._plan.flavor != "nessie":
            return False
        return set(find_losses(metadata, self._metadata)) <= set(self._plan.losses)

    def _conflict(self, pointer: str | None) -> ConflictError:
        if self._plan.expected is None:
            message = f"a table {self._name} was created while this one was prepared"
        elif pointer is None:
            message = f"the table {self._name} was dropped while its replacement was prepared"
        else:
            message = f"the table {self._name} was changed while its replacement was prepared"
        return ConflictError(message, cause=pointer and f"it is now {pointer}", hint="plan it again")

    def _unknown(self, error: FrazilError) -> CommitUnknownError:
        return CommitUnknownError(
            f"publishing {self._name} got no response; its outcome is unknown",
            cause=error.message,
            hint="try again: a publication that succeeded is detected and not repeated",
        )


def _read(store: TableStore, identifier: Identifier) -> tuple[str, dict[str, Any]] | None:
    return store.call(lambda: pointers.read_metadata(store.catalog, identifier), "read_metadata")


def _rest(store: TableStore) -> RestCatalog:
    return cast("RestCatalog", store.catalog)


def _is_reserved(metadata: Metadata) -> bool:
    return _RESERVED in metadata.get("properties", {}) and not metadata.get("snapshots")


def _check_supported(
    flavor: Flavor, name: str, metadata: Metadata, location: str | None, *, current_only: bool
) -> None:
    if flavor == "nessie" and not current_only:
        raise UnsupportedError(
            f"{name} cannot be published in Nessie with its history",
            cause="Nessie keeps one snapshot of a table, and its own branches",
            hint="publish the current snapshot only (--current-only), or choose another catalog",
        )
    if flavor == "s3tables" and location is not None:
        raise UnsupportedError(
            f"{name} cannot be located in {location}: S3 Tables assigns the location of a table",
            hint="omit the location",
        )
    if current_only:
        _check_current_only(metadata)


def _check_current_only(metadata: Metadata) -> None:
    found = normalize(metadata)
    if len(found["snapshots"]) > 1 or found["refs"].keys() - {"main"}:
        raise UsageError(
            "the metadata holds more than the current snapshot",
            cause=f"{len(found['snapshots'])} snapshots, references {', '.join(sorted(found['refs']))}",
            hint="remove the other snapshots and references first",
        )


def _check_fits(plan: PublicationPlan, metadata: Metadata) -> None:
    if plan.current_only:
        _check_current_only(metadata)
    for key, wanted in (("table-uuid", plan.uuid), ("location", plan.location)):
        if wanted is not None and metadata[key] != wanted:
            raise UsageError(
                f"metadata of {'.'.join(plan.identifier)} has the {key} {metadata[key]}, not {wanted}",
                hint=f"relocate it with this {key}",
            )


def _losses_of_new(flavor: Flavor, metadata: Metadata) -> tuple[str, ...]:
    """Names the losses of a new table in S3 Tables; other catalogs register the file as it is."""
    if flavor != "s3tables":
        return ()
    found = normalize(metadata)
    entries = len(found["snapshot-log"])
    lost = [f"the table gets a different UUID than {found['table-uuid']}", "the service assigns the location"]
    if entries > 1:
        lost.append(
            f"{entries - 1} of {entries} entries of the snapshot log are lost: time travel by timestamp misses them"
        )
    return tuple(lost)
