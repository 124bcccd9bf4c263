"""The JSON of `/content`. docs/http-api.md is checked against it."""

from __future__ import annotations

from pydantic import Field, JsonValue

from frazil.api.models import Answered


class ContentLag(Answered):
    """Messages that a response lacks."""

    messages: int | None = Field(description="number of messages; null: unknown, because the log cannot be read")
    reason: str = Field(description="why the response lacks them")


class ContentAnswer(Answered):
    lag: ContentLag | None = Field(
        None, description="set only if the response lacks messages that are durable in the log: how many, and why"
    )


class ContentVersion(Answered):
    """Summary of a version of an object."""

    version_id: str = Field(description="version; empty in a bucket without versions")
    size: int | None = Field(description="bytes")
    last_modified: str | None = Field(description="of the object, ISO 8601, UTC")
    etag: str | None = Field(description="without quotes")
    is_latest: bool = Field(description="whether it is the latest existing version")
    is_deleted: bool = Field(description="a tombstone: this version was deleted")
    is_delete_marker: bool = Field(description="whether this version is a delete marker")


class ContentObject(ContentVersion):
    """An object, or one of its versions, in a list."""

    bucket: str = Field(description="bucket, or the URI of a folder")
    key: str = Field(description="key, exactly as it is")
    storage_class: str | None = Field(description="`STANDARD`, `GLACIER`, …; null: not known")
    content_type: str | None = Field(description="as specified at the upload; null: unknown")
    tags: dict[str, str] | None = Field(description="names and values; null: not known")


class ContentPage(ContentAnswer):
    objects: list[ContentObject] = Field(description="in the requested order")
    after: str | None = Field(description="position to continue: `after` of the next request; null: there are no more")


class ContentState(Answered):
    """The state of an extractor."""

    version: str | None = Field(description="of the extractor")
    status: str = Field(description="`ok`, `gone`, `changed`, `unsupported` or `failed`")
    reason: str | None = Field(description="reason, if the status is not `ok`")
    at: str | None = Field(description="when, ISO 8601, UTC")


class ContentDetail(ContentObject, ContentAnswer):
    """All data of one version."""

    sequencer: str | None = Field(description="of the last change, as received from the store")
    sequence: str | None = Field(description="of the last change, as a text whose comparison gives the order")
    user_metadata: dict[str, str] | None = Field(description="names and values; null: not known")
    metadata: str | None = Field(description="extracted metadata, as JSON")
    extraction_status: str | None = Field(
        description="`pending`, `ok`, `failed` or `erased`; null: there is nothing to extract"
    )
    extraction: dict[str, ContentState] | None = Field(description="state of each extractor")
    detected_type: str | None = Field(description="media type by its first bytes")
    labels: list[str] | None = Field(description="labels, highest confidence first")
    image_width: int | None = Field(description="pixels, as displayed")
    image_height: int | None = Field(description="pixels, as displayed")
    taken_at: str | None = Field(description="time of recording, by the camera's clock, ISO 8601 without a time zone")
    camera: str | None = Field(description="maker and model")
    latitude: float | None = Field(description="degrees, north is positive")
    longitude: float | None = Field(description="degrees, east is positive")
    duration: float | None = Field(description="seconds of audio or video")
    page_count: int | None = Field(description="pages, sheets or slides")
    title: str | None = Field(description="title of the work")
    author: str | None = Field(description="author or artist")
    language: str | None = Field(description="of the text, as ISO 639-1")
    content_hash: str | None = Field(description="SHA-256 of the content, in hexadecimal")
    perceptual_hash: int | None = Field(description="similar images differ in few of its 64 bits")
    field_errors: dict[str, str] | None = Field(description="reasons why custom columns could not store their value")
    user_tags: list[str] | None = Field(description="tags by users")
    note: str | None = Field(description="note by a user")
    rating: int | None = Field(description="1 to 5")
    custom: dict[str, JsonValue] = Field(description="the custom columns of the table, and their values")
    dialect: str | None = Field(description="of the store's events; null: it was only observed")
    event_name: str | None = Field(description="of the last change")
    changed_at: str = Field(description="when the last change happened, ISO 8601, UTC")
    check_after: str | None = Field(
        description="when the bucket is queried again, because two sources disagree; null: not needed"
    )
    versions: list[ContentVersion] = Field(
        description="all versions of the key, including deleted ones, newest first, up to 1,000"
    )
    more_versions: bool = Field(description="whether there are more")


class ContentChange(Answered):
    """A row of the journal: an event, or an observation of the bucket."""

    record_timestamp: str = Field(description="when it happened, ISO 8601, UTC")
    record_type: str = Field(description="`CREATE`, `UPDATE_METADATA` or `DELETE`")
    version_id: str | None = Field(description="version; null in a bucket without versions")
    is_delete_marker: bool | None = Field(description="true: a marker; null: deleted for good; else false")
    size: int | None = Field(description="bytes")
    e_tag: str | None = Field(description="without quotes")
    storage_class: str | None = Field(description="`STANDARD`, `GLACIER`, …; null: unknown")
    dialect: str = Field(
        description="dialect of the source: `aws`, `minio`, `ceph`, `versitygw`, `other`, or `observed`"
    )
    event_name: str | None = Field(description="name of the event at the source")
    sequence_number: str = Field(
        description="orders the changes of a version; a time after `!` if there is no sequence"
    )
    sequencer: str | None = Field(description="the store's own sequence, as received")
    requester: str | None = Field(description="account that made the request; the user if no account is known")
    source_ip_address: str | None = Field(description="where the request came from")
    request_id: str | None = Field(description="of the request")
    topic: str = Field(description="position in the log: the topic")
    partition: int = Field(description="position in the log: the partition")
    offset: int = Field(description="position in the log: the message")
    index: int = Field(description="position in the log: index of the record in the message")


class ContentHistory(Answered):
    changes: list[ContentChange] = Field(description="oldest first; duplicate events appear twice")
    more: bool = Field(description="whether there are older ones")


class ContentLargest(Answered):
    bucket: str = Field(description="its bucket")
    key: str = Field(description="its key")
    version_id: str = Field(description="its version")
    size: int = Field(description="its bytes")


class ContentSums(Answered):
    objects: int = Field(description="existing objects")
    bytes: int = Field(description="of these")
    versions: int = Field(description="existing versions, including the objects")
    version_bytes: int = Field(description="of these")
    tombstones: int = Field(description="deleted versions")
    markers: int = Field(description="existing delete markers")
    oldest: str | None = Field(description="when the oldest object was modified, ISO 8601, UTC")
    newest: str | None = Field(description="when the newest object was modified, ISO 8601, UTC")
    largest: ContentLargest | None = Field(description="the largest object; null: there is none with a size")


class ContentGroup(ContentSums):
    """Totals of a group, with its grouping key."""

    bucket: str = Field(description="by `bucket` and by `prefix`")
    prefix: str = Field(description="by `prefix`: the folders, empty for keys without")
    class_: str | None = Field(alias="class", description="by `class`: the storage class")
    day: str | None = Field(description="by `day`: that of the last modification, in UTC")
    type: str | None = Field(description="by `type`: the content type")


class ContentStats(ContentAnswer):
    total: ContentSums = Field(description="of all requested objects")
    groups: list[ContentGroup] = Field(description="largest first by bytes; empty without `by`")
    more: bool = Field(description="whether there are more groups than `limit`")
