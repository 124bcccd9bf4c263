"""Reads of a manifest only what is asked for, several times faster than reading all of it.

PyIceberg decodes each entry into objects, with the bounds and counts of every column, and with the fields of format
version 2 (it does not show which file a deletion vector belongs to). A census of 100,000 files needs five numbers of
each. Fields are known by their ids, which every writer keeps, and taken out of the schema that stands in the file.
"""

from __future__ import annotations

import decimal
import json
import uuid
import zlib
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

from pyiceberg.avro.codecs import KNOWN_CODECS
from pyiceberg.avro.decoder import BinaryDecoder, new_decoder

from frazil.errors import IntegrityError
from frazil.tables.metadata.avro import read_avro
from frazil.tables.metadata.avro_records import resolve_names

#: Field ids of a manifest's entry, and of the file in it.
STATUS, SNAPSHOT_ID, SEQUENCE, FILE_SEQUENCE, _FILE = 0, 1, 3, 4, 2
CONTENT, PATH, FORMAT, PARTITION, ROWS, SIZE = 134, 100, 101, 102, 103, 104
LOWER, UPPER, EQUALITY_IDS, REFERENCED, CONTENT_OFFSET, CONTENT_SIZE = 125, 128, 135, 143, 144, 145

#: Values of STATUS and CONTENT.
ADDED, DELETED = 1, 2
DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2

#: What the decoder says to bytes that are no entries.
_DAMAGE = (ValueError, KeyError, EOFError, IndexError, TypeError, OverflowError, MemoryError, SystemError, zlib.error)

Read = Callable[[BinaryDecoder], Any]


def _nothing(_: BinaryDecoder) -> None:
    return None


def read_entries(data: bytes, fields: tuple[int, ...], where: str = "a manifest") -> Iterator[tuple[Any, ...]]:
    """Yields the entries of a manifest, deleted ones too, each as the values of these fields; None for absent fields.

    What an entry inherits from its manifest (sequence number, snapshot) is None there.

    Args:
        data: the whole file.
        fields: ids, see the constants.
        where: the file's name, for errors.

    Raises:
        IntegrityError: this is no whole manifest.
    """
    try:
        content = read_avro(data)
        actions = _actions(content.meta["avro.schema"], fields)
        codec = KNOWN_CODECS[content.codec]  # type: ignore[index] # a codec that is not known is an error below
        for block in content.blocks:
            data = codec.decompress(block.data) if codec else block.data
            decoder = new_decoder(data)
            yield from _records(decoder, block.count, actions, len(fields))
            if decoder.tell() > len(data):  # the decoder itself does not look
                raise EOFError("an entry goes beyond the end of its block")
    except _DAMAGE as error:
        raise IntegrityError(f"{where} cannot be read", hint="frazil table verify, or restore it") from error


def _records(decoder: BinaryDecoder, count: int, actions: _Actions, width: int) -> Iterator[tuple[Any, ...]]:
    every, short = actions
    for left in range(count - 1, -1, -1):
        record = [None] * width
        # Behind the last entry of a block nothing has to be found any more.
        for slot, read in every if left else short:
            if slot < 0:
                read(decoder)
            else:
                record[slot] = read(decoder)
        yield tuple(record)


_Actions = tuple[tuple[tuple[int, Read], ...], tuple[tuple[int, Read], ...]]


@lru_cache(maxsize=256)
def _actions(schema: bytes, fields: tuple[int, ...]) -> _Actions:
    """Compiles a reader or skipper per field of an entry, in file order, and the same up to the last one wanted."""
    slots = {field: slot for slot, field in enumerate(fields)}
    found: list[tuple[int, Read]] = []
    for entry in resolve_names(json.loads(schema))["fields"]:
        inner = entry["type"]
        flattened = inner["fields"] if entry.get("field-id") == _FILE else (entry,)
        for field in flattened:
            slot = slots.get(field.get("field-id", -1), -1)
            kind = field["type"]
            found.append((slot, _reader(kind) if slot >= 0 else _skipper(kind)))
    last = max((number for number, (slot, _) in enumerate(found) if slot >= 0), default=-1)
    return tuple(found), tuple(found[: last + 1])


_READ: dict[str, Read] = {
    "null": _nothing,
    "boolean": lambda d: d.read_boolean(),
    "int": lambda d: d.read_int(),
    "long": lambda d: d.read_int(),
    "float": lambda d: d.read_float(),
    "double": lambda d: d.read_double(),
    "bytes": lambda d: d.read_bytes(),
    "string": lambda d: d.read_utf8(),
}
_SKIP: dict[str, Read] = {
    "null": _nothing,
    "boolean": lambda d: d.skip_boolean(),
    "int": lambda d: d.skip_int(),
    "long": lambda d: d.skip_int(),
    "float": lambda d: d.skip_float(),
    "double": lambda d: d.skip_double(),
    "bytes": lambda d: d.skip_bytes(),
    "string": lambda d: d.skip_utf8(),
}


def _reader(kind: Any) -> Read:
    """Reads a value: records as tuples, maps with keys of any type as dicts."""
    if isinstance(kind, str):
        return _READ[kind]
    if isinstance(kind, list):
        return _branches([_reader(branch) for branch in kind])
    if kind["type"] == "record":
        parts = [_reader(field["type"]) for field in kind["fields"]]
        return lambda decoder: tuple([part(decoder) for part in parts])
    if kind["type"] == "array":
        item = _reader(kind["items"])
        is_map = kind.get("logicalType") == "map"
        return lambda decoder: (dict if is_map else list)(_items(decoder, item))
    if kind["type"] == "fixed":
        return _fixed(kind)
    return _decimal(kind) if kind.get("logicalType") == "decimal" else _reader(kind["type"])


def _skipper(kind: Any) -> Read:
    if isinstance(kind, str):
        return _SKIP[kind]
    if isinstance(kind, list):
        return _branches([_skipper(branch) for branch in kind])
    if kind["type"] == "record":
        parts = [_skipper(field["type"]) for field in kind["fields"]]
        return lambda decoder: [part(decoder) for part in parts]
    if kind["type"] == "array":
        return _array_skipper(kind["items"])
    if kind["type"] == "fixed":
        size = kind["size"]
        return lambda decoder: decoder.skip(size)
    return _skipper(kind["type"])


def _branches(branches: list[Read]) -> Read:
    if len(branches) == 2 and branches[0] is _nothing:
        some = branches[1]
        return lambda decoder: some(decoder) if decoder.read_int() else None
    return lambda decoder: branches[decoder.read_int()](decoder)


def _items(decoder: BinaryDecoder, item: Read) -> Iterator[Any]:
    while count := decoder.read_int():
        if count < 0:  # then the size of the items in bytes follows
            decoder.skip_int()
        for _ in range(abs(count)):
            yield item(decoder)


def _array_skipper(items: Any) -> Read:
    """Returns the fastest skipper: the decoder's loop for lists of numbers and the two kinds of map in a manifest."""
    numbers = _numbers_in(items)
    if numbers:

        def skip_many(decoder: BinaryDecoder, count: int) -> None:
            decoder.read_ints(count * numbers)

    elif _is_number_and_bytes(items):

        def skip_many(decoder: BinaryDecoder, count: int) -> None:
            decoder.read_int_bytes_dict(count, {})

    else:
        item = _skipper(items)

        def skip_many(decoder: BinaryDecoder, count: int) -> None:
            for _ in range(count):
                item(decoder)

    def skip(decoder: BinaryDecoder) -> None:
        while count := decoder.read_int():
            if count < 0:
                decoder.skip(decoder.read_int())
            else:
                skip_many(decoder, count)

    return skip


def _numbers_in(items: Any) -> int:
    """Returns the number of longs in an item; 0 if it has other types too."""
    kinds = _kinds_in(items)
    return len(kinds) if all(kind in ("int", "long") for kind in kinds) else 0


def _is_number_and_bytes(items: Any) -> bool:
    return _kinds_in(items) in (["int", "bytes"], ["long", "bytes"])


def _kinds_in(items: Any) -> list[Any]:
    if isinstance(items, dict) and items.get("type") == "record":
        return [field["type"] for field in items["fields"]]
    return [items]


def _fixed(kind: Any) -> Read:
    size = kind["size"]
    if kind.get("logicalType") == "uuid":
        return lambda decoder: uuid.UUID(bytes=decoder.read(size))
    if kind.get("logicalType") == "decimal":
        scale = kind.get("scale", 0)
        return lambda decoder: _unscaled(decoder.read(size), scale)
    return lambda decoder: decoder.read(size)


def _decimal(kind: Any) -> Read:
    scale = kind.get("scale", 0)
    return lambda decoder: _unscaled(decoder.read_bytes(), scale)


def _unscaled(data: bytes, scale: int) -> decimal.Decimal:
    return decimal.Decimal(int.from_bytes(data, "big", signed=True)).scaleb(-scale)
