"""metadata.json with other paths in it, or fewer snapshots."""

from __future__ import annotations

import copy
import gzip
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.table.metadata import TableMetadataUtil

from frazil.errors import IntegrityError, NotFoundError, UnsupportedError
from frazil.tables.relocation import PrefixMap, UnmappedPathError
from frazil.tables.relocation.table_metadata import (
    drop_refs,
    format_metadata,
    list_metadata_paths,
    parse_metadata,
    relocate_metadata,
    trim_metadata,
)

OLD, NEW = "s3://old/t", "/new/t"
PREFIXES = PrefixMap([(OLD, NEW), ("s3://data/t", "/new/data"), ("s3://meta/t", "/new/meta")])
NAME_MAPPING = json.dumps([{"field-id": 1, "names": ["id", f"{OLD}/x"]}])


def snapshot(number: int, parent: int | None = None, schema: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "snapshot-id": number,
        **({} if parent is None else {"parent-snapshot-id": parent}),
        "sequence-number": number,
        "timestamp-ms": 1000 * number,
        "summary": {"operation": "append", "some-path": f"{OLD}/summary"},
        "manifest-list": f"s3a://old/t/metadata/snap-{number}.avro",
        "schema-id": schema,
        **more,
    }


def schema(number: int, *columns: int) -> dict[str, Any]:
    fields = [{"id": n, "name": f"c{n}", "required": False, "type": "long"} for n in columns]
    return {"type": "struct", "schema-id": number, "fields": fields}


def metadata(version: int = 2, **more: Any) -> dict[str, Any]:
    """Five snapshots: 1, 2, 3 and 5 on main; 4 on a branch from 2, with a tag on 1."""
    found = {
        "format-version": version,
        "table-uuid": "5b6f2f21-39a5-4d9f-b2f0-3f2f3b0a9f01",
        "location": OLD,
        "last-sequence-number": 5,
        "last-updated-ms": 9000,
        "last-column-id": 3,
        "current-schema-id": 1,
        "schemas": [schema(0, 1, 2), schema(1, 1, 2, 3)],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {
            "write.data.path": "s3://data/t",
            "write.metadata.path": "s3n://meta/t",
            "write.object-storage.enabled": "true",
            "write.object-storage.path": "s3a://data/t/objects",
            "schema.name-mapping.default": NAME_MAPPING,
            "comment": f"{OLD} stays",
        },
        "current-snapshot-id": 5,
        "snapshots": [snapshot(1), snapshot(2, 1), snapshot(3, 2), snapshot(4, 2), snapshot(5, 3, 1)],
        "refs": {
            "main": {"snapshot-id": 5, "type": "branch"},
            "work": {"snapshot-id": 4, "type": "branch", "min-snapshots-to-keep": 3},
            "first": {"snapshot-id": 1, "type": "tag", "max-ref-age-ms": 7},
        },
        "snapshot-log": [{"timestamp-ms": 1000 * n, "snapshot-id": n} for n in (1, 2, 3, 5)],
        "metadata-log": [{"timestamp-ms": 1000, "metadata-file": "s3://meta/t/00000.metadata.json"}],
        "statistics": [
            {"snapshot-id": n, "statistics-path": f"{OLD}/metadata/{n}.stats", "file-size-in-bytes": 9,
             "file-footer-size-in-bytes": 5, "blob-metadata": []} for n in (3, 5)
        ],
        "partition-statistics": [
            {"snapshot-id": 5, "statistics-path": f"{OLD}/metadata/p5.parquet", "file-size-in-bytes": 9}
        ],
        "a-field-of-tomorrow": {"z": [1.5, None], "a": f"{OLD}/x"},
        **({"next-row-id": 77} if version > 2 else {}),
    }  # fmt: skip
    return {**found, **more}


def ids(found: dict[str, Any]) -> list[int]:
    return [s["snapshot-id"] for s in found["snapshots"]]


def log(found: dict[str, Any]) -> list[int]:
    return [entry["snapshot-id"] for entry in found["snapshot-log"]]


@pytest.mark.parametrize("version", [2, 3])
def test_every_path_is_relocated_and_nothing_else(version: int) -> None:
    source = metadata(version)
    before = copy.deepcopy(source)
    found = relocate_metadata(source, PREFIXES, metadata_log="relocate")
    assert source == before
    assert list(found) == list(source)
    assert json.dumps(source, ensure_ascii=False).replace("s3a://old/t/metadata/snap", f"{OLD}/metadata/snap").replace(
        f"{OLD}/metadata/", f"{NEW}/metadata/"
    ).replace("s3://data/t", "/new/data").replace("s3a://data/t", "/new/data").replace(
        "s3n://meta/t", "/new/meta"
    ).replace("s3://meta/t", "/new/meta").replace(f'"location": "{OLD}"', f'"location": "{NEW}"') == json.dumps(
        found, ensure_ascii=False
    )
    paths = list_metadata_paths(found)
    assert paths.locations == (NEW, "/new/data", "/new/meta", "/new/data/objects")
    assert paths.manifest_lists == tuple(f"{NEW}/metadata/snap-{n}.avro" for n in range(1, 6))
    assert paths.statistics == (f"{NEW}/metadata/3.stats", f"{NEW}/metadata/5.stats")
    assert paths.partition_statistics == (f"{NEW}/metadata/p5.parquet",)
    assert paths.metadata_log == ("/new/meta/00000.metadata.json",)
    assert found["properties"]["schema.name-mapping.default"] == NAME_MAPPING
    if version == 2:
        TableMetadataUtil.parse_raw(format_metadata(found).decode())


def test_the_uuid_the_former_metadata_and_properties_can_change() -> None:
    found = relocate_metadata(
        metadata(), PREFIXES, metadata_log="drop", table_uuid="u", properties={"comment": None, "gc.enabled": "false"}
    )
    assert found["table-uuid"] == "u"
    assert found["metadata-log"] == []
    assert found["properties"]["gc.enabled"] == "false"
    assert "comment" not in found["properties"]
    assert metadata()["properties"]["comment"] == f"{OLD} stays"


def test_an_identity_map_changes_nothing() -> None:
    same = PrefixMap([(place, place) for place in (OLD, "s3://data/t", "s3://meta/t")])
    assert relocate_metadata(metadata(3), same, metadata_log="relocate") == metadata(3)


@pytest.mark.parametrize(
    "change",
    [
        {"location": "s3://old/tt"},
        {"snapshots": [snapshot(5) | {"manifest-list": "s3://elsewhere/x"}]},
        {"properties": {"write.data.path": "s3://old/t/../x"}},
        {"statistics": [{"snapshot-id": 5, "statistics-path": "s3://elsewhere/x"}]},
        {"partition-statistics": [{"snapshot-id": 5, "statistics-path": "s3://elsewhere/x"}]},
        {"metadata-log": [{"timestamp-ms": 1, "metadata-file": "s3://elsewhere/x"}]},
    ],
)
def test_a_path_that_no_prefix_covers_is_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UnmappedPathError):
        relocate_metadata(metadata(**change), PREFIXES, metadata_log="relocate")


def test_inline_manifests_and_missing_fields_of_version_1() -> None:
    source = {
        "format-version": 1, "location": OLD, "last-updated-ms": 1, "last-column-id": 2, "schema": schema(0, 1, 2),
        "partition-spec": [], "properties": {}, "current-snapshot-id": 1,
        "snapshots": [{"snapshot-id": 1, "timestamp-ms": 1, "manifests": [f"{OLD}/m1.avro", "s3a://old/t/m2.avro"]}],
    }  # fmt: skip
    assert list_metadata_paths(source).inline_manifests == (f"{OLD}/m1.avro", "s3a://old/t/m2.avro")
    found = relocate_metadata(source, PREFIXES, metadata_log="drop")
    assert found["snapshots"][0]["manifests"] == [f"{NEW}/m1.avro", f"{NEW}/m2.avro"]
    assert list(found) == list(source)
    assert source["snapshots"][0]["manifests"][0] == f"{OLD}/m1.avro"
    assert trim_metadata(source) is source
    assert trim_metadata(source, refs=["main"]) is source


# ── reading and writing files ────────────────────────────────────────────────────────────────────────────────────────


def test_metadata_is_read_plain_or_gzipped_and_written_the_same_each_time() -> None:
    for gzipped in (False, True):
        data = format_metadata(metadata(3), gzipped=gzipped)
        assert data.startswith(b"\x1f\x8b") == gzipped
        assert parse_metadata(data) == metadata(3)
        assert list(parse_metadata(data)) == list(metadata(3))
        assert format_metadata(parse_metadata(data), gzipped=gzipped) == data


def test_numbers_and_texts_survive() -> None:
    text = '{"format-version":2,"location":"/x","big":9223372036854775807,"f":1e-7,"t":"\\ud83d\\ude00\\u0000\\ud800"}'
    assert format_metadata(parse_metadata(text.encode())) == text.encode().replace(b"1e-7", b"1e-07")


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"[]", b"null", b"{}", b'{"format-version": "2", "location": "/x"}', b"\x1f\x8b\x08\0\0",
        b'{"format-version": 2}', b'{"format-version": 0, "location": "/x"}',
        b'{"format-version": true, "location": "/x"}',
        b'{"format-version": 2, "location": 7}', b'{"format-version": 2, "location": "/x", "snapshots": [7]}',
        b'{"format-version": 2, "location": "/x", "snapshots": [{"manifests": [7]}]}', b"\xff\xfe\xfd",
        b'{"format-version": 2, "location": "/x", "statistics": [{}]}',
        gzip.compress(mtime=0, data=b'{"format-version": 2, "location": "/x"}')[:-9],
    ],
)  # fmt: skip
def test_damaged_metadata_is_an_integrity_error_that_names_the_file(data: bytes) -> None:
    with pytest.raises(IntegrityError, match=r"^s3://old/v1\.metadata\.json cannot be read$"):
        parse_metadata(data, "s3://old/v1.metadata.json")


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ({"format-version": 4}, "knows 1 to 3"),
        ({"format-version": 4, "snapshots": {"of": "tomorrow"}}, "knows 1 to 3"),
        ({"encryption-keys": [{"key-id": "k"}]}, "encryption-keys"),
        ({"properties": {"encryption.key-id": "k"}}, "encryption.key-id"),
        ({"snapshots": [snapshot(5, **{"key-id": "k"})]}, "key-id"),
        ({"statistics": [{"statistics-path": "/x", "key-metadata": "k"}]}, "key-metadata"),
    ],
)
def test_newer_format_versions_and_encrypted_tables_are_refused(change: dict[str, Any], cause: str) -> None:
    with pytest.raises(UnsupportedError) as caught:
        parse_metadata(json.dumps(metadata(3, **change)).encode(), "x.metadata.json")
    assert "x.metadata.json" in caught.value.message
    assert cause in str(caught.value.cause)
    assert caught.value.hint


# ── trimming ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_without_a_choice_everything_stays() -> None:
    source = metadata()
    assert trim_metadata(source) is source
    assert trim_metadata(source, keep=range(100)) is source
    assert trim_metadata(source, refs=["main", "work", "first"]) is source
    assert drop_refs(source, ["frazil-pin-backup-1"]) is source


@pytest.mark.parametrize("version", [2, 3])
def test_one_branch_keeps_what_it_reaches(version: int) -> None:
    found = trim_metadata(metadata(version), refs=["main"])
    assert ids(found) == [1, 2, 3, 5]
    assert list(found["refs"]) == ["main"]
    assert log(found) == [1, 2, 3, 5]
    found = trim_metadata(metadata(version), refs=["work"])
    assert ids(found) == [1, 2, 4]
    assert found["refs"] == {"work": metadata()["refs"]["work"]}
    assert found["current-snapshot-id"] == (-1 if version == 2 else None)
    assert found["snapshot-log"] == []
    assert found["statistics"] == found["partition-statistics"] == []
    for key in ("last-updated-ms", "last-sequence-number", "next-row-id", "schemas", "metadata-log", "properties"):
        assert found.get(key) == metadata(version).get(key)


def test_a_pin_goes_and_leaves_all_snapshots_byte_for_byte() -> None:
    source = metadata()
    pinned = copy.deepcopy(source)
    pinned["refs"]["frazil-pin-backup-1"] = {"snapshot-id": 3, "type": "tag", "max-ref-age-ms": 1}
    pinned["refs"]["frazil-pin-backup-2"] = {"snapshot-id": 5, "type": "tag", "max-ref-age-ms": 1}
    found = drop_refs(pinned, [name for name in pinned["refs"] if name.startswith("frazil-pin")])
    assert format_metadata(found) == format_metadata(source)


def test_expired_snapshots_take_refs_statistics_and_the_history_before_them_along() -> None:
    found = trim_metadata(metadata(), keep=[1, 3, 4, 5])  # 2 has expired
    assert ids(found) == [1, 3, 4, 5]
    assert log(found) == [3, 5]  # or 1 would seem to have been current until 3 was
    assert list(found["refs"]) == ["main", "work", "first"]
    found = trim_metadata(metadata(), keep=[5])
    assert list(found["refs"]) == ["main"]
    assert [s["snapshot-id"] for s in found["statistics"]] == [5]
    assert log(found) == [5]
    assert found["current-snapshot-id"] == 5


def test_refs_to_snapshots_that_are_not_there_are_dropped_with_the_rest() -> None:
    source = metadata()
    source["refs"]["gone"] = {"snapshot-id": 99, "type": "tag"}
    assert "gone" not in trim_metadata(source)["refs"]


def test_main_at_an_earlier_snapshot_forgets_what_came_later() -> None:
    found = trim_metadata(metadata(), main=2)
    assert found["current-snapshot-id"] == found["refs"]["main"]["snapshot-id"] == 2
    assert ids(found) == [1, 2, 4]  # 4 is on a branch that stays
    assert log(found) == [1, 2]
    assert found["last-updated-ms"] == 9000
    found = trim_metadata(metadata(), main=2, refs=[])
    assert ids(found) == [1, 2]
    assert list(found["refs"]) == ["main"]
    TableMetadataUtil.parse_raw(format_metadata(relocate_metadata(found, PREFIXES, metadata_log="drop")).decode())


def test_main_at_a_snapshot_that_was_never_current_begins_its_history_there() -> None:
    found = trim_metadata(metadata(), main=4)
    assert ids(found) == [1, 2, 4]
    assert found["snapshot-log"] == [{"timestamp-ms": 4000, "snapshot-id": 4}]


def test_history_after_a_rollback_holds_no_gap() -> None:
    source = metadata()
    source["snapshot-log"] = [
        {"timestamp-ms": t, "snapshot-id": n} for t, n in [(1, 1), (2, 2), (3, 3), (4, 2), (5, 5)]
    ]
    assert log(trim_metadata(source, main=2)) == [2]
    assert log(trim_metadata(source, keep=[1, 2, 5], main=5)) == [2, 5]


def test_only_the_current_snapshot() -> None:
    found = trim_metadata(metadata(), keep=[5], refs=["main"])
    assert ids(found) == log(found) == [5]
    assert found["snapshots"][0]["parent-snapshot-id"] == 3  # as after expiry


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whatever_is_dropped_the_rest_fits_together(data: st.DataObject) -> None:
    """By the rules that Iceberg's Java library checks when it reads metadata, and by what the choice promised."""
    count = data.draw(st.integers(1, 12))
    parents = {n: data.draw(st.sampled_from([None, *range(max(1, n - 3), n)])) for n in range(1, count + 1)}
    heads = data.draw(st.dictionaries(st.sampled_from("abc"), st.sampled_from(list(parents)), max_size=3))
    history = data.draw(st.lists(st.sampled_from(list(parents)), min_size=1, max_size=8))
    source = metadata(**{
        "snapshots": [snapshot(n, parent) for n, parent in parents.items()],
        "current-snapshot-id": history[-1],
        "refs": {name: {"snapshot-id": n, "type": "branch"} for name, n in {**heads, "main": history[-1]}.items()},
        "snapshot-log": [{"timestamp-ms": at, "snapshot-id": n} for at, n in enumerate(history)],
        "statistics": [{"snapshot-id": n, "statistics-path": f"{OLD}/{n}"} for n in parents],
    })  # fmt: skip
    main = data.draw(st.none() | st.sampled_from(list(parents)))
    refs = data.draw(st.none() | st.sets(st.sampled_from(["main", *heads])))
    found = trim_metadata(source, refs=refs, main=main)
    kept = set(ids(found))
    names = (set(source["refs"]) if refs is None else refs) | ({"main"} if main else set())
    assert set(found["refs"]) == names
    for ref in found["refs"].values():
        at: int | None = ref["snapshot-id"]
        while at is not None:  # all that leads to it is there
            assert at in kept
            at = parents[at]
    current = (main or history[-1]) if "main" in names else -1
    assert found["current-snapshot-id"] == current
    assert log(found)[-1:] == ([current] if current != -1 else [])
    assert {s["snapshot-id"] for s in found["statistics"]} == kept
    assert set(log(found)) <= kept
    if current in history:  # what is left of the history is a part of it without a gap
        end = len(history) - history[::-1].index(current)
        assert log(found) == history[end - len(log(found)) : end]


def test_what_is_not_there_cannot_be_kept() -> None:
    with pytest.raises(NotFoundError, match="'feature'"):
        trim_metadata(metadata(), refs=["feature"])
    with pytest.raises(NotFoundError, match="no snapshot 9"):
        trim_metadata(metadata(), main=9)
    with pytest.raises(NotFoundError, match="no snapshot 5"):
        trim_metadata(metadata(), keep=[1, 2])
    empty = metadata(**{"snapshots": [], "refs": {}, "current-snapshot-id": -1, "snapshot-log": []})
    assert trim_metadata(empty) is empty
