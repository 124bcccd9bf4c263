"""Parquet files with texts that are not UTF-8, which Arrow writes and reads without a look at them."""

from __future__ import annotations

import io

import pyarrow as pa
import pyarrow.parquet as pq


def unchecked_texts(values: list[bytes]) -> pa.StringArray:
    """Bytes as a column of texts, which Arrow does not look at."""
    return pa.StringArray.from_buffers(len(values), *pa.array(values, pa.binary()).buffers()[1:])


def parquet_with_bad_text(field: str, row: int) -> bytes:
    """Three documents `d0` to `d2`, of which one has a text that is not UTF-8."""
    values = {name: [f"{name}{n}".encode() for n in range(3)] for name in ("filename", "bucket", "note", "tags")}
    values["attributes"] = [b'{"a": "%d"}' % n for n in range(3)]
    values[field][row] = values[field][row][:6] + b"\xff" + values[field][row][6:]
    columns: dict[str, pa.Array] = {name: unchecked_texts(texts) for name, texts in values.items()}
    names = pa.array(["name"] * 3)
    columns["tags"] = pa.MapArray.from_arrays(pa.array([0, 1, 2, 3], pa.int32()), names, columns["tags"])
    file = io.BytesIO()
    pq.write_table(pa.table({"document_id": ["d0", "d1", "d2"], **columns}), file)
    return file.getvalue()
