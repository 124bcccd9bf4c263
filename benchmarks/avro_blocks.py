"""Our reader of Avro blocks and manifest entries beside fastavro's (docs/decisions/0045-own-reader-of-avro-blocks.md).

fastavro is no dependency of Frazil:

    uv pip install --target /tmp/fastavro fastavro==1.13.1
    PYTHONPATH=/tmp/fastavro python -m benchmarks.avro_blocks
"""

from __future__ import annotations

import importlib
import io
import json
import statistics
import tempfile
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.manifest import ManifestFile

from benchmarks.upkeep_planning import COLUMNS, _file
from frazil.catalogs import local_path, open_catalog
from frazil.settings import load_settings
from frazil.tables import TableStore, ensure_table
from frazil.tables.manifest_writer import ManifestWriter
from frazil.tables.metadata.avro import read_avro
from frazil.tables.metadata.manifest_entries import CONTENT, PATH, SIZE, STATUS, read_entries

ENTRIES = 1000
ROUNDS = 15


def main() -> None:
    fastavro: Any = importlib.import_module("fastavro")
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        manifests = write_manifests(Path(folder))
    for name, data in manifests.items():
        print(f"{name}, {ENTRIES} entries, {len(data):,} bytes")
        for what, action in actions(fastavro, data).items():
            print(f"  {what:78} {median_ms(action):6.2f} ms CPU")


def write_manifests(folder: Path) -> dict[str, bytes]:
    """Returns the same entries as new manifests have them, one in each block, and as merged manifests do."""
    settings = load_settings(flags={"home": str(folder)}, environ={})
    chosen = settings.catalog()
    columns = [pa.field("offset", pa.int64()), pa.field("publish_time", pa.timestamp("us", "UTC"))]
    columns += [pa.field(f"column_{n}", pa.string()) for n in range(COLUMNS - 2)]
    with TableStore(open_catalog(chosen), chosen) as store:
        table = ensure_table(store, "bench.avro", pa.schema(columns), partition=["day(publish_time)"])
        writer = ManifestWriter(store, table)
        added = writer.added(0, [_file(table, number) for number in range(ENTRIES)])
        added.sequence_number = 1
        merged = writer.merged(0, [added])

    def content(manifest: ManifestFile) -> bytes:
        return Path(local_path(manifest.manifest_path) or "").read_bytes()

    return {"one entry per block": content(added), "256 entries per block": content(merged)}


def actions(fastavro: Any, data: bytes) -> dict[str, Callable[[], list[Any]]]:
    """Returns what is measured, after checking that all find the same."""
    schema = json.loads(read_avro(data).meta["avro.schema"])
    wanted = fastavro.parse_schema(only(schema, {"status", "data_file", "content", "file_path", "file_size_in_bytes"}))

    def values(records: Any) -> list[Any]:
        return [
            (r["status"], *(r["data_file"][n] for n in ("content", "file_path", "file_size_in_bytes"))) for r in records
        ]

    def their_blocks() -> list[Any]:
        return list(fastavro.block_reader(io.BytesIO(data)))

    entries: dict[str, Callable[[], list[Any]]] = {
        "four fields of each entry, ours": lambda: list(read_entries(data, (STATUS, CONTENT, PATH, SIZE))),
        "… fastavro.reader with a schema of these fields": lambda: values(fastavro.reader(io.BytesIO(data), wanted)),
        "… fastavro.reader, all fields": lambda: values(fastavro.reader(io.BytesIO(data))),
        "… fastavro.block_reader, all fields": lambda: values(r for block in their_blocks() for r in block),
    }
    first, *others = (action() for action in entries.values())
    assert all(other == first for other in others)
    return {
        "blocks as they are, ours": lambda: list(read_avro(data).blocks),
        "blocks decompressed, ours": lambda: [zlib.decompress(b.data, -15) for b in read_avro(data).blocks],
        "blocks decompressed, fastavro.block_reader (it cannot leave them as they are)": their_blocks,
        "… and compressed again, as a merge of manifests needs them": lambda: [
            zlib.compress(block.bytes_.getvalue())[2:-4] for block in their_blocks()
        ],
        **entries,
    }


def only(schema: dict[str, Any], names: set[str]) -> dict[str, Any]:
    """Returns a record's schema with the fields of these names, in inner records too."""
    fields = [
        {**field, "type": only(field["type"], names)} if isinstance(field["type"], dict) else field
        for field in schema["fields"]
        if field["name"] in names
    ]
    return {**schema, "fields": fields}


def median_ms(action: Callable[[], object]) -> float:
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        action()
        taken.append(time.process_time() - began)
    return statistics.median(taken) * 1000


if __name__ == "__main__":
    main()
