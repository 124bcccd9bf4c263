"""The columns of parsed changes, of `content.journal` and of `content.objects`."""

from __future__ import annotations

import pyarrow as pa

TEXTS = pa.map_(pa.string(), pa.string())
TIME = pa.timestamp("us", tz="UTC")
#: S3 Metadata's times have no time zone; they are UTC.
PLAIN_TIME = pa.timestamp("us")

CREATE = "CREATE"
UPDATE = "UPDATE_METADATA"
DELETE = "DELETE"

#: The dialect of observations.
OBSERVED = "observed"


def _column(name: str, kind: pa.DataType, doc: str, *, required: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=not required, metadata={"doc": doc})


#: A change: one record of an event, or one object of an observation.
CHANGE = pa.schema(
    [
        _column("offset", pa.int64(), "of the message in the log", required=True),
        _column("index", pa.int32(), "which record of the message", required=True),
        _column("dialect", pa.string(), "aws, minio, ceph, versitygw, other, observed", required=True),
        _column("event_name", pa.string(), "as the source calls it"),
        _column("record_type", pa.string(), "CREATE, UPDATE_METADATA or DELETE", required=True),
        _column("bucket", pa.string(), "bucket, or the URI of a folder", required=True),
        _column("key", pa.string(), "key, decoded", required=True),
        _column("version_id", pa.string(), "version; empty in a bucket without versions", required=True),
        _column("sequencer", pa.string(), "the source's own sequence, as received"),
        _column("sequence", pa.string(), "the same so that texts compare as it orders; null: there is no usable order"),
        _column("tie", pa.string(), "digest of the record, which decides between equal sequences", required=True),
        _column("time", TIME, "of the event, or of the observation by the storage's clock", required=True),
        _column("needs_asking", pa.bool_(), "whether only the bucket itself knows what is true", required=True),
        _column("etag", pa.string(), "without quotes"),
        _column("size", pa.int64(), "bytes"),
        _column("storage_class", pa.string(), "STANDARD, GLACIER, …"),
        _column("content_type", pa.string(), "as it was uploaded"),
        _column("last_modified", TIME, "of the object"),
        _column("tags", TEXTS, "null: not known"),
        _column("user_metadata", TEXTS, "null: not known"),
        _column("is_delete_marker", pa.bool_(), "whether this version is a delete marker", required=True),
        _column("is_latest", pa.bool_(), "what an observation says of it; null: it says nothing"),
        _column("requester", pa.string(), "account that made the request; the user where no account is named"),
        _column("source_ip_address", pa.string(), "where the request came from"),
        _column("request_id", pa.string(), "of the request"),
        _column("raw_event", pa.string(), "the record as it came, as JSON"),
    ]
)  # fmt: skip

#: The 21 columns of S3 Metadata's journal under its names and types, then ours.
JOURNAL = pa.schema(
    [
        _column("bucket", pa.string(), "bucket, or the URI of a folder", required=True),
        _column("key", pa.string(), "key", required=True),
        _column("sequence_number", pa.string(), "compares as the changes of a version came", required=True),
        _column("record_type", pa.string(), "CREATE, UPDATE_METADATA or DELETE", required=True),
        _column("record_timestamp", PLAIN_TIME, "when it happened, in UTC", required=True),
        _column("version_id", pa.string(), "version; null in a bucket without versions"),
        _column("is_delete_marker", pa.bool_(), "true: a marker; null: deleted for good; else false"),
        _column("size", pa.int64(), "bytes"),
        _column("last_modified_date", PLAIN_TIME, "of the object, in UTC"),
        _column("e_tag", pa.string(), "without quotes"),
        _column("storage_class", pa.string(), "STANDARD, GLACIER, …"),
        _column("is_multipart", pa.bool_(), "whether it was uploaded in parts"),
        _column("encryption_status", pa.string(), "null: events do not tell"),
        _column("is_bucket_key_enabled", pa.bool_(), "null: events do not tell"),
        _column("kms_key_arn", pa.string(), "null: events do not tell"),
        _column("checksum_algorithm", pa.string(), "null: events do not tell"),
        _column("object_tags", TEXTS, "null: not known"),
        _column("user_metadata", TEXTS, "null: not known"),
        _column("requester", pa.string(), "account that made the request; the user where no account is named"),
        _column("source_ip_address", pa.string(), "where the request came from"),
        _column("request_id", pa.string(), "of the request"),
        _column("dialect", pa.string(), "aws, minio, ceph, versitygw, other, observed", required=True),
        _column("event_name", pa.string(), "as the source calls it"),
        _column("sequencer", pa.string(), "the source's own sequence, as received"),
        _column("raw_event", pa.string(), "the record as it came, as JSON"),
        _column("topic", pa.string(), "where it lay in the log: the topic", required=True),
        _column("partition", pa.int32(), "where it lay in the log: the partition", required=True),
        _column("offset", pa.int64(), "where it lay in the log: the message", required=True),
        _column("index", pa.int32(), "where it lay in the log: which record of the message", required=True),
    ]
)  # fmt: skip

#: The order information of a row in `content.objects`, against which later changes are compared.
ORDER = pa.struct(
    [
        pa.field("created", pa.string()),
        pa.field("created_time", TIME),
        pa.field("updated", pa.string()),
        pa.field("updated_time", TIME),
        pa.field("deleted", pa.string()),
        pa.field("deleted_time", TIME),
        pa.field("classed", pa.string()),
        pa.field("classed_time", TIME),
        pa.field("observed_time", TIME),
        pa.field("observed_gone", pa.bool_()),
        pa.field("observed_latest", pa.bool_()),
    ]
)

#: The result of an extractor, under its name.
STATE = pa.struct(
    [
        pa.field("version", pa.string()),
        pa.field("status", pa.string()),
        pa.field("reason", pa.string()),
        pa.field("at", TIME),
    ]
)

#: Extracted columns: they belong to one content, and are dropped when the content changes.
EXTRACTED = (
    _column("metadata", pa.string(), "what was found inside, as JSON; each extractor under its own name"),
    _column("extraction_status", pa.string(), "pending, ok, failed, or erased; null: there is nothing to look into"),
    _column("extraction", pa.map_(pa.string(), STATE), "what each extractor has come to"),
    _column("detected_type", pa.string(), "media type by its first bytes"),
    _column("labels", pa.list_(pa.string()), "what is to be seen, the surest first"),
    _column("image_width", pa.int32(), "pixels, as it is to be shown"),
    _column("image_height", pa.int32(), "pixels, as it is to be shown"),
    _column("taken_at", PLAIN_TIME, "when a picture or film was taken, by the clock of the camera"),
    _column("camera", pa.string(), "maker and model"),
    _column("latitude", pa.float64(), "degrees, north is positive"),
    _column("longitude", pa.float64(), "degrees, east is positive"),
    _column("duration", pa.float64(), "seconds of sound or film"),
    _column("page_count", pa.int32(), "pages, sheets or slides"),
    _column("title", pa.string(), "title of the work"),
    _column("author", pa.string(), "author or artist"),
    _column("language", pa.string(), "of the text, as ISO 639-1"),
    _column("content_hash", pa.string(), "SHA-256 of the content, in hexadecimal"),
    _column("perceptual_hash", pa.int64(), "pictures that look alike differ in few of its 64 bits"),
    _column("field_errors", pa.map_(pa.string(), pa.string()), "custom columns that could not take their value: why"),
    _column("frazil_fields", pa.list_(pa.string()), "custom columns that are computed; for Frazil itself"),
)  # fmt: skip

#: Columns that people have entered. Neither extraction nor new content of the same key changes them.
USERS = (
    _column("user_tags", pa.list_(pa.string()), "tags that people gave it, in order"),
    _column("note", pa.string(), "a person's note"),
    _column("rating", pa.int32(), "1 to 5"),
)  # fmt: skip

OBJECTS = pa.schema(
    [
        _column("bucket", pa.string(), "bucket, or the URI of a folder", required=True),
        _column("key", pa.string(), "key", required=True),
        _column("version_id", pa.string(), "version; empty in a bucket without versions", required=True),
        _column("sequencer", pa.string(), "of the last change, as received"),
        _column("sequence", pa.string(), "of the last change, so that texts compare as it orders"),
        _column("etag", pa.string(), "without quotes"),
        _column("size", pa.int64(), "bytes"),
        _column("storage_class", pa.string(), "STANDARD, GLACIER, …"),
        _column("content_type", pa.string(), "as it was uploaded; null: not known"),
        _column("last_modified", TIME, "of the object"),
        _column("tags", TEXTS, "null: not known"),
        _column("user_metadata", TEXTS, "null: not known"),
        _column("is_latest", pa.bool_(), "whether it is the newest version that is there", required=True),
        _column("is_deleted", pa.bool_(), "a tombstone: this version is gone", required=True),
        _column("is_delete_marker", pa.bool_(), "whether this version is a delete marker", required=True),
        *EXTRACTED,
        *USERS,
        _column("dialect", pa.string(), "whose sequence it has; null: it was only observed"),
        _column("event_name", pa.string(), "of the last change"),
        _column("changed_at", TIME, "when the last change happened", required=True),
        _column("check_after", TIME, "when the bucket is to be asked again: two sources disagree within their skew"),
        _column("frazil_order", ORDER, "what decides whether a later message is news; for Frazil itself"),
    ]
)  # fmt: skip

KEPT = (*EXTRACTED, *USERS)
#: The columns that events and observations decide.
BASE = pa.schema([f for f in OBJECTS if f not in KEPT])
