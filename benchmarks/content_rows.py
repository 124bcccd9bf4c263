"""Rows of `content.objects` as somebody's photos make them: cameras, places, years, labels and 1 KB of metadata."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from frazil.content.columns import OBJECTS
from frazil.content.tables import ensure_objects
from frazil.settings import Settings
from frazil.tables import TableStore
from frazil.tables.writing.data_files import TableWriter, WriteTarget
from frazil.tables.writing.type_conversion import convert_rows

BUCKET = "photos"
CAMERAS = [
    f"{maker} {model}" for maker in ("Canon EOS", "NIKON Z", "SONY ILCE", "Apple iPhone") for model in range(1, 8)
]
LABELS = [
    "tabby cat", "golden retriever", "beach", "mountain", "castle", "heron", "sports car", "pizza", "laptop", "bridge",
    *(f"thing {number}" for number in range(190)),
]  # fmt: skip
TAGS = ["holiday", "family", "best", "print", "work"]
_CHUNK = 100_000
_FIRST, _LAST = datetime(2005, 1, 1, tzinfo=UTC), datetime(2026, 1, 1, tzinfo=UTC)


def key_of(number: int) -> str:
    return f"{2005 + number % 21}/{number // 500 % 1000:04d}/IMG_{number:08d}.jpg"


def rows_of(first: int, count: int, seed: int = 7) -> pa.Table:
    """Some rows. The same numbers give the same rows; every fiftieth is the copy of another."""
    random = np.random.default_rng([seed, first])
    numbers = np.arange(first, first + count)
    taken = random.integers(int(_FIRST.timestamp()), int(_LAST.timestamp()), count) * 1_000_000
    cameras = np.minimum(random.geometric(0.15, count) - 1, len(CAMERAS) - 1)
    latitude, longitude = random.uniform(-60, 70, count).round(6), random.uniform(-180, 180, count).round(6)
    located = random.random(count) < 0.6
    iso = random.choice([100, 200, 400, 800, 1600, 3200, 6400], count)
    copied = numbers // 50 * 50
    hashes = np.where(numbers % 50 == 49, copied, numbers)
    names = [CAMERAS[c] for c in cameras]
    columns: dict[str, Any] = {
        "bucket": pa.array([BUCKET] * count),
        "key": pa.array(sorted(key_of(int(n)) for n in numbers)),
        "version_id": pa.array([""] * count),
        "etag": pa.array([f"{n:032x}" for n in hashes]),
        "size": pa.array(hashes * 7919 % 12_000_000 + 200_000),
        "storage_class": pa.array(["STANDARD"] * count),
        "content_type": pa.array(["image/jpeg"] * count),
        "detected_type": pa.array(np.where(numbers % 20 == 0, "image/heic", "image/jpeg")),
        "last_modified": pa.array(taken + 3_600_000_000, pa.timestamp("us", "UTC")),
        "is_latest": pa.array(np.ones(count, bool)),
        "is_deleted": pa.array(np.zeros(count, bool)),
        "is_delete_marker": pa.array(np.zeros(count, bool)),
        "extraction_status": pa.array(np.where(numbers % 100 == 3, "failed", "ok")),
        "labels": _labels(random, count),
        "image_width": pa.array(np.full(count, 6000, np.int32)),
        "image_height": pa.array(np.full(count, 4000, np.int32)),
        "taken_at": pa.array(taken, pa.timestamp("us")),
        "camera": pa.array(names),
        "latitude": pa.array(latitude, mask=~located),
        "longitude": pa.array(longitude, mask=~located),
        "content_hash": pa.array([f"{n:064x}" for n in hashes]),
        "perceptual_hash": pa.array(random.integers(-(2**63), 2**63 - 1, count, np.int64)),
        "user_tags": _tags(random, count),
        "rating": pa.array(random.integers(1, 6, count, np.int32), mask=random.random(count) > 0.05),
        "changed_at": pa.array(taken + 3_600_000_000, pa.timestamp("us", "UTC")),
        "metadata": pa.array(map(_metadata, numbers.tolist(), names, iso, latitude, longitude)),
    }
    return convert_rows(pa.table(columns), OBJECTS).rows


def _labels(random: Any, count: int) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(random.integers(1, 5, count))]).astype(np.int32)
    codes = np.minimum(random.geometric(0.03, int(offsets[-1])) - 1, len(LABELS) - 1).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(LABELS).take(pa.array(codes)))


def _tags(random: Any, count: int) -> pa.Array:
    offsets = np.concatenate([[0], np.cumsum(random.random(count) < 0.05)]).astype(np.int32)
    codes = random.integers(0, len(TAGS), int(offsets[-1])).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(TAGS).take(pa.array(codes)))


def _metadata(number: int, camera: str, iso: int, latitude: float, longitude: float) -> str:
    maker, _, model = camera.partition(" ")
    exif = {
        "Make": maker, "Model": model, "ISOSpeedRatings": int(iso), "FNumber": number % 20 + 1.4, "Flash": number % 2,
        "ExposureTime": 1 / (number % 1000 + 1), "FocalLength": number % 300 + 10, "LensModel": f"{model} {number % 9}",
        "DateTimeOriginal": "2024:05:01 12:34:56", "BodySerialNumber": f"{number:012d}", "Software": "Lightroom 13.2",
        "GPSLatitude": float(latitude), "GPSLongitude": float(longitude), "ColorSpace": 1, "Orientation": 1,
        "WhiteBalance": 0, "MeteringMode": 5, "ExposureProgram": 2, "SceneCaptureType": 0, "ExifVersion": "0232",
        "MakerNote": f"{number:08x}" * 32,
    }  # fmt: skip
    text = f"picture number {number}" + (" with a rare heron" if number % 5000 == 0 else "")
    whole = {
        "type": {"media_type": "image/jpeg"},
        "exif": exif,
        "image": {"width": 6000, "height": 4000},
        "ocr": {"text": text},
    }
    return json.dumps(whole, separators=(",", ":"))


def fill(store: TableStore, settings: Settings, first: int, last: int) -> None:
    """Puts rows into the table, in files as the sink writes them."""
    for start in range(first, last, _CHUNK):
        table = ensure_objects(store, settings)
        writer = TableWriter(WriteTarget.of(table), "fill")
        writer.add(convert_rows(rows_of(start, min(_CHUNK, last - start)), writer.schema).rows)
        with table.transaction() as transaction, transaction.update_snapshot().fast_append() as update:
            for file in writer.finish():
                update.append_data_file(file)
