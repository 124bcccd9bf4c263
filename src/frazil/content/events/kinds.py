"""Maps names of events to kinds: created, changed, deleted, or none of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from frazil.content.columns import CREATE, DELETE, UPDATE


@dataclass(frozen=True)
class Kind:
    """The meaning of a name. `ask`: the name is not enough, and a HEAD request has to decide."""

    record_type: str
    is_delete_marker: bool = False
    ask: bool = False


CREATED: Final = Kind(CREATE)
UPDATED: Final = Kind(UPDATE)
DELETED: Final = Kind(DELETE)
MARKED: Final = Kind(CREATE, is_delete_marker=True)
#: More or other than one version was deleted.
GONE: Final = Kind(DELETE, ask=True)
#: Known events that change no object.
IGNORED: Final = Kind("")

#: Names in `Records`, without `s3:`.
_NAMES: Final = {
    "ObjectCreated:Put": CREATED,
    "ObjectCreated:Post": CREATED,
    "ObjectCreated:Copy": CREATED,
    "ObjectCreated:CompleteMultipartUpload": CREATED,
    # MinIO calls these "created", but the object is the same as before.
    "ObjectCreated:PutTagging": UPDATED,
    "ObjectCreated:DeleteTagging": UPDATED,
    "ObjectCreated:PutRetention": UPDATED,
    "ObjectCreated:PutLegalHold": UPDATED,
    "ObjectRemoved:Delete": DELETED,
    "ObjectRemoved:DeleteObjects": DELETED,
    "ObjectRemoved:DeleteMarkerCreated": MARKED,
    "ObjectRemoved:DeleteAllVersions": GONE,
    "ObjectRemoved:NoOP": IGNORED,
    "LifecycleExpiration:Delete": DELETED,
    "LifecycleExpiration:DeleteMarkerCreated": MARKED,
    "LifecycleDelMarkerExpiration:Delete": GONE,
    "LifecycleTransition": UPDATED,
    "IntelligentTiering": UPDATED,
    "ReducedRedundancyLostObject": IGNORED,
    # Ceph's own. `Current` is a delete in a plain bucket and a delete marker in one with versions.
    "ObjectLifecycle:Expiration:Current": GONE,
    "ObjectLifecycle:Expiration:Noncurrent": DELETED,
    "ObjectLifecycle:Expiration:NonCurrent": DELETED,
    "ObjectLifecycle:Expiration:DeleteMarker": DELETED,
    "ObjectLifecycle:Expiration:AbortMPU": IGNORED,
    "ObjectLifecycle:Expiration:AbortMultipartUpload": IGNORED,
    # In Ceph these report changes that arrived from another zone. Elsewhere `Replication:` only reports a status.
    "ObjectSynced:Create": CREATED,
    "ObjectSynced:Delete": DELETED,
    "ObjectSynced:DeletionMarkerCreated": MARKED,
    "Replication:Create": CREATED,
    "Replication:Delete": DELETED,
    "Replication:DeletionMarkerCreated": MARKED,
}

#: Families whose later members mean the same.
_FAMILIES: Final = {
    "ObjectCreated": CREATED,
    "ObjectTagging": UPDATED,
    "ObjectAcl": UPDATED,
    "ObjectRestore": UPDATED,
    "ObjectTransition": UPDATED,
    "LifecycleTransition": UPDATED,
    "IntelligentTiering": UPDATED,
    "ObjectAccessed": IGNORED,
    "Replication": IGNORED,
    "Scanner": IGNORED,
    "BucketCreated": IGNORED,
    "BucketRemoved": IGNORED,
}

#: EventBridge's `detail-type`; `Object Deleted` depends on its `deletion-type`.
_DETAIL_TYPES: Final = {
    "Object Created": CREATED,
    "Object Restore Initiated": UPDATED,
    "Object Restore Completed": UPDATED,
    "Object Restore Expired": UPDATED,
    "Object Tags Added": UPDATED,
    "Object Tags Deleted": UPDATED,
    "Object ACL Updated": UPDATED,
    "Object Storage Class Changed": UPDATED,
    "Object Access Tier Changed": UPDATED,
    "Async Copy Completion": IGNORED,
}
_DELETIONS: Final = {"Permanently Deleted": DELETED, "Delete Marker Created": MARKED}


def kind_of(name: str) -> Kind | None:
    """Returns the kind of a record by its `eventName`; None for an unknown name."""
    bare = name.removeprefix("s3:")
    kind = _NAMES.get(bare)
    if kind is not None:
        return kind
    if bare.startswith("ObjectLifecycle:Transition:"):
        return UPDATED
    family, colon, _ = bare.partition(":")
    return _FAMILIES.get(family) if colon else None


def kind_of_detail(detail_type: str, deletion_type: object) -> Kind | None:
    """Returns the kind of an EventBridge event by its `detail-type` and `detail.deletion-type`."""
    if detail_type == "Object Deleted":
        return _DELETIONS.get(deletion_type) if isinstance(deletion_type, str) else None
    return _DETAIL_TYPES.get(detail_type)
