"""What events of objects change in documents: late, repeated and reordered events end in what the bucket holds."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from frazil.content.events import parse_message
from frazil.documents.decide import decide_writes
from frazil.documents.model import Document, Revision
from frazil.documents.object_events import Inspected, ObjectEvent, decide_event, document_id_of
from frazil.documents.objects import STORAGE_CLASSES, TIER_OF_CLASS, id_of_object, location_of
from frazil.documents.store import Write
from frazil.errors import ConflictError, UsageError
from frazil.followers import event_of
from frazil.settings.model import FollowedBucketSettings
from frazil.storage.files import ARCHIVE_CLASSES, RestoredCopy, StoredFile

T0 = datetime(2026, 3, 1, 12, tzinfo=UTC)
FOLLOW = FollowedBucketSettings(create=True, delete=True)
NOBODY = Inspected(None, is_known=False)


@dataclass
class Documents:
    """The latest revisions, by the pure functions of the stores."""

    follow: FollowedBucketSettings = FOLLOW
    inspected: Inspected = NOBODY
    latest: dict[str, Revision] = field(default_factory=dict)
    now: datetime = T0 + timedelta(days=100)
    revisions: int = 0

    def apply(self, *events: ObjectEvent) -> Document | None:
        for event in events:
            latest = self.latest.get(document_id_of(event, self.follow))
            self.write(decide_event(event, latest, self.follow, lambda *_: self.inspected))
        return self.document

    def write(self, writes: list[Write]) -> None:
        self.now += timedelta(seconds=1)
        for decision in decide_writes(writes, self.latest, {}, {}, self.now):
            self.latest[decision.revision.document_id] = decision.revision
            self.revisions += 1

    @property
    def document(self) -> Document | None:
        found = [revision.document for revision in self.latest.values() if not revision.is_deleted]
        assert len(found) <= 1
        return found[0] if found else None

    def have(self, **fields) -> None:
        values = {"filename": "a.pdf", "provider": "aws", "bucket": "b", "object_key": "k/a.pdf", **fields}
        self.write([Write("put", id_of_object("aws", "b", "k/a.pdf"), values)])


def event(kind, number=1, **fields) -> ObjectEvent:
    at = T0 + timedelta(minutes=number)
    return replace(
        ObjectEvent(kind, "b", "k/a.pdf", at, "log", number, sequence=f"{number:04}", etag=f"e{number}", size=number),
        **fields,
    )


def stored(etag="e1", storage_class="STANDARD", version_id="", restored=None) -> StoredFile:
    return StoredFile(7, etag, T0, version_id, storage_class, "application/pdf", restored)


def test_a_new_object_makes_a_document_only_where_the_settings_say_so():
    assert Documents(FollowedBucketSettings(delete=True)).apply(event("created")) is None
    made = Documents(FollowedBucketSettings(create=True, provider="minio")).apply(event("created", version_id="v1"))
    assert (made.filename, made.bucket, made.object_key) == ("a.pdf", "b", "k/a.pdf")
    assert (made.provider, made.version_id, made.size_bytes, made.checksum) == ("minio", "v1", 1, "etag:e1")
    assert made.created_at == T0 + timedelta(minutes=1)


def test_the_tier_of_a_new_object_comes_from_the_bucket():
    documents = Documents(inspected=Inspected(stored(storage_class="DEEP_ARCHIVE")))
    made = documents.apply(event("created"))
    assert (made.storage_tier, made.size_bytes, made.content_type) == ("deep_archive", 7, "application/pdf")


def test_a_folder_of_a_console_and_an_object_that_is_gone_make_no_document():
    assert Documents().apply(event("created", key="k/")) is None
    assert Documents(inspected=Inspected(None)).apply(event("created")) is None


def test_an_event_that_comes_again_changes_nothing():
    documents = Documents()
    events = [event("created"), event("transitioned", 2, storage_class="GLACIER"), event("restore_started", 3)]
    documents.apply(*events)
    before = documents.revisions
    documents.apply(*events, *reversed(events), events[1])
    assert documents.revisions == before


def test_an_event_that_comes_again_after_a_crash_does_not_undo_a_later_one():
    documents = Documents()
    documents.have()
    first, second = (event("transitioned", n, storage_class=c) for n, c in ((2, "GLACIER"), (3, "DEEP_ARCHIVE")))
    documents.apply(first, second)
    assert documents.apply(first).storage_tier == "deep_archive"


def test_an_older_event_of_the_same_object_changes_nothing():
    documents = Documents()
    documents.apply(event("created", 5))
    documents.apply(event("created", 3, offset=9), event("removed", 4, offset=10))
    assert documents.document.checksum == "etag:e5"
    documents.apply(event("removed", 6, offset=11), event("created", 5, offset=12))
    assert documents.document is None


def test_the_event_of_a_registered_file_keeps_its_checksum_and_tags():
    documents = Documents(inspected=Inspected(stored("e1", "GLACIER", "v1")))
    documents.have(
        checksum="sha256:ab",
        storage_tier="archive",
        version_id="v1",
        tags={"a": "b"},
        attributes={"object": {"etag": "e1"}},
    )
    kept = documents.apply(event("created", 1, version_id="v1"))
    assert (kept.checksum, kept.storage_tier, kept.tags) == ("sha256:ab", "archive", {"a": "b"})
    assert kept.attributes["object"]["sequence"] == "0001"


def test_a_new_version_gives_the_document_a_new_object_and_keeps_its_tags():
    documents = Documents()
    documents.have(checksum="sha256:ab", version_id="v1", tags={"a": "b"}, storage_tier="archive")
    documents.inspected = Inspected(stored("e2", "STANDARD", "v2"))
    made = documents.apply(event("created", 2, version_id="v2"))
    assert (made.version_id, made.checksum, made.storage_tier) == ("v2", "etag:e2", "standard")
    assert made.tags == {"a": "b"}


def test_the_same_content_uploaded_again_is_a_new_version():
    documents = Documents(inspected=Inspected(stored("e1", version_id="v2")))
    documents.have(version_id="v1", attributes={"object": {"etag": "e1"}})
    assert documents.apply(event("created", 2, version_id="v2", etag="e1")).version_id == "v2"


def test_the_late_removal_of_an_object_that_was_added_again_keeps_the_document():
    documents = Documents(inspected=Inspected(stored("e5")))
    documents.have(checksum="sha256:ab")
    assert documents.apply(event("removed", 4)).checksum == "sha256:ab"


def test_removals_delete_documents_only_where_the_settings_say_so():
    for follow, is_deleted in ((FOLLOW, True), (FollowedBucketSettings(create=True), False)):
        documents = Documents(follow)
        documents.apply(event("created", 1), event("removed", 2, is_marker=True))
        assert (documents.document is None) == is_deleted


def test_the_removal_of_a_former_version_changes_nothing_and_of_the_current_one_shows_the_one_before():
    documents = Documents()
    documents.have(version_id="v2")
    documents.apply(event("removed", 3, version_id="v1"))
    assert documents.document.revision == 1
    documents.inspected = Inspected(stored("e1", version_id="v1"))
    assert documents.apply(event("removed", 4, version_id="v2")).version_id == "v1"


def archived(**fields) -> Documents:
    documents = Documents()
    documents.have(storage_tier="archive", version_id="v1", **fields)
    return documents


EXPIRY = T0 + timedelta(days=8)


def test_a_restore_is_followed_and_the_tier_stays():
    documents = archived(restore_status="requested", restore_requested_at=T0)
    seen = []
    for number, (kind, more) in enumerate(
        [
            ("restore_started", {}),
            ("restored", {"restore_expiry": EXPIRY}),
            ("restore_expired", {"time": EXPIRY + timedelta(hours=3)}),
        ],
        start=1,
    ):
        found = documents.apply(event(kind, number, sequence=None, **more))
        seen.append((found.restore_status, found.restore_requested_at, found.restore_expiry, found.storage_tier))
    assert seen == [
        ("in_progress", T0, None, "archive"), ("restored", T0, EXPIRY, "archive"), ("expired", T0, EXPIRY, "archive"),
    ]  # fmt: skip


def test_a_restore_that_somebody_else_requested_is_followed_too():
    documents = archived()
    found = documents.apply(event("restore_started", 2))
    assert (found.restore_status, found.restore_requested_at) == ("in_progress", T0 + timedelta(minutes=2))


def test_events_of_a_restore_in_any_order_end_restored():
    """The start may come after the end, and the expiry of the copy before after both."""
    start, done = event("restore_started", 5), event("restored", 6, restore_expiry=EXPIRY)
    former = event("restore_expired", 4, time=T0)
    for order in itertools.permutations([start, done, former, done]):
        documents = archived()
        found = documents.apply(*(replace(one, offset=n) for n, one in enumerate(order, start=10)))
        assert (found.restore_status, found.restore_expiry) == ("restored", EXPIRY)


def test_an_expiry_that_the_event_does_not_tell_is_asked_for():
    documents = archived(restore_status="in_progress", restore_requested_at=T0)
    assert documents.apply(event("restored", 2)).restore_status == "in_progress"
    documents.inspected = Inspected(stored(storage_class="GLACIER", restored=RestoredCopy(False, EXPIRY)))
    assert documents.apply(event("restored", 3)).restore_expiry == EXPIRY


def test_a_restore_of_another_version_changes_nothing():
    documents = archived()
    assert documents.apply(event("restored", 2, version_id="v0", restore_expiry=EXPIRY)).revision == 1
    assert documents.apply(event("restored", 3, version_id="v1", restore_expiry=EXPIRY)).restore_status == "restored"


def test_a_restore_tells_the_archive_that_a_lost_transition_did_not():
    documents = Documents()
    documents.have(version_id="v1")
    assert documents.apply(event("restore_started", 2)).restore_status == "none"
    found = documents.apply(event("restored", 3, restore_expiry=EXPIRY, storage_class="GLACIER"))
    assert (found.storage_tier, found.restore_status) == ("archive", "restored")


@pytest.mark.parametrize(("storage_class", "tier"), TIER_OF_CLASS.items())
def test_a_transition_moves_the_document_to_the_tier_of_its_class(storage_class: str, tier: str):
    documents = Documents()
    documents.have()
    assert documents.apply(event("transitioned", 2, storage_class=storage_class)).storage_tier == tier


def test_a_transition_that_is_impossible_or_unknown_changes_nothing():
    documents = archived()
    assert documents.apply(event("transitioned", 2, storage_class="STANDARD")).revision == 1
    assert documents.apply(event("transitioned", 3)).revision == 1


def test_every_tier_has_a_storage_class_and_comes_back_from_it():
    assert {tier: TIER_OF_CLASS[name] for tier, name in STORAGE_CLASSES.items()} == {t: t for t in STORAGE_CLASSES}
    assert {name for name, tier in TIER_OF_CLASS.items() if "archive" in tier} == ARCHIVE_CLASSES


@pytest.mark.parametrize("seed", range(40))
def test_any_schedule_of_events_ends_in_what_the_bucket_holds(seed: int):
    """Puts and removals, delivered in any order and any number of times, with crashes that repeat what was applied."""
    chance = random.Random(seed)
    versioned = chance.random() < 0.5
    versions: list[tuple[str, str]] = []
    told: list[ObjectEvent] = []
    for number in range(1, chance.randint(3, 9)):
        name = f"v{number}" if versioned else ""
        if chance.random() < 0.6 or not versions:
            versions = [*(versions if versioned else []), (name, f"e{number}")]
            told.append(event("created", number, version_id=name))
        elif versioned and chance.random() < 0.5:
            gone, _ = versions.pop(chance.randrange(len(versions)))
            told.append(event("removed", number, version_id=gone, etag=None))
        else:
            versions = []
            told.append(event("removed", number, version_id=name, etag=None, is_marker=versioned))
    delivered = [*told, *chance.choices(told, k=3)]
    chance.shuffle(delivered)
    delivered = [replace(one, offset=offset) for offset, one in enumerate(delivered)]
    truth = versions[-1] if versions else None
    documents = Documents(inspected=Inspected(stored(truth[1], version_id=truth[0]) if truth else None))
    for offset in range(len(delivered)):
        documents.apply(*delivered[max(0, offset - chance.randint(0, 2)) : offset + 1])
    found = documents.document
    assert (found and (found.version_id or "", found.attributes["object"]["etag"])) == truth


RECORD = (
    '{{"Records":[{{"eventVersion":"2.3","eventSource":"aws:s3","awsRegion":"us-east-1","eventTime":"2026-03-01T12:00:00Z",'
    '"eventName":"{name}","s3":{{"bucket":{{"name":"b"}},"object":{{"key":"k/a+1.pdf","size":3,"eTag":"e","versionId":"v1"'
    "{sequencer}}}}}{more}}}]}}"
)
RESTORE = ',"glacierEventData":{"restoreEventData":{"lifecycleRestorationExpiryTime":"2026-03-08T00:00:00.000Z","lifecycleRestoreStorageClass":"GLACIER"}}'  # noqa: E501
TRANSITION = ',"lifecycleEventData":{"transitionEventData":{"destinationStorageClass":"DEEP_ARCHIVE"}}'


@pytest.mark.parametrize(
    ("name", "more", "kind", "storage_class"),
    [
        ("ObjectCreated:Put", "", "created", None),
        ("s3:ObjectCreated:CompleteMultipartUpload", "", "created", None),
        ("ObjectRemoved:Delete", "", "removed", None),
        ("ObjectRemoved:DeleteMarkerCreated", "", "removed", None),
        ("LifecycleExpiration:Delete", "", "removed", None),
        ("LifecycleTransition", TRANSITION, "transitioned", "DEEP_ARCHIVE"),
        ("ObjectRestore:Post", "", "restore_started", None),
        ("s3:ObjectRestore:Completed", RESTORE, "restored", "GLACIER"),
        ("ObjectRestore:Delete", RESTORE, "restore_expired", "GLACIER"),
        ("ObjectTagging:Put", "", None, None),
        ("ObjectAcl:Put", "", None, None),
    ],
)
def test_events_of_s3_are_understood(name, more, kind, storage_class):
    sequencer = ',"sequencer":"0055AED6DCD90281E5"' if name.startswith(("ObjectCreated", "ObjectRemoved")) else ""
    (change,) = parse_message(RECORD.format(name=name, sequencer=sequencer, more=more).encode()).changes
    found = event_of(change, "log", 7)
    if kind is None:
        assert found is None
        return
    assert (found.kind, found.bucket, found.key, found.version_id) == (kind, "b", "k/a 1.pdf", "v1")
    assert (found.storage_class, found.offset, found.log_id) == (storage_class, 7, "log")
    assert found.restore_expiry == (datetime(2026, 3, 8, tzinfo=UTC) if kind == "restored" else None)


def test_what_frazil_has_seen_itself_is_no_event_of_a_document():
    message = b'{"frazil":"observation","version":1,"bucket":"b","source":"scan","observed_at":"2026-03-01T12:00:00Z","objects":[{"key":"a"}]}'  # noqa: E501
    (change,) = parse_message(message, internal=True).changes
    assert event_of(change, "log", 0) is None


def test_the_place_of_an_object_is_read_from_its_document():
    def place(**fields) -> str:
        root, key = location_of(Document("d", "a", **{"bucket": "b", "object_key": "k", **fields}))
        return str(root.child(key))

    assert place(provider="aws") == place(provider=None) == place(provider="minio") == "s3://b/k"
    assert place(provider="gcp") == "gs://b/k" and place(provider="azure") == "az://b/k"
    assert place(provider="local", bucket="/srv/a b") == "file:///srv/a b/k"
    for missing in ({"bucket": None}, {"object_key": None}):
        with pytest.raises(UsageError, match="no object"):
            place(**missing)


def test_a_mark_that_somebody_has_written_over_does_no_harm():
    for mark in ("text", {"offset": "x", "log": "log"}, {"time": "never"}, {"sequence": 7}, ["a"]):
        documents = Documents()
        documents.have(attributes={"object": mark})
        try:
            assert documents.apply(event("created", 9)).checksum == "etag:e9"
        except (ConflictError, UsageError) as error:
            pytest.fail(str(error))


@pytest.mark.parametrize("content_type", ["binary", "text/html, text/plain", "a" * 300])
def test_an_object_whose_content_type_no_document_can_hold_has_a_document_without_one(content_type):
    made = Documents().apply(event("created", content_type=content_type))
    assert made is not None
    assert (made.content_type, made.size_bytes) == (None, 1)


@pytest.mark.parametrize("kind", ["removed", "transitioned", "restored"])
def test_a_document_that_changed_since_it_was_read_is_not_changed_by_an_old_decision(kind):
    documents = Documents(inspected=Inspected(None))
    documents.have(storage_tier="archive")
    (before,) = documents.latest.values()
    later = event(kind, 9, storage_class="DEEP_ARCHIVE", restore_expiry=T0 + timedelta(days=900))
    decided = decide_event(later, before, FOLLOW, lambda *_: documents.inspected)
    assert decided
    documents.write([Write("update", before.document_id, {"tags": {"kept": "yes"}})])
    with pytest.raises(ConflictError):
        documents.write(decided)
