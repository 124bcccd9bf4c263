"""Publishes a prepared metadata.json: gives it a name in a catalog, or exchanges it for the one that a table has.

Nothing is visible before the one request that publishes, and all of it after. A reply that is lost is looked up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from frazil.catalogs.kinds import Flavor
from frazil.tables.store import TableStore

Identifier = tuple[str, ...]
Metadata = dict[str, Any]
#: register: a new name for the file. compare-and-set: the name moves to the file if it points to the expected one.
#: updates: one commit of the differences, because a REST server writes metadata.json itself.
#: create+updates: the same for a new name where the service assigns the location (`reserve_table`).
Method = Literal["register", "compare-and-set", "updates", "create+updates"]


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
        raise NotImplementedError


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
    metadata: Mapping[str, Any],
    *,
    replace: bool,
    current_only: bool = False,
    location: str | None = None,
) -> PublicationPlan:
    """Returns how `publish` will proceed. Changes nothing.

    Args:
        store: with the catalog.
        identifier: the name to publish under.
        metadata: what will be published; it need not be relocated yet.
        replace: publish over a table that exists.
        current_only: the metadata holds one snapshot and no ref but main: what Nessie can keep.
        location: where the caller wants the table to lie; None leaves it to the caller's default.

    Raises:
        ConflictError: the name is taken (without `replace`).
        NotFoundError: the table does not exist (with `replace`).
        UnsupportedError: this catalog cannot hold the metadata, or not at this location.
    """
    raise NotImplementedError


def reserve_table(store: TableStore, plan: PublicationPlan, metadata: Mapping[str, Any]) -> PublicationPlan:
    """Creates an empty table where the service assigns the location, and returns the plan with `location` and `uuid`.

    Only for the method `create+updates`. A repeated call finds the table that an interrupted run reserved.

    Raises:
        ConflictError: the name is taken.
    """
    raise NotImplementedError


def publish(store: TableStore, plan: PublicationPlan, metadata_location: str, metadata: Mapping[str, Any]) -> Published:
    """Publishes metadata as planned. May be repeated with the same arguments after any error.

    Args:
        store: with the catalog.
        plan: of `plan_publication`, or of `reserve_table`.
        metadata_location: the metadata.json, which is complete and durable, and all that it refers to.
        metadata: its content.

    Raises:
        ConflictError: the name was taken, or the table was changed, since the plan was made. Nothing is changed.
        CommitUnknownError: no answer came, and the catalog does not show the metadata (yet).
        UsageError: the metadata does not fit the plan: another UUID, location or more than one snapshot.
    """
    raise NotImplementedError


def read_pointer(store: TableStore, identifier: Identifier) -> str | None:
    """Returns the metadata file that the catalog names for a table now, which PyIceberg need not understand.

    None if there is no such table.
    """
    raise NotImplementedError
