"""What a plan leaves out, and why: things that a person would otherwise wonder about."""

from __future__ import annotations

from typing import TYPE_CHECKING

from frazil.catalogs import list_tables
from frazil.settings.policies import idle_patterns
from frazil.upkeep.expiry.pin_protection import list_protections

if TYPE_CHECKING:
    from pyiceberg.table.metadata import TableMetadata

    from frazil.upkeep.context import UpkeepContext
    from frazil.upkeep.policy import Policy

ON_REQUEST = (
    "orphans are looked for on request only, since this is not one of Frazil's own tables: --kind orphans, or "
    "orphans: true in its policy"
)


def held_back(metadata: TableMetadata, name: str, policy: Policy, now_ms: int) -> list[str]:
    """The snapshots that the policy lets go, and that pins hold."""
    if not policy.gc:
        return []
    found = list_protections(
        metadata,
        name,
        max_age_s=policy.max_snapshot_age_s,
        max_snapshots=policy.max_snapshots,
        min_snapshots=policy.min_snapshots,
        now_ms=now_ms,
    )
    return [str(hold) for hold in found]


def on_request(metadata: TableMetadata, policy: Policy) -> list[str]:
    """What is done only for those who ask for it."""
    asked = policy.orphans_on_request and policy.gc and metadata.current_snapshot_id is not None
    return [ON_REQUEST] if asked else []


def of_nobody(context: UpkeepContext) -> list[str]:
    """The policies in the settings that apply to no table: their pattern is misspelt, or the table is yet to come."""
    if not context.settings.model.upkeep.tables:
        return []
    listed = context.store.call(lambda: list_tables(context.store.catalog, context.catalog), "list")
    found = idle_patterns(context.settings, [".".join(name) for name in listed])
    return [f"upkeep.tables '{p}' ({o}) names no table of the catalog '{context.catalog.name}'" for p, o in found]
