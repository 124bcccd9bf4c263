"""Where a replica reads and where it writes: the replicated storage, the folder of its table, and the maps between."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import TYPE_CHECKING

from frazil.errors import NotAllowedError, UsageError
from frazil.replica.scan import ReplicaFiles, canonical_path, open_replica_files
from frazil.storage import parse
from frazil.tables.metadata.locations import overlaps
from frazil.tables.relocation.prefixes import PrefixMap
from frazil.tables.relocation.target_folder import TargetFolder

if TYPE_CHECKING:
    from frazil.settings import S3Settings
    from frazil.upkeep.context import UpkeepContext


def s3_of(care: UpkeepContext) -> S3Settings:
    """Returns the access to S3 that a catalog has."""
    return care.catalog.s3 or care.settings.model.s3


def open_files(care: UpkeepContext, replicated_path: str) -> ReplicaFiles:
    """Opens a replicated folder with the access that a catalog has. Nothing is read yet."""
    return open_replica_files(replicated_path, s3=s3_of(care), network=care.settings.model.network, spark=care.spark)


def open_target(care: UpkeepContext, location: str) -> TargetFolder:
    """Returns the folder of a replica's table. Nothing is read yet."""
    return TargetFolder(location, s3_of(care), care.settings.model.network)


def needs_jvm(*folders: str) -> bool:
    """Whether one of the folders is on HDFS, which only the process with Spark's session opens."""
    return any(parse(folder).needs_jvm for folder in folders)


def location_in(warehouse: str, identifier: tuple[str, ...]) -> str:
    """Returns the folder of a new replica's table."""
    return "/".join([canonical_path(warehouse).rstrip("/"), *identifier])


def warehouse_of(location: str, identifier: tuple[str, ...]) -> str:
    """Returns the warehouse of a replica's table by its folder."""
    return location.rstrip("/").removesuffix("/" + "/".join(identifier))


def require_apart(name: str, location: str, replicated: Iterable[str]) -> None:
    """Refuses a folder of a replica's table that overlaps with replicated ones.

    Raises:
        NotAllowedError: it does.
    """
    own = canonical_path(location)
    for folder in replicated:
        if overlaps(own, canonical_path(folder)):
            raise NotAllowedError(
                f"metadata of {name} cannot lie in {location}: that is in the replicated storage",
                cause=f"{folder} is written by the replication, which may be read-only, or delete what is not its own",
                hint="choose another --warehouse",
            )


def is_same(source: str, landed: str) -> bool:
    """Returns whether two spellings name one place."""
    try:
        return source == landed or canonical_path(source) == canonical_path(landed)
    except UsageError:
        return False


def map_places(found: PrefixMap, target: str, *, is_assigned: bool = False) -> tuple[PrefixMap, PrefixMap]:
    """Returns where the primary's paths are served from, and where relocated files go.

    Relocated files of other places never have the same names: what is served now stays as it is until the commit.

    Args:
        found: source prefixes, and where they landed.
        target: the folder of the replica's table.
        is_assigned: the folder is one that a service has made, which may take files at the usual places only. The first
            pair is then that of the table's own folder.
    """
    places = [(source, source if is_same(source, landed) else landed) for source, landed in found.pairs]
    homes = []
    for number, (source, landed) in enumerate(places):
        name = hashlib.sha256(f"{source}\0{landed}".encode()).hexdigest()[:8]
        if is_assigned:
            homes.append((source, target if number == 0 else f"{target}/data/{name}"))
        else:
            homes.append((source, f"{target}/relocated/{name}"))
    mapped = PrefixMap(places)
    return mapped, mapped if mapped.is_identity else PrefixMap(homes)


def compute_signature(places: PrefixMap, homes: PrefixMap) -> str:
    """Returns what changes when relocated files would."""
    return hashlib.sha256(repr((places.pairs, homes.pairs)).encode()).hexdigest()[:16]
