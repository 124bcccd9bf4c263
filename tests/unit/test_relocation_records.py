"""Fields are found in encoded Avro records of any schema, and damage is noticed."""

from __future__ import annotations

import json
import random
import zlib
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.tables.metadata import avro_codecs
from frazil.tables.metadata.avro_records import NotNullError, layout_of, resolve_names
from tests.avro_files import encode

_SIMPLE = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "long": st.integers(-(2**63), 2**63 - 1),
    "float": st.floats(width=32),
    "double": st.floats(),
    "bytes": st.binary(max_size=80),
    "string": st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
}


def _kinds(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    fields = st.lists(inner, max_size=3).map(lambda kinds: [{"name": f"f{i}", "type": k} for i, k in enumerate(kinds)])
    items = inner.filter(lambda kind: kind != "null")
    return st.one_of(
        inner.filter(lambda kind: kind != "null" and not isinstance(kind, list)).map(lambda kind: ["null", kind]),
        items.map(lambda kind: {"type": "array", "items": {"type": "record", "name": "i", "fields": [
            {"name": "key", "type": "int"}, {"name": "value", "type": kind}]}}),
        items.map(lambda kind: {"type": "map", "values": kind}),
        fields.map(lambda some: {"type": "record", "name": "r", "fields": some}),
        st.integers(0, 20).map(lambda size: {"type": "fixed", "name": "x", "size": size}),
        inner.filter(lambda kind: isinstance(kind, str)).map(lambda kind: {"type": kind, "logicalType": "any"}),
    )  # fmt: skip


KINDS = st.recursive(st.sampled_from(sorted(_SIMPLE)), _kinds, max_leaves=6)


def _values(kind: Any) -> st.SearchStrategy[Any]:
    if isinstance(kind, list):
        return st.none() | _values(kind[1])
    name = kind if isinstance(kind, str) else kind["type"]
    if name == "record":
        return st.tuples(*(_values(field["type"]) for field in kind["fields"]))
    if name == "array":
        return st.lists(_values(kind["items"]), max_size=4)
    if name == "map":
        return st.dictionaries(_SIMPLE["string"], _values(kind["values"]), max_size=3)
    if name == "fixed":
        return st.binary(min_size=kind["size"], max_size=kind["size"])
    return _SIMPLE[name]


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_fields_are_found_in_records_of_any_schema(data: st.DataObject) -> None:
    """Also once an expression was made of records like it, and for lists that say their bytes, as Go writes them."""
    kinds = data.draw(st.lists(KINDS, min_size=1, max_size=5))
    fields = [{"name": f"f{i}", "type": kind, "field-id": i} for i, kind in enumerate(kinds)]
    schema = {"type": "record", "name": "top", "fields": fields}
    wanted = tuple(data.draw(st.sets(st.integers(0, len(kinds)))))
    some = data.draw(st.lists(_values(schema), min_size=1, max_size=3))
    sized = data.draw(st.booleans())
    records = [record for record in some for _ in range(4)]
    parts = [[encode(f["type"], v, sized=sized) for f, v in zip(fields, r, strict=True)] for r in records]
    block = b"".join(b"".join(part) for part in parts)
    layout = layout_of(json.dumps(schema).encode(), wanted)
    assert layout.ids == tuple(i for i in range(len(kinds)) if i in wanted)
    at = 0
    for places, part in zip(layout.find_records(block, len(records)), parts, strict=True):
        assert (places[0], places[-1]) == (at, at + sum(map(len, part)))
        at = places[-1]
        found = [block[places[i] : places[i + 1]] for i in range(1, len(places) - 1, 2)]
        assert found == [part[i] for i in layout.ids]
    assert at == len(block)


_LISTS = {
    "type": "record",
    "name": "top",
    "fields": [
        {"name": "n", "type": "int", "field-id": 1},
        {"name": "m", "type": ["null", {"type": "array", "items": "long"}], "field-id": 2},
        {"name": "t", "type": "string", "field-id": 3},
    ],
}


def test_records_of_many_shapes_are_found() -> None:
    """More combinations of lengths than expressions are kept, each twice in a row and again later."""
    records = [(n, list(range(n % 23)) if n % 5 else None, "x" * (n % 150)) for n in range(400) for _ in (0, 1)] * 2
    parts = [encode(_LISTS, record) for record in records]
    layout = layout_of(json.dumps(_LISTS).encode(), (3,))
    data = b"".join(parts)
    ends = [places[-1] for places in layout.find_records(data, len(records))]
    assert ends == [sum(map(len, parts[: i + 1])) for i in range(len(parts))]


@pytest.mark.parametrize("wrong", [-1, 1])
def test_a_block_with_other_records_than_it_says_is_damaged(wrong: int) -> None:
    data = b"".join(encode(_LISTS, (n, [n], "x")) for n in range(20))
    layout = layout_of(json.dumps(_LISTS).encode(), (3,))
    with pytest.raises(ValueError, match=r"."):
        list(layout.find_records(data, 20 + wrong))


def test_damaged_records_never_lead_beyond_their_block() -> None:
    """PyIceberg's compiled decoder would read memory that is not its own."""
    chance = random.Random(7)
    data = b"".join(encode(_LISTS, (n, list(range(n)), "text" * 20)) for n in range(12))
    layout = layout_of(json.dumps(_LISTS).encode(), (2,))
    for _ in range(3000):
        broken = bytearray(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
        for _ in range(chance.randrange(3)):
            if broken:
                broken[chance.randrange(len(broken))] = chance.randrange(256)
        try:
            for places in layout.find_records(bytes(broken), 12):
                assert places == sorted(places)
                assert places[-1] <= len(broken)
        except ValueError:
            continue


@pytest.mark.parametrize("count", [2**40, 2**62, 10_001])
def test_a_list_that_claims_to_be_endless_ends(count: int) -> None:
    for item in ("long", "null", {"type": "fixed", "name": "f", "size": 0}, "string"):
        schema = {"type": "record", "name": "r", "fields": [{"name": "a", "type": {"type": "array", "items": item}}]}
        layout = layout_of(json.dumps(schema).encode(), ())
        with pytest.raises(ValueError, match=r"."):
            list(layout.find_records(encode("long", count) + b"\x02" * 50, 1))


def test_a_field_that_must_be_null_is_refused_with_a_value() -> None:
    for kind in (["null", "bytes"], ["bytes", "null"]):
        fields = [{"name": "a", "type": "int"}, {"name": "k", "type": kind, "field-id": 9}]
        schema = {"type": "record", "name": "r", "fields": fields}
        layout = layout_of(json.dumps(schema).encode(), (), (9,))
        empty = encode(schema, (1, None))
        assert len(list(layout.find_records(empty * 5, 5))) == 5
        with pytest.raises(NotNullError):
            list(layout.find_records(empty * 5 + encode(schema, (1, b"")), 6))


def test_types_that_are_told_once_and_named_later_are_known() -> None:
    """Java's writers do so with two UUID columns of one partition spec."""
    uuid = {"type": "fixed", "size": 16, "name": "uuid_fixed", "logicalType": "uuid"}
    schema = {"type": "record", "name": "r", "fields": [
        {"name": "a", "type": ["null", uuid]}, {"name": "b", "type": ["null", "uuid_fixed"]},
    ]}  # fmt: skip
    full = resolve_names(schema)
    assert full["fields"][1]["type"] == ["null", uuid]
    layout = layout_of(json.dumps(schema).encode(), ())
    data = encode(full, (b"a" * 16, b"b" * 16)) + encode(full, (None, b"c" * 16))
    assert len(list(layout.find_records(data, 2))) == 2


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy", "zstandard", "bzip2", "xz"])
def test_every_codec_of_avro(codec: str) -> None:
    data = random.Random(1).randbytes(3000) + b"frazil" * 20_000
    packed = avro_codecs.compress(codec, data)
    assert avro_codecs.decompress(codec, packed) == data
    assert codec == "null" or len(packed) < 10_000
    for broken in (b"", packed[:-1], packed[: len(packed) // 2], b"\xff" * 40, packed[::-1]):
        try:
            assert avro_codecs.decompress(codec, broken) != data
        except ValueError:
            continue


def test_blocks_of_other_writers_are_decompressed() -> None:
    import zstandard

    unknown = zstandard.ZstdCompressor(write_content_size=False).compress(b"x" * 1000)
    assert avro_codecs.decompress("zstandard", unknown) == b"x" * 1000
    # PyIceberg leaves most of zlib's checksum at the end of a block.
    assert avro_codecs.decompress("deflate", zlib.compress(b"x" * 1000)[2:-1]) == b"x" * 1000
    with pytest.raises(ValueError, match="'lzo' is unknown"):
        avro_codecs.decompress("lzo", b"")
