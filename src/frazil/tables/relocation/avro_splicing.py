"""Puts new bytes into the fields of encoded Avro records. All others are carried over byte for byte."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from frazil.tables.metadata.avro import AvroBlock, AvroFile, long, read_long
from frazil.tables.metadata.avro_codecs import compress, decompress
from frazil.tables.metadata.avro_records import Kind, RecordLayout

#: Bytes of a block that is written here, before compression: as many as Java's writers put in one.
_BLOCK = 64_000

#: Decodes the value between two places.
Read = Callable[[bytes, int, int], Any]


def rewrite_records(
    file: AvroFile, layout: RecordLayout, change: Callable[[bytes, list[int]], dict[int, bytes] | None]
) -> bytes:
    """Returns a file whose records have other bytes in some fields. Blocks without a change stay as they are.

    Args:
        file: with its blocks.
        layout: the fields that may change.
        change: returns new bytes by field id, given a block and the places of a record in it; None drops the record.

    Raises:
        ValueError: a block is damaged.
    """
    blocks: list[AvroBlock] = []
    pending = _PendingBlock(file.codec, blocks)
    for block in file.blocks:
        raw = decompress(file.codec, block.data)
        parts: list[bytes] = []
        done, count = 0, block.count
        for places in layout.find_records(raw, block.count):
            new = change(raw, places)
            if new is None:
                parts.append(raw[done : places[0]])
                done = places[-1]
                count -= 1
                continue
            for number, at in zip(layout.ids, range(1, len(places), 2), strict=False):
                if number in new and new[number] != raw[places[at] : places[at + 1]]:
                    parts += (raw[done : places[at]], new[number])
                    done = places[at + 1]
        if parts:
            parts.append(raw[done:])
            pending.add(count, parts)
        else:
            pending.flush()
            blocks.append(block)
    pending.flush()
    return file.with_blocks(blocks)


@dataclass
class _PendingBlock:
    """Changed records that are not compressed yet. Small blocks are joined: PyIceberg writes one for each entry."""

    codec: str
    blocks: list[AvroBlock]
    count: int = 0
    size: int = 0
    parts: list[bytes] = field(default_factory=list)

    def add(self, count: int, parts: list[bytes]) -> None:
        self.count += count
        self.parts += parts
        self.size += sum(map(len, parts))
        if self.size >= _BLOCK:
            self.flush()

    def flush(self) -> None:
        if self.count:
            self.blocks.append(AvroBlock(self.count, compress(self.codec, b"".join(self.parts))))
        self.count, self.size, self.parts = 0, 0, []


def readers_of(layout: RecordLayout) -> dict[int, Read]:
    """Returns what decodes each field of a layout."""
    return {number: _reader(kind) for number, kind in layout.kinds.items()}


def read_values(layout: RecordLayout, readers: Mapping[int, Read], raw: bytes, places: list[int]) -> dict[int, Any]:
    """Returns the values of a record's fields, by id."""
    at = 1
    found = {}
    for number in layout.ids:
        found[number] = readers[number](raw, places[at], places[at + 1])
        at += 2
    return found


def _reader(kind: Kind) -> Read:
    """Returns what decodes a value: a number, a text, or a list of pairs of a number and bytes."""
    if isinstance(kind, list):
        branches = [_reader(branch) for branch in kind]
        return lambda data, at, end: branches[data[at] >> 1](data, at + 1, end)
    name = kind if isinstance(kind, str) else kind["type"]
    if name == "null":
        return lambda data, at, end: None
    if name in ("int", "long"):
        return lambda data, at, end: read_long(data, at)[0]
    if name == "string":
        return lambda data, at, end: _read_bytes(data, at, end).decode()
    if name == "bytes":
        return _read_bytes
    parts = kind["items"]["fields"] if name == "array" and isinstance(kind["items"], dict) else []
    if [part["type"] for part in parts] in (["int", "bytes"], ["long", "bytes"]):
        return lambda data, at, end: list(_read_pairs(data, at))
    return lambda data, at, end: data[at:end]


def _read_bytes(data: bytes, at: int, end: int) -> bytes:
    size, _ = read_long(data, at)
    return data[end - size : end]


def _read_pairs(data: bytes, at: int) -> Iterator[tuple[int, bytes]]:
    count, at = read_long(data, at)
    while count:
        if count < 0:  # then the size of the items in bytes follows
            _, at = read_long(data, at)
        for _ in range(abs(count)):
            key, at = read_long(data, at)
            size, at = read_long(data, at)
            yield key, data[at : at + size]
            at += size
        count, at = read_long(data, at)


def encode_optional(kind: Kind, value: bytes | None) -> bytes:
    """Returns an encoded value as a field of its type has it; None as null, or as an empty list where null is none."""
    if not isinstance(kind, list):
        return b"\0" if value is None else value
    branch = next(place for place, option in enumerate(kind) if (option == "null") == (value is None))
    return long(branch) + (value or b"")


def encode_list(items: list[bytes]) -> bytes:
    """Returns a list of encoded items."""
    return b"".join([long(len(items)), *items, b"\0"]) if items else b"\0"


def encode_text(value: str) -> bytes:
    """Returns an encoded text."""
    data = value.encode()
    return long(len(data)) + data
