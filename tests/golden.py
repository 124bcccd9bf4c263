"""Golden fixtures: homes of former versions of Frazil, in `tests/data/formats`, and how to unpack one anywhere.

Iceberg's metadata holds absolute paths. In an archive they begin with `HOME`, and `unpack` replaces it with the real
folder: in metadata.json, manifests, manifest lists, position deletes, lists of expired files and the embedded catalog.
It also corrects the recorded sizes of the files that it rewrites. It uses neither Frazil nor PyIceberg, so that a
fixture does not depend on the code under test. `tests/golden_make.py` makes a fixture.
"""

from __future__ import annotations

import io
import json
import re
import sqlite3
import struct
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).parent / "data" / "formats"
HOME = "/golden-home"
#: The formats of which there are fixtures.
VERSIONS = sorted(path.name.removesuffix(".tar.gz") for path in DATA.glob("*.tar.gz"))


def unpack(version: str, folder: Path) -> tuple[Path, dict[str, Any]]:
    """The home of a former version below a folder, and what is expected in it."""
    with tarfile.open(DATA / f"{version}.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    relocate(folder / "home", HOME, str(folder / "home"))
    return folder / "home", json.loads((DATA / f"{version}.json").read_text())


def pack(home: Path, version: str, expected: Mapping[str, Any]) -> None:
    """Makes the fixture of a version from a home, which is changed by that."""
    relocate(home, str(home), HOME)
    DATA.mkdir(exist_ok=True)
    with tarfile.open(DATA / f"{version}.tar.gz", "w:gz", compresslevel=9) as archive:
        archive.add(home, "home", filter=_anonymous)
    (DATA / f"{version}.json").write_text(json.dumps(expected, indent=1, default=str) + "\n")


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def relocate(home: Path, old: str, new: str) -> None:
    """Replaces a folder's path in all files of a home; from the bottom up, so that sizes are measured."""
    sizes: dict[str, int] = {}
    files = sorted(p for p in (home / "warehouse").rglob("*") if p.is_file())

    def done(path: Path) -> None:
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)  # Hadoop's, which would not fit any more
        sizes[f"{new}/{path.relative_to(home)}"] = path.stat().st_size

    for path in files:
        if path.suffix == ".parquet" and pq.read_schema(path).names == ["file_path", "pos"]:
            _replace_in_deletes(path, old, new)
            done(path)
    avro = [p for p in files if p.suffix == ".avro"]
    for path in [p for p in avro if not p.name.startswith("snap-")] + [p for p in avro if p.name.startswith("snap-")]:
        path.write_bytes(Container(path.read_bytes()).rewritten(old, new, sizes))
        done(path)
    for path in files:
        if path.suffix == ".json":
            path.write_text(path.read_text().replace(old, new))
            done(path)
    _replace_in_catalog(home / "catalog.db", old, new)


def _replace_in_deletes(path: Path, old: str, new: str) -> None:
    table = pq.read_table(path)
    field = table.schema.field("file_path")
    paths = pa.array([p.replace(old, new) for p in table["file_path"].to_pylist()], field.type)
    pq.write_table(table.set_column(0, field, paths), path)


def _replace_in_catalog(path: Path, old: str, new: str) -> None:
    replace = "UPDATE {0} SET {1} = replace({1}, ?, ?) WHERE {1} IS NOT NULL"
    columns = {
        "iceberg_tables": ("metadata_location", "previous_metadata_location"),
        "iceberg_namespace_properties": ("property_value",),
    }
    connection = sqlite3.connect(path)
    with connection:
        for table, names in columns.items():
            for name in names:
                connection.execute(replace.format(table, name), (old, new))
    connection.close()


class Container:
    """An Avro object container file: https://avro.apache.org/docs/1.12.0/specification/#object-container-files."""

    def __init__(self, data: bytes) -> None:
        source = io.BytesIO(data)
        assert source.read(4) == b"Obj\x01"
        self.header: dict[str, bytes] = read({"type": "map", "values": "bytes"}, source)
        self.sync = source.read(16)
        self.schema = json.loads(self.header["avro.schema"])
        names(self.schema, known := {})
        self.known = known
        self.rows: list[Any] = []
        while source.tell() < len(data):
            count, size = read("long", source), read("long", source)
            block = source.read(size)
            assert source.read(16) == self.sync
            unpacked = io.BytesIO(self._codec(block, pack=False))
            self.rows += [read(self.schema, unpacked, self.known) for _ in range(count)]

    def _codec(self, block: bytes, *, pack: bool) -> bytes:
        codec = self.header.get("avro.codec", b"null")
        if codec == b"null":
            return block
        assert codec == b"deflate", codec
        if not pack:
            return zlib.decompress(block, -15)
        deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
        return deflate.compress(block) + deflate.flush()

    def rewritten(self, old: str, new: str, sizes: Mapping[str, int]) -> bytes:
        rows = io.BytesIO()
        for row in self.rows:
            write(self.schema, replaced(row, old, new, sizes), rows, self.known)
        made, block = io.BytesIO(), self._codec(rows.getvalue(), pack=True)
        made.write(b"Obj\x01")
        write({"type": "map", "values": "bytes"}, self.header, made)
        made.write(self.sync)
        for number in (len(self.rows), len(block)):
            write("long", number, made)
        made.write(block + self.sync)
        return made.getvalue()


def replaced(value: Any, old: str, new: str, sizes: Mapping[str, int]) -> Any:
    """A row with other paths, and the sizes of the files that have others by now."""
    if isinstance(value, str):
        return value.replace(old, new)
    if isinstance(value, bytes):
        return value.replace(old.encode(), new.encode())
    if isinstance(value, (list, tuple)):
        return type(value)([replaced(v, old, new, sizes) for v in value])
    if not isinstance(value, dict):
        return value
    made = {k: replaced(v, old, new, sizes) for k, v in value.items()}
    for path, size in (("file_path", "file_size_in_bytes"), ("manifest_path", "manifest_length")):
        found = made.get(path)
        if isinstance(found, str):
            plain = re.sub("^file:/+", "/", found)  # Java writes one slash, and Python three
            made[size] = sizes.get(plain, made[size])
    return made


_REAL = {"float": "<f", "double": "<d"}


def names(schema: Any, known: dict[str, Any]) -> None:
    """Collects the types of a schema that are used again by their names."""
    if isinstance(schema, list):
        for one in schema:
            names(one, known)
    elif isinstance(schema, dict):
        if "name" in schema:
            known[schema["name"]] = schema
        for inner in (schema.get("items"), schema.get("values"), schema["type"]):
            names(inner, known)
        for field in schema.get("fields", ()):
            names(field["type"], known)


def read(schema: Any, source: io.BytesIO, known: Mapping[str, Any] = {}) -> Any:  # noqa: C901 - one case per type
    """A value; that of a union is a pair of branch and value."""
    if isinstance(schema, list):
        branch = read("long", source)
        return branch, read(schema[branch], source, known)
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, (dict, list)):
        return read(kind, source, known)
    match kind:
        case "null":
            return None
        case "boolean":
            return source.read(1) == b"\1"
        case "int" | "long":
            number = shift = 0
            while (byte := source.read(1)[0]) & 0x80:
                number, shift = number | (byte & 0x7F) << shift, shift + 7
            number |= byte << shift
            return number >> 1 ^ -(number & 1)
        case "float" | "double":
            return struct.unpack(_REAL[kind], source.read(struct.calcsize(_REAL[kind])))[0]
        case "bytes" | "string":
            found = source.read(read("long", source))
            return found if kind == "bytes" else found.decode()
        case "fixed":
            return source.read(schema["size"])
        case "record":
            return {field["name"]: read(field["type"], source, known) for field in schema["fields"]}
        case "array" | "map":
            found = []
            while count := read("long", source):
                if count < 0:
                    count, _ = -count, read("long", source)
                for _ in range(count):
                    key = read("string", source) if kind == "map" else None
                    found.append((key, read(schema["values" if kind == "map" else "items"], source, known)))
            return dict(found) if kind == "map" else [value for _, value in found]
    return read(known[kind], source, known)


def write(schema: Any, value: Any, to: io.BytesIO, known: Mapping[str, Any] = {}) -> None:  # noqa: C901 - one case per type
    if isinstance(schema, list):
        write("long", value[0], to)
        write(schema[value[0]], value[1], to, known)
        return
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, (dict, list)):
        write(kind, value, to, known)
        return
    match kind:
        case "null":
            pass
        case "boolean":
            to.write(b"\1" if value else b"\0")
        case "int" | "long":
            number = value << 1 ^ value >> 63
            while number > 0x7F:
                to.write(bytes([number & 0x7F | 0x80]))
                number >>= 7
            to.write(bytes([number]))
        case "float" | "double":
            to.write(struct.pack(_REAL[kind], value))
        case "bytes" | "string":
            data = value if kind == "bytes" else value.encode()
            write("long", len(data), to)
            to.write(data)
        case "fixed":
            to.write(value)
        case "record":
            for field in schema["fields"]:
                write(field["type"], value[field["name"]], to, known)
        case "array" | "map":
            if value:
                write("long", len(value), to)
            for one in value.items() if kind == "map" else value:
                if kind == "map":
                    write("string", one[0], to)
                write(schema["values" if kind == "map" else "items"], one[1] if kind == "map" else one, to, known)
            write("long", 0, to)
        case _:
            write(known[kind], value, to, known)
