"""Relocating one manifest on one core, by codec: `python -m benchmarks.relocation` (docs/relocation.md)."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from frazil.tables.relocation import PrefixMap
from frazil.tables.relocation.manifests import FileSize, read_manifest_files, relocate_manifest
from tests.avro_files import entry_of, manifest_file, manifest_schema

ENTRIES, COLUMNS, ROUNDS = 10_000, 10, 5
_SOURCE = "s3://bucket/warehouse/db/events"
_PREFIXES = PrefixMap([(_SOURCE, "s3://other-bucket/restored/events")])


def main() -> None:
    print(f"{ENTRIES:,} entries with the bounds of {COLUMNS} columns; CPU of the best of {ROUNDS} rounds")
    for codec in ("deflate", "zstandard", "snappy", "null"):
        data = write_data_manifest(codec)
        _report(f"data, {codec}, relocated", lambda data=data: relocate_manifest(data, _PREFIXES))
        _report(f"data, {codec}, files listed", lambda data=data: list(read_manifest_files(data, "m")))
    deletes, sizes = write_delete_manifest()
    _report("position deletes, deflate, relocated", lambda: relocate_manifest(deletes, _PREFIXES, sizes))


def write_data_manifest(codec: str) -> bytes:
    """Returns a manifest with counts and bounds that no two files share."""
    chance = random.Random(3)
    schema = manifest_schema(2, [("day", "int")])
    columns = range(1, COLUMNS + 1)

    def bounds() -> list[tuple[int, bytes]]:
        return [(column, chance.randbytes((8, 8, 4, 16, 8)[column % 5])) for column in columns]

    entries = [
        entry_of(
            schema, file_path=_path(number, chance), partition={"day": 20000 + number % 28},
            record_count=chance.randrange(10**6), file_size_in_bytes=chance.randrange(10**8),
            column_sizes=[(column, chance.randrange(10**7)) for column in columns],
            value_counts=[(column, chance.randrange(10**6)) for column in columns],
            null_value_counts=[(column, 0) for column in columns], nan_value_counts=[],
            lower_bounds=bounds(), upper_bounds=bounds(), split_offsets=[4], sort_order_id=0,
        )
        for number in range(ENTRIES)
    ]  # fmt: skip
    return manifest_file(schema, entries, 2, codec=codec, per_block=100)


def write_delete_manifest() -> tuple[bytes, dict[str, FileSize]]:
    chance = random.Random(4)
    schema = manifest_schema(2, [("day", "int")])
    entries = []
    for number in range(ENTRIES):
        target = _path(number, chance)
        bounds = [(2147483546, target.encode()), (2147483545, bytes(8))]
        entries.append(
            entry_of(
                schema, content=1, file_path=f"{target}-deletes.parquet", partition={"day": 1}, lower_bounds=bounds,
                upper_bounds=bounds, column_sizes=[(2147483546, 99), (2147483545, 70)], referenced_data_file=target,
            )
        )  # fmt: skip
    sizes = {entry["data_file"]["file_path"]: FileSize(999, (4,), {2147483546: 98}) for entry in entries}
    return manifest_file(schema, entries, 2, "deletes", per_block=100), sizes


def _path(number: int, chance: random.Random) -> str:
    day = number % 28 + 1
    return f"{_SOURCE}/data/day=2026-01-{day:02}/{number:05}-{number % 7}-{chance.getrandbits(128):032x}-00001.parquet"


def _report(what: str, action: Callable[[], object]) -> None:
    taken = []
    for _ in range(ROUNDS):
        began = time.process_time()
        action()
        taken.append(time.process_time() - began)
    print(f"  {what:40} {ENTRIES / min(taken):9,.0f} entries/s, {min(taken) / ENTRIES * 1e6:5.1f} µs each")


if __name__ == "__main__":
    main()
