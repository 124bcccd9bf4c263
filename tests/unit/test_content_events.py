"""Events of every dialect become changes of one shape; what is not understood gets its reason and harms no other."""

from __future__ import annotations

import copy
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote_plus

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from frazil.content.buckets import is_bucket_name
from frazil.content.columns import CHANGE
from frazil.content.events import observation, parse_message, parse_messages
from frazil.content.events.model import DIALECTS, REASONS
from frazil.log.columns import MESSAGE
from frazil.log.trust import add_mark

_ROOT = Path(__file__).parents[2]
_SAMPLES = {path.stem: json.loads(path.read_text()) for path in sorted((_ROOT / "tests/data/events").glob("*.json"))}
_COLUMNS = set(CHANGE.names) - {"offset"}
_NAMES = set(re.findall(r"^\| `([a-z_]+)` \|", (_ROOT / "docs/events.md").read_text(), re.MULTILINE))


def sample(name: str, *, event: str | None = None, **thing) -> dict:
    """A real record, with other values in `s3.object`; None: without that value."""
    message = copy.deepcopy(_SAMPLES[name])
    record = message["Records"][0]
    if event:
        record["eventName"] = event
    record["s3"]["object"].update(thing)
    record["s3"]["object"] = {k: v for k, v in record["s3"]["object"].items() if v is not None}
    return message


def bridge(detail_type: str, thing: dict | None = None, **detail) -> dict:
    message = copy.deepcopy(_SAMPLES["eventbridge"])
    message["detail-type"] = detail_type
    message["detail"].update(detail)
    message["detail"]["object"].update(thing or {})
    return message


def parsed(message, dialect="auto"):
    payload = message if isinstance(message, bytes) else json.dumps(message).encode()
    return parse_message(payload, dialect, internal=b'"observation"' in payload)


def change(message, dialect="auto") -> dict:
    found = parsed(message, dialect)
    assert found.problems == []
    assert len(found.changes) == 1
    assert set(found.changes[0]) == _COLUMNS
    return found.changes[0]


def reasons(message, dialect="auto") -> list[str]:
    return [problem.reason for problem in parsed(message, dialect).problems]


def messages(*payloads: bytes, headers=None) -> pa.Table:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    rows = [
        {"topic_name": "t", "segment_id": 0, "segment_offset": n, "payload": p, "publish_time": at, "partition": 0,
         "offset": 100 + n, "headers": headers[n] if headers else None}
        for n, p in enumerate(payloads)
    ]  # fmt: skip
    return pa.Table.from_pylist(rows, MESSAGE)


# Dialects


def test_a_record_of_aws():
    found = change(_SAMPLES["aws"])
    raw = found.pop("raw_event")
    assert json.loads(raw) == _SAMPLES["aws"]["Records"][0]
    assert re.fullmatch("[0-9a-f]{16}", found.pop("tie"))
    assert found == {
        "index": 0,
        "dialect": "aws",
        "event_name": "ObjectCreated:Put",
        "record_type": "CREATE",
        "bucket": "amzn-s3-demo-bucket",
        "key": "HappyFace.jpg",
        "version_id": "096fKKXTRTtl3on89fVO.nfljtsv6qko",
        "sequencer": "0055AED6DCD90281E5",
        "sequence": "0055AED6DCD90281E5",
        "time": datetime(1970, 1, 1, tzinfo=UTC),
        "needs_asking": False,
        "etag": "d41d8cd98f00b204e9800998ecf8427e",
        "size": 1024,
        "storage_class": None,
        "content_type": None,
        "last_modified": datetime(1970, 1, 1, tzinfo=UTC),
        "tags": None,
        "user_metadata": None,
        "is_delete_marker": False,
        "is_latest": None,
        "requester": "AIDAJDPLRKLG7UEXAMPLE",
        "source_ip_address": "127.0.0.1",
        "request_id": "C3D13FE58DE4C810",
    }


@pytest.mark.parametrize(
    ("identity", "requester"),
    [
        ({"principalId": "AWS:123456789012"}, "123456789012"),
        ({"principalId": "123456789012"}, "123456789012"),
        ({"principalId": "AWS:123456789012:bob"}, "123456789012"),
        ({"principalId": "AWS:AROAEXAMPLE:session", "accountId": "123456789012"}, "123456789012"),
        ({"principalId": "AWS:AROAEXAMPLE:123456789012"}, "AWS:AROAEXAMPLE:123456789012"),
        ({"principalId": "s3.amazonaws.com"}, "s3.amazonaws.com"),
        ({"principalId": "1234567890123", "accountId": 123456789012}, "1234567890123"),
        ({}, None),
    ],
)
def test_the_requester_is_the_account_where_aws_names_it(identity, requester):
    message = sample("aws")
    message["Records"][0]["userIdentity"] = identity
    assert change(message)["requester"] == requester


def test_eventbridge_has_the_same_order_as_records():
    found = change(_SAMPLES["eventbridge"])
    assert (found["dialect"], found["sequence"], found["needs_asking"]) == ("aws", "617F08299329D189", False)
    assert (found["bucket"], found["key"], found["size"]) == ("amzn-s3-demo-bucket1", "example-key", 5)
    assert found["etag"] == "b1946ac92492d2347c6235b4d2611184"
    assert found["version_id"] == "IYV3p45BT0ac8hjHg1houSdS1a.Mro8e"
    assert (found["requester"], found["source_ip_address"]) == ("123456789012", "1.2.3.4")
    assert found["request_id"] == "N4N7GDK58NMKJ12R"


def test_minio_tells_more_of_a_created_object():
    found = change(_SAMPLES["minio"])
    assert (found["dialect"], found["key"], found["needs_asking"]) == ("minio", "2026/a b.jpg", False)
    assert (found["content_type"], found["storage_class"]) == ("image/jpeg", "STANDARD")
    assert found["user_metadata"] == {"camera": "X100"}
    assert found["last_modified"] == datetime(2019, 5, 18, 7, 34, 32, 581122, tzinfo=UTC)
    assert found["time"] == datetime(2026, 2, 14, 10, 11, 12, 345000, tzinfo=UTC)


def test_minio_leaves_out_a_size_of_zero():
    assert change(sample("minio", size=None))["size"] == 0


def test_ceph_tells_tags_and_metadata_and_does_not_encode_keys():
    found = change(sample("ceph", key="a+b%20c/ü"))
    assert (found["dialect"], found["key"], found["size"]) == ("ceph", "a+b%20c/ü", 1024)
    assert (found["sequence"], found["needs_asking"]) == ("5DD7E6F708D142C7", False)
    assert (found["tags"], found["user_metadata"]) == ({"team": "blue"}, {"camera": "X100"})
    assert found["version_id"] == ""


def test_ceph_without_a_time_has_that_of_its_sequencer():
    message = sample("ceph")
    message["Records"][0]["eventTime"] = "0.000000"
    assert change(message)["time"] == datetime(2019, 11, 22, 13, 47, 35, 147931, tzinfo=UTC)
    message["Records"][0]["s3"]["object"]["sequencer"] = "?"
    assert reasons(message) == ["bad_time"]


def test_versitygw_is_known_by_its_capital_and_has_no_order():
    found = change(_SAMPLES["versitygw"])
    assert (found["dialect"], found["sequencer"], found["sequence"]) == ("versitygw", "1", None)
    assert found["needs_asking"] is True
    assert (found["key"], found["version_id"]) == ("a+b%41", "")
    assert found["etag"] == "900150983cd24fb0d6963f7d28e17f72"
    assert found["time"] == datetime(2026, 3, 1, 11, tzinfo=UTC)
    assert found["requester"] == "admin"


def test_a_lookalike_without_sequencer_is_asked():
    found = change(_SAMPLES["moto"])
    assert (found["dialect"], found["sequence"], found["needs_asking"]) == ("other", None, True)
    assert found["key"] == "a +%"


def test_an_unknown_source_is_other_even_with_a_sequencer():
    message = sample("aws")
    message["Records"][0]["eventSource"] = "rustfs:s3"
    assert change(message)["dialect"] == "other"
    assert change(message)["needs_asking"] is True


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_fixed_dialect_goes_before_what_the_event_says(dialect):
    found = change(_SAMPLES["aws"], dialect)
    assert found["dialect"] == dialect
    assert (found["sequence"] is not None) == (dialect == "aws")


def test_a_sequencer_that_is_not_hex_is_no_order():
    found = change(sample("aws", sequencer="soon"))
    assert (found["dialect"], found["sequencer"], found["sequence"]) == ("aws", "soon", None)
    assert found["needs_asking"] is True


# Kinds


@pytest.mark.parametrize(
    ("name", "record_type", "is_marker"),
    [
        ("ObjectCreated:Post", "CREATE", False),
        ("ObjectCreated:Copy", "CREATE", False),
        ("ObjectCreated:CompleteMultipartUpload", "CREATE", False),
        ("ObjectCreated:SomethingLater", "CREATE", False),
        ("s3:ObjectCreated:PutTagging", "UPDATE_METADATA", False),
        ("s3:ObjectCreated:DeleteTagging", "UPDATE_METADATA", False),
        ("s3:ObjectCreated:PutRetention", "UPDATE_METADATA", False),
        ("s3:ObjectCreated:PutLegalHold", "UPDATE_METADATA", False),
        ("ObjectRemoved:Delete", "DELETE", False),
        ("s3:ObjectRemoved:DeleteObjects", "DELETE", False),
        ("ObjectRemoved:DeleteMarkerCreated", "CREATE", True),
        ("s3:ObjectRemoved:DeleteAllVersions", "DELETE", False),
        ("LifecycleExpiration:Delete", "DELETE", False),
        ("LifecycleExpiration:DeleteMarkerCreated", "CREATE", True),
        ("s3:LifecycleDelMarkerExpiration:Delete", "DELETE", False),
        ("LifecycleTransition", "UPDATE_METADATA", False),
        ("IntelligentTiering", "UPDATE_METADATA", False),
        ("ObjectTagging:Put", "UPDATE_METADATA", False),
        ("ObjectTagging:Delete", "UPDATE_METADATA", False),
        ("ObjectAcl:Put", "UPDATE_METADATA", False),
        ("ObjectRestore:Completed", "UPDATE_METADATA", False),
        ("s3:ObjectTransition:Complete", "UPDATE_METADATA", False),
        ("ObjectLifecycle:Expiration:Current", "DELETE", False),
        ("ObjectLifecycle:Expiration:NonCurrent", "DELETE", False),
        ("ObjectLifecycle:Transition:Current", "UPDATE_METADATA", False),
        ("ObjectSynced:Create", "CREATE", False),
        ("Replication:DeletionMarkerCreated", "CREATE", True),
    ],
)
def test_what_a_name_means(name, record_type, is_marker):
    found = change(sample("aws", event=name))
    assert (found["record_type"], found["is_delete_marker"], found["event_name"]) == (record_type, is_marker, name)


@pytest.mark.parametrize(
    ("name", "detail", "record_type", "is_marker"),
    [
        ("Object Deleted", {"deletion-type": "Permanently Deleted"}, "DELETE", False),
        ("Object Deleted", {"deletion-type": "Delete Marker Created"}, "CREATE", True),
        ("Object Tags Added", {}, "UPDATE_METADATA", False),
        ("Object Tags Deleted", {}, "UPDATE_METADATA", False),
        ("Object ACL Updated", {}, "UPDATE_METADATA", False),
        ("Object Restore Completed", {}, "UPDATE_METADATA", False),
        ("Object Storage Class Changed", {}, "UPDATE_METADATA", False),
        ("Object Access Tier Changed", {}, "UPDATE_METADATA", False),
    ],
)
def test_what_a_detail_type_means(name, detail, record_type, is_marker):
    found = change(bridge(name, **detail))
    assert (found["record_type"], found["is_delete_marker"]) == (record_type, is_marker)


@pytest.mark.parametrize(
    "name",
    [
        "s3:ObjectAccessed:Get",
        "Replication:OperationFailedReplication",
        "ReducedRedundancyLostObject",
        "s3:Scanner:ManyVersions",
        "s3:BucketCreated:*",
        "s3:ObjectRemoved:NoOP",
        "ObjectLifecycle:Expiration:AbortMPU",
    ],
)
def test_what_changes_nothing_is_ignored_and_counted(name):
    found = parsed(sample("aws", event=name, key=None))
    assert (found.changes, found.problems, found.ignored) == ([], [], 1)


@pytest.mark.parametrize("name", ["ObjectRemoved:Vanished", "ObjectFoo:Bar", "ObjectCreated", "", 7, None, ["a"]])
def test_an_unknown_name_is_told(name):
    message = sample("aws")
    message["Records"][0]["eventName"] = name
    assert reasons(message) == ["unknown_event"]


def test_a_deletion_of_unknown_type_is_told():
    assert reasons(bridge("Object Deleted")) == ["unknown_event"]
    assert reasons(bridge("Object Deleted", **{"deletion-type": ["x"]})) == ["unknown_event"]


def test_a_delete_and_a_marker_have_no_body():
    for name in ("ObjectRemoved:Delete", "ObjectRemoved:DeleteMarkerCreated"):
        found = change(sample("aws", event=name))
        assert (found["size"], found["etag"]) == (None, None)


def test_metadata_events_of_aws_have_no_sequencer_and_are_asked():
    found = change(sample("aws", event="ObjectTagging:Put", sequencer=None))
    assert (found["dialect"], found["sequence"], found["needs_asking"]) == ("aws", None, True)


def test_the_storage_class_where_the_event_tells_it():
    moved = sample("aws", event="LifecycleTransition")
    moved["Records"][0]["lifecycleEventData"] = {"transitionEventData": {"destinationStorageClass": "GLACIER"}}
    assert change(moved)["storage_class"] == "GLACIER"
    back = sample("aws", event="ObjectRestore:Completed")
    back["Records"][0]["glacierEventData"] = {"restoreEventData": {"lifecycleRestoreStorageClass": "DEEP_ARCHIVE"}}
    assert change(back)["storage_class"] == "DEEP_ARCHIVE"
    tiered = bridge("Object Storage Class Changed", **{"destination-storage-class": "STANDARD_IA"})
    assert change(tiered)["storage_class"] == "STANDARD_IA"


@pytest.mark.parametrize(
    ("event", "version_id", "agent", "asked"),
    [
        ("s3:ObjectCreated:Put", None, "aws-cli", False),
        ("s3:ObjectCreated:Put", "v1", "aws-cli", False),
        ("s3:ObjectRemoved:Delete", None, "aws-cli", True),
        ("s3:ObjectRemoved:Delete", "null", "aws-cli", True),
        ("s3:ObjectRemoved:Delete", "v1", "aws-cli", False),
        # An expiry that makes a delete marker is told as the delete of that marker, and failures are told too.
        ("s3:ObjectRemoved:Delete", "v1", "Internal: [ILM-Expiry]", True),
        ("s3:ObjectRemoved:DeleteMarkerCreated", "v1", "aws-cli", True),
        ("s3:ObjectRemoved:DeleteAllVersions", "v1", "Internal: [ILM-Expiry]", True),
        # Its sequencer is still that of the put.
        ("s3:ObjectCreated:PutTagging", "v1", "aws-cli", True),
    ],
)
def test_when_minio_is_asked(event, version_id, agent, asked):
    message = sample("minio", event=event, versionId=version_id)
    message["Records"][0]["source"]["userAgent"] = agent
    found = change(message)
    assert found["needs_asking"] is asked
    assert found["sequence"] == "159FB6B233B08AF0"


# Values


@settings(deadline=None)
@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=200))
def test_any_key_survives_its_encoding(key):
    assert change(sample("aws", key=quote_plus(key, safe="/")))["key"] == key
    assert change(sample("minio", key=quote_plus(key, safe="")))["key"] == key
    assert change(sample("ceph", key=key))["key"] == key
    assert change(bridge("Object Created", {"key": key}))["key"] == key


@pytest.mark.parametrize(
    "key", ["a+b", "100%", "ü/日本", "a\nb", "k" * 1024, "ü" * 512, "../../etc", "/", "%41", "%2F+"]
)
def test_hard_keys(key):
    assert change(sample("aws", key=quote_plus(key)))["key"] == key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("k" * 1025, "bad_key"),
        ("ü" * 513, "bad_key"),
        ("%FF", "bad_key"),
        ("%ED%A0%80", "bad_key"),
        ("\ud800", "bad_key"),
        ("\ud800+", "bad_key"),
        ("", "no_key"),
        (None, "no_key"),
        (7, "no_key"),
        (["a"], "no_key"),
    ],
)
def test_a_key_that_is_none(key, reason):
    assert reasons(sample("aws", key=key)) == [reason]


@pytest.mark.parametrize("version_id", [None, "", "null"])
def test_no_version_is_said_in_three_ways(version_id):
    assert change(sample("aws", versionId=version_id))["version_id"] == ""


@pytest.mark.parametrize(
    ("time", "read"),
    [
        ("2026-01-02T03:04:05Z", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05.6Z", datetime(2026, 1, 2, 3, 4, 5, 600000, tzinfo=UTC)),
        ("2026-01-02T03:04:05.123456789Z", datetime(2026, 1, 2, 3, 4, 5, 123456, tzinfo=UTC)),
        ("2026-01-02T03:04:05+02:00", datetime(2026, 1, 2, 1, 4, 5, tzinfo=UTC)),
        ("2026-01-02T03:04:05", datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)),
    ],
)
def test_times_are_read_with_patience(time, read):
    message = sample("aws")
    message["Records"][0]["eventTime"] = time
    assert change(message)["time"] == read


@pytest.mark.parametrize("time", [None, "", "soon", 1767322800, "0001-01-01T00:00:00+23:00", "2026-13-01T00:00:00Z"])
def test_without_a_time_there_is_no_change(time):
    message = sample("aws")
    message["Records"][0]["eventTime"] = time
    assert reasons(message) == ["bad_time"]


@pytest.mark.parametrize("size", [-1, 2**63, 1.5, True, "many", "-1", "٣", [1], "9" * 30])
def test_a_size_that_is_none(size):
    assert reasons(sample("aws", size=size)) == ["bad_number"]


@pytest.mark.parametrize("version", ["2.0", "2.6", "2.99", "2"])
def test_later_minor_versions_are_read(version):
    message = sample("aws")
    message["Records"][0]["eventVersion"] = version
    assert change(message)["key"] == "HappyFace.jpg"


@pytest.mark.parametrize("version", ["1.0", "3.0", "20.1", "", None, 2.1])
def test_other_major_versions_are_not(version):
    message = sample("aws")
    message["Records"][0]["eventVersion"] = version
    assert reasons(message) == ["version"]


def test_other_values_that_are_none():
    nameless = sample("aws")
    nameless["Records"][0]["s3"]["bucket"] = None
    assert reasons(nameless) == ["no_bucket"]
    assert reasons(sample("aws", versionId=7)) == ["bad_version_id"]
    half = sample("aws")
    half["Records"][0]["awsRegion"] = "\udfff"
    assert reasons(half) == ["bad_text"]
    later = dict(_SAMPLES["eventbridge"], version="1")
    assert reasons(later) == ["version"]
    assert reasons(_SAMPLES["aws"], "klingon") == ["unknown_dialect"]


# Envelopes


def sns(message) -> dict:
    return {"Type": "Notification", "MessageId": "1", "TopicArn": "arn:aws:sns:x:1:t", "Message": json.dumps(message)}


_WRAPS = {
    "bare": lambda m: m,
    "list": lambda m: [m],
    "bare list of records": lambda m: m["Records"],
    "one record": lambda m: m["Records"][0],
    "text": json.dumps,
    "sns": sns,
    "sqs, received": lambda m: {"Messages": [{"MessageId": "1", "ReceiptHandle": "r", "Body": json.dumps(m)}]},
    "sqs, one message": lambda m: {"MessageId": "1", "Body": json.dumps(m)},
    "sqs, as Lambda gets it": lambda m: {"Records": [{"eventSource": "aws:sqs", "body": json.dumps(m)}]},
    "sns, as Lambda gets it": lambda m: {"Records": [{"EventSource": "aws:sns", "Sns": sns(m)}]},
    "sns in sqs": lambda m: {"Records": [{"eventSource": "aws:sqs", "body": json.dumps(sns(m))}]},
    "spaces": lambda m: json.dumps(m, indent=3).encode(),
    "byte order mark": lambda m: b"\xef\xbb\xbf" + json.dumps(m).encode(),
    "other order of names": lambda m: {"Records": [dict(reversed(m["Records"][0].items()))]},
}


@pytest.mark.parametrize("wrap", _WRAPS.values(), ids=_WRAPS)
def test_an_envelope_changes_nothing_not_even_the_digest(wrap):
    assert change(wrap(_SAMPLES["aws"])) == change(_SAMPLES["aws"])


def test_eventbridge_comes_wrapped_too():
    assert change(sns(_SAMPLES["eventbridge"])) == change(_SAMPLES["eventbridge"])


@pytest.mark.parametrize("wrap", [lambda m: m, sns, lambda m: {"Body": json.dumps(sns(m))}, json.dumps])
def test_a_test_event_is_nothing(wrap):
    test = {"Service": "Amazon S3", "Event": "s3:TestEvent", "Time": "2014-10-13T15:57:02.089Z", "Bucket": "b"}
    found = parsed(wrap(test))
    assert (found.changes, found.problems) == ([], [])


@pytest.mark.parametrize("message", [{"Records": []}, [], {"Messages": []}])
def test_no_records_are_nothing(message):
    found = parsed(message)
    assert (found.changes, found.problems) == ([], [])


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "not_json"),
        (b"\xff\xfe", "not_json"),
        (b'{"Records":[{"eventVersion":"2.1","s3":{"obj', "not_json"),
        ({"Body": "hello"}, "not_json"),
        (b"[" * 100_000, "too_deep"),
        (json.loads("[" * 30 + "]" * 30), "too_deep"),
        (b'{"Records":[{"s3":' + b"9" * 5000 + b"}]}", "bad_number"),
        (b'{"a":NaN}', "bad_number"),
        (b"7", "not_an_event"),
        (b"null", "not_an_event"),
        ({"hello": "world"}, "not_an_event"),
        ({"Records": [None]}, "not_an_event"),
        ({"Records": [{"s3": {}}]}, "not_an_event"),
        ({"source": "aws.ec2", "detail-type": "x", "detail": {}}, "not_an_event"),
        ({"Type": "SubscriptionConfirmation", "SubscribeURL": "https://x"}, "sns_confirmation"),
    ],
)
def test_what_is_no_event(message, reason):
    assert reasons(message) == [reason]


def test_an_infinite_number_is_told():
    raw = json.dumps(_SAMPLES["aws"]).replace('"us-west-2"', "1e999").encode()
    assert reasons(raw) == ["bad_number"]


def test_one_bad_record_does_not_spoil_the_others():
    records = [sample("aws", key=key)["Records"][0] for key in ("a", "", "c")]
    found = parsed({"Records": [*records, 7]})
    assert [(c["index"], c["key"]) for c in found.changes] == [(0, "a"), (2, "c")]
    assert [(p.index, p.reason) for p in found.problems] == [(1, "no_key"), (3, "not_an_event")]


# Observations


def test_what_was_observed_comes_back():
    at = datetime(2026, 11, 15, 18, 0, 0, 123456, tzinfo=UTC)
    seen = {
        "key": "a/ü +%",
        "version_id": "v1",
        "size": 3,
        "etag": '"abc"',
        "last_modified": datetime(2026, 11, 1, tzinfo=UTC),
        "storage_class": "GLACIER",
        "content_type": "text/plain",
        "is_latest": True,
        "tags": {"team": "blue"},
        "user_metadata": {},
    }
    found = parsed(observation("file:///data", [seen, {"key": "gone", "exists": False}], at, "scan"))
    assert found.problems == []
    here, gone = found.changes
    assert set(here) == _COLUMNS
    assert {name: here[name] for name in seen} == seen | {"etag": "abc"}
    assert (here["dialect"], here["record_type"], here["event_name"]) == ("observed", "CREATE", "scan")
    assert (here["bucket"], here["time"], here["sequence"]) == ("file:///data", at, None)
    assert (here["needs_asking"], here["is_delete_marker"]) == (False, False)
    assert (gone["record_type"], gone["key"], gone["is_latest"], gone["tags"]) == ("DELETE", "gone", None, None)
    assert [here["index"], gone["index"]] == [0, 1]


def test_a_bad_object_of_an_observation_does_not_spoil_the_others():
    at = datetime(2026, 11, 15, tzinfo=UTC)
    found = parsed(observation("b", [{"key": "a"}, {"size": 1}, {"key": "c", "size": -1}], at, "scan"))
    assert [c["key"] for c in found.changes] == ["a"]
    assert [(p.index, p.reason) for p in found.problems] == [(1, "no_key"), (2, "bad_number")]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"version": 2}, "version"),
        ({"bucket": ""}, "no_bucket"),
        ({"bucket": "\ud800"}, "bad_text"),
        ({"observed_at": None}, "bad_time"),
        ({"objects": None}, "not_an_event"),
        ({"objects": [1]}, "not_an_event"),
    ],
)
def test_an_observation_that_is_none(wrong, reason):
    good = json.loads(observation("b", [{"key": "a"}], datetime(2026, 1, 1, tzinfo=UTC), "scan"))
    assert reasons(good | wrong) == [reason]


# Tables


def test_messages_become_a_table_of_changes():
    records = [sample("aws", key=key)["Records"][0] for key in ("a", "", "c")]
    good = json.dumps(_SAMPLES["ceph"]).encode()
    table, misfits, *_ = parse_messages(messages(b"?", good, json.dumps({"Records": records}).encode()), "auto")
    assert table.schema.equals(CHANGE)
    table.validate(full=True)
    assert list(zip(*(table.column(n).to_pylist() for n in ("offset", "index", "key")), strict=True)) == [
        (101, 0, "myimage1.jpg"),
        (102, 0, "a"),
        (102, 2, "c"),
    ]
    assert table.column("tags").to_pylist() == [[("team", "blue")], None, None]
    assert [(m.row, m.reason) for m in misfits] == [(0, "not_json"), (2, "no_key")]
    assert misfits[1].error == "record 1: the object has no key"


def test_a_message_is_a_misfit_once_however_many_records_are_bad():
    _, misfits, *_ = parse_messages(messages(json.dumps([1] * 50).encode()), "auto")
    assert len(misfits) == 1
    assert misfits[0].error.endswith("and 45 more records")


def test_a_header_goes_before_the_setting():
    payload = json.dumps(_SAMPLES["aws"]).encode()
    headers = [{"dialect": "other"}, None, {"source": "sqs"}, {"dialect": "klingon"}]
    table, misfits, *_ = parse_messages(messages(*[payload] * 4, headers=headers), "aws")
    assert table.column("dialect").to_pylist() == ["other", "aws", "aws"]
    assert [(m.row, m.reason) for m in misfits] == [(3, "unknown_dialect")]


def test_many_messages_keep_their_order():
    payload = json.dumps(_SAMPLES["aws"]).encode()
    table, misfits, *_ = parse_messages(messages(*[payload] * 2_500), "auto")
    assert table.column("offset").to_pylist() == list(range(100, 2_600))
    assert misfits == []


def test_no_messages_are_an_empty_table():
    table, misfits, *_ = parse_messages(messages(), "auto")
    assert (table.num_rows, misfits) == (0, [])
    assert table.schema.equals(CHANGE)


# Whatever comes


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
_OBSERVED = json.loads(observation("b", [{"key": "a", "tags": {"a": "b"}}], datetime(2026, 1, 1, tzinfo=UTC), "scan"))
_REAL = [*_SAMPLES.values(), sns(_SAMPLES["aws"]), _OBSERVED]


def places(value, path=()):
    """Every place in a document."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        yield from places(inner, (*path, name))


@st.composite
def mutated(draw) -> bytes:
    document = copy.deepcopy(draw(st.sampled_from(_REAL)))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from([p for p in places(document) if p]))
        inner = document
        for name in path[:-1]:
            inner = inner[name]
        if draw(st.booleans()):
            inner[path[-1]] = draw(_JSON)
        else:
            inner.pop(path[-1])
        if not document:
            break
    raw = json.dumps(document).encode()
    return raw[: draw(st.integers(0, len(raw)))] if draw(st.integers(0, 9)) == 0 else raw


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=150)
@given(
    st.lists(st.binary(max_size=60) | _JSON.map(lambda v: json.dumps(v).encode()) | mutated(), min_size=1, max_size=6),
    st.sampled_from(["auto", *DIALECTS]),
    st.booleans(),
)
def test_nothing_that_comes_makes_it_fail(payloads, dialect, internal):
    table, misfits, *_ = parse_messages(messages(*payloads), dialect, internal=internal)
    table.validate(full=True)
    assert {m.reason for m in misfits} <= set(REASONS)
    assert all(0 < len(key.encode()) <= 1024 for key in table.column("key").to_pylist())
    for field in CHANGE:
        assert field.nullable or table.column(field.name).null_count == 0


# The page


def test_the_page_explains_every_dialect_and_every_reason_and_no_others():
    assert {*DIALECTS, "observed", *REASONS} == _NAMES


OWN = [
    observation("file:///etc", [{"key": "passwd"}], datetime(2026, 1, 1, tzinfo=UTC), "scan"),
    json.dumps({"frazil": "edit", "version": 1, "bucket": "b", "at": "2026-01-01T00:00:00Z", "edits": []}).encode(),
    json.dumps(
        {"frazil": "extraction", "version": 1, "bucket": "b", "at": "2026-01-01T00:00:00Z", "results": []}
    ).encode(),
    json.dumps({"frazil": "fields", "version": 1, "fields": []}).encode(),
]


@pytest.mark.parametrize("said", [{}, {"source": "scan"}, {"source": "webhook"}, {"frazil-internal": "yes"}])
def test_only_a_marked_message_says_what_folders_hold_people_enter_and_extractors_find(said):
    table, misfits, notes, orders = parse_messages(messages(*OWN, headers=[list(said.items())] * 4), "auto")
    assert (table.num_rows, notes, orders) == (0, [], [])
    assert [misfit.reason for misfit in misfits] == ["untrusted"] * 4
    marks = [list(add_mark(said).items())] * 4
    told = parse_messages(messages(*OWN, headers=marks), "auto")
    assert (told.changes.num_rows, len(told.orders), told.misfits) == (1, 1, [])


BAD_BUCKETS = [
    "127.0.0.1:9000/x", "../x", "user@host", "a/b", "a:9000", "file:///etc", "127.0.0.1", "..", "a..b", "-a", "a?x=1",
    "a#b", "a b", "a%2fb", "ü", "a\n", "x" * 256,
]  # fmt: skip


@pytest.mark.parametrize("name", BAD_BUCKETS)
@pytest.mark.parametrize("mark", [{}, add_mark({})])
@pytest.mark.parametrize("which", ["aws", "eventbridge"])
def test_what_is_no_name_of_a_bucket_is_refused_whoever_sends_the_event(which, mark, name):
    event = copy.deepcopy(_SAMPLES[which])
    place = event["Records"][0]["s3"]["bucket"] if "Records" in event else event["detail"]["bucket"]
    place["name"] = name
    found = parse_messages(messages(json.dumps(event).encode(), headers=[list(mark.items())]), "auto")
    assert (found.changes.num_rows, [misfit.reason for misfit in found.misfits]) == (0, ["bad_bucket"])


@pytest.mark.parametrize("name", ["photos", "b", "my-bucket.example.com", "Old_Bucket", "10.2.logs"])
def test_names_of_buckets_of_all_ages_are_taken(name):
    assert is_bucket_name(name)
