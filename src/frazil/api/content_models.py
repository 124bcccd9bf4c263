"""The JSON of `/content`. docs/http-api.md is checked against it."""

from __future__ import annotations

from pydantic import Field, JsonValue

from frazil.api.models import Answered


class ContentLag(Answered):
    """Messages that an answer lacks."""

    messages: int | None = Field(description="how many; null: not known, as the log cannot be read")
    reason: str = Field(description="why the answer lacks them")


class ContentAnswer(Answered):
    lag: ContentLag | None = Field(
        None, description="only where the answer lacks messages that are durable in the log: how many, and why"
    )


class ContentVersion(Answered):
    """A version of an object, in short."""

    version_id: str = Field(description="version; empty in a bucket without versions")
    size: int | None = Field(description="bytes")
    last_modified: str | None = Field(description="of the object, ISO 8601, UTC")
    etag: str | None = Field(description="without quotes")
    is_latest: bool = Field(description="whether it is the newest version that is there")
    is_deleted: bool = Field(description="a tombstone: this version is gone")
    is_delete_marker: bool = Field(description="whether this version is a delete marker")


class ContentObject(ContentVersion):
    """An object, or one of its versions, as a list has it."""

    bucket: str = Field(description="bucket, or the URI of a folder")
    key: str = Field(description="key, exactly as it is")
    storage_class: str | None = Field(description="`STANDARD`, `GLACIER`, …; null: not known")
    content_type: str | None = Field(description="as it was uploaded; null: not known")
    tags: dict[str, str] | None = Field(description="names and values; null: not known")


class ContentPage(ContentAnswer):
    objects: list[ContentObject] = Field(description="in the order that was asked for")
    after: str | None = Field(description="where to go on: `after` of the next request; null: that was all")


class ContentState(Answered):
    """What an extractor has come to."""

    version: str | None = Field(description="of the extractor")
    status: str = Field(description="`ok`, `gone`, `changed`, `unsupported` or `failed`")
    reason: str | None = Field(description="where it is not ok")
    at: str | None = Field(description="when, ISO 8601, UTC")


class ContentDetail(ContentObject, ContentAnswer):
    """All that is known of one version."""

    sequencer: str | None = Field(description="of the last change, as the store has sent it")
    sequence: str | None = Field(description="of the last change, so that texts compare as it orders")
    user_metadata: dict[str, str] | None = Field(description="names and values; null: not known")
    metadata: str | None = Field(description="what was found inside, as JSON")
    extraction_status: str | None = Field(
        description="`pending`, `ok`, `failed` or `erased`; null: there is nothing to look into"
    )
    extraction: dict[str, ContentState] | None = Field(description="what each extractor has come to")
    detected_type: str | None = Field(description="media type by its first bytes")
    labels: list[str] | None = Field(description="what is to be seen, the surest first")
    image_width: int | None = Field(description="pixels, as it is to be shown")
    image_height: int | None = Field(description="pixels, as it is to be shown")
    taken_at: str | None = Field(description="when it was taken, by the clock of the camera, ISO 8601 without a zone")
    camera: str | None = Field(description="maker and model")
    latitude: float | None = Field(description="degrees, north is positive")
    longitude: float | None = Field(description="degrees, east is positive")
    duration: float | None = Field(description="seconds of sound or film")
    page_count: int | None = Field(description="pages, sheets or slides")
    title: str | None = Field(description="title of the work")
    author: str | None = Field(description="author or artist")
    language: str | None = Field(description="of the text, as ISO 639-1")
    content_hash: str | None = Field(description="SHA-256 of the content, in hexadecimal")
    perceptual_hash: int | None = Field(description="pictures that look alike differ in few of its 64 bits")
    field_errors: dict[str, str] | None = Field(description="custom columns that could not take their value: why")
    user_tags: list[str] | None = Field(description="tags that people gave it")
    note: str | None = Field(description="a person's note")
    rating: int | None = Field(description="1 to 5")
    custom: dict[str, JsonValue] = Field(description="the custom columns of the table, and their values")
    dialect: str | None = Field(description="of the store's events; null: it was only observed")
    event_name: str | None = Field(description="of the last change")
    changed_at: str = Field(description="when the last change happened, ISO 8601, UTC")
    check_after: str | None = Field(
        description="when the bucket is asked again, because two sources disagree; null: no need"
    )
    versions: list[ContentVersion] = Field(description="all that the key has or had, newest first, up to 1,000")
    more_versions: bool = Field(description="whether there are more")


class ContentChange(Answered):
    """A row of the journal: an event, or a look at the bucket."""

    record_timestamp: str = Field(description="when it happened, ISO 8601, UTC")
    record_type: str = Field(description="`CREATE`, `UPDATE_METADATA` or `DELETE`")
    version_id: str | None = Field(description="version; null in a bucket without versions")
    is_delete_marker: bool | None = Field(description="true: a marker; null: deleted for good; else false")
    size: int | None = Field(description="bytes")
    e_tag: str | None = Field(description="without quotes")
    storage_class: str | None = Field(description="`STANDARD`, `GLACIER`, …; null: not told")
    dialect: str = Field(description="who told it: `aws`, `minio`, `ceph`, `versitygw`, `other`, or `observed`")
    event_name: str | None = Field(description="as the source calls it")
    sequence_number: str = Field(
        description="compares as the changes of a version came; a time after `!` where there is none"
    )
    sequencer: str | None = Field(description="the store's own sequence, as received")
    requester: str | None = Field(description="account that made the request; the user where no account is named")
    source_ip_address: str | None = Field(description="where the request came from")
    request_id: str | None = Field(description="of the request")
    topic: str = Field(description="where it lay in the log: the topic")
    partition: int = Field(description="where it lay in the log: the partition")
    offset: int = Field(description="where it lay in the log: the message")
    index: int = Field(description="where it lay in the log: which record of the message")


class ContentHistory(Answered):
    changes: list[ContentChange] = Field(description="oldest first; what came twice is there twice")
    more: bool = Field(description="whether there are older ones")


class ContentLargest(Answered):
    bucket: str = Field(description="its bucket")
    key: str = Field(description="its key")
    version_id: str = Field(description="its version")
    size: int = Field(description="its bytes")


class ContentSums(Answered):
    objects: int = Field(description="objects that are there now")
    bytes: int = Field(description="of these")
    versions: int = Field(description="versions that are there, the objects among them")
    version_bytes: int = Field(description="of these")
    tombstones: int = Field(description="versions that are gone")
    markers: int = Field(description="delete markers that are there")
    oldest: str | None = Field(description="when the oldest object was modified, ISO 8601, UTC")
    newest: str | None = Field(description="when the newest object was modified, ISO 8601, UTC")
    largest: ContentLargest | None = Field(description="the largest object; null: there is none with a size")


class ContentGroup(ContentSums):
    """Sums of a group, with what it was grouped by."""

    bucket: str = Field(description="by `bucket` and by `prefix`")
    prefix: str = Field(description="by `prefix`: the folders, empty for keys without")
    class_: str | None = Field(alias="class", description="by `class`: the storage class")
    day: str | None = Field(description="by `day`: that of the last modification, in UTC")
    type: str | None = Field(description="by `type`: the content type")


class ContentStats(ContentAnswer):
    total: ContentSums = Field(description="of all that was asked for")
    groups: list[ContentGroup] = Field(description="those with most bytes first; empty without `by`")
    more: bool = Field(description="whether there are more groups than `limit`")
