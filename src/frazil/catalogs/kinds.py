"""What each kind of catalog can and cannot do. The contract suite holds every line of it against a real server."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

from frazil.errors import UnsupportedError
from frazil.settings import CatalogSettings

Flavor = Literal["sql", "rest", "nessie", "s3tables", "glue", "hive"]
Ability = Literal["history", "refs", "register", "overwrite", "views", "multi_writer", "v3"]


@dataclass(frozen=True)
class Abilities:
    """What a kind of catalog can do.

    Attributes:
        history: a table keeps all its snapshots, so time travel works.
        refs: branches and tags are kept.
        register: an existing metadata.json can be given a name.
        overwrite: registering over a table that exists replaces it.
        views: Spark can create Iceberg views.
        multi_writer: concurrent commits are checked against each other.
        v3: tables of format version 3 with deletion vectors can be written.
    """

    history: bool
    refs: bool
    register: bool
    overwrite: bool
    views: bool
    multi_writer: bool
    v3: bool
    note: str = ""

    def require(self, ability: Ability, catalog: str) -> None:
        if not getattr(self, ability):
            raise UnsupportedError(
                f"catalog '{catalog}' does not support '{ability}'",
                cause=self.note or None,
                hint="see docs/catalogs.md",
            )


ABILITY_NAMES: tuple[str, ...] = tuple(f.name for f in fields(Abilities) if f.name != "note")

ABILITIES: dict[Flavor, Abilities] = {
    "sql": Abilities(True, True, True, False, True, True, True, note="for one machine: the database is a file"),
    "rest": Abilities(
        True, True, True, False, True, True, True, note="as in the reference server; other servers may support more"
    ),
    "nessie": Abilities(
        False, False, True, False, False, True, False, note="Nessie keeps the current snapshot and its own branches"
    ),
    "s3tables": Abilities(
        True, True, False, False, False, True, False, note="measured on SeaweedFS, which rejects Puffin files"
    ),
    "glue": Abilities(True, True, True, False, False, True, True, note="Glue does not support Iceberg views"),
    "hive": Abilities(
        True, True, True, False, True, True, True, note="commits take a lock in the metastore: slow under contention"
    ),
}


def flavor_of(settings: CatalogSettings, server_config: dict[str, Any] | None = None) -> Flavor:
    """Returns the flavor of a catalog. A REST server is recognised by its configuration.

    Args:
        settings: the catalog.
        server_config: the properties an opened REST catalog got from its server.
    """
    kind = settings.resolved_kind
    if kind != "rest":
        return kind
    if str((server_config or {}).get("nessie.is-nessie-catalog", "")).lower() == "true":
        return "nessie"
    if settings.sigv4 and settings.signing_name == "s3tables":
        return "s3tables"
    return "rest"


def abilities_of(settings: CatalogSettings, server_config: dict[str, Any] | None = None) -> Abilities:
    return ABILITIES[flavor_of(settings, server_config)]
