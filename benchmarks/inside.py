"""What is inside objects: looked into from S3 and a folder, labelled, filled in later, searched, and scanned again."""

from __future__ import annotations

import io
import json
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks import content_rows
from benchmarks.content import Content, content
from benchmarks.lake import FRAZIL
from benchmarks.measure import Result, seconds
from benchmarks.targets import verdict
from frazil.content.annotations.messages import fields
from frazil.content.buckets import bucket_of
from frazil.content.extraction.job import extract
from frazil.content.extraction.selection import ExtractionRequest
from frazil.content.query.request import parse_search
from frazil.content.query.search import find
from frazil.content.scan.bucket import open_bucket
from frazil.content.scan.engine import RunningEngine
from frazil.content.scan.folder import open_folder
from frazil.content.scan.listing import ScanTarget
from frazil.content.scan.session import ScanSession
from frazil.content.tables import ContentTables
from frazil.log.batch import Batch
from frazil.tables.cache import ByteCache
from tests.extract_files import SHORT, exif, jpeg
from tests.services.kit import Services

HEADERS = ("type", "image", "exif")
IN_S3, IN_FOLDER = 2_000, 3_000
ROWS = 1_000_000
SEEN_AGAIN = (1_000, 10_000, 100_000)
_MB = 1 << 20


def run() -> list[Result]:
    found: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        home = Path(folder)
        with content(home / "folder") as at:
            found += _from_folder(at, home / "photos")
        shutil.rmtree(home / "photos")
        with Services() as services:
            access = services.seaweedfs.access
            with content(home / "s3", {f"s3.{name}": value for name, value in access.settings().items()}) as at:
                services.seaweedfs.make_bucket("photos")
                found += _from_s3(at)
        found += _labels()
        with content(home / "rows") as at:
            content_rows.fill(at.store, at.settings, 0, ROWS)
            at.publish(["first"])
            at.take()
            found += _search(at)
            found += _backfill(at)
        for count in SEEN_AGAIN:
            found += _again(home / f"again-{count}", count)
    return found


# -- headers -----------------------------------------------------------------------------------------------------------


def photo(number: int) -> bytes:
    """A JPEG of a megabyte with what a camera writes: EXIF with a maker note and a thumbnail. Each is another one."""
    return _drawn(number % 7) + number.to_bytes(8) + bytes(_MB)


@cache
def _drawn(number: int) -> bytes:
    tags = exif(
        exif={0x8827: (SHORT, 100 + number)}, gps=(48.8, 2.3), maker_note=b"n" * 9_000, thumbnail=jpeg((160, 120))
    )
    return jpeg(exif=tags)[:-2]


def _from_folder(at: Content, folder: Path) -> list[Result]:
    folder.mkdir()
    for number in range(IN_FOLDER):
        (folder / f"{number:05d}.jpg").write_bytes(photo(number))
    place = open_folder(bucket_of(str(folder)), at.settings)
    return [_looked_into(at, place, IN_FOLDER, "a folder", 1_000)]


def _from_s3(at: Content) -> list[Result]:
    from concurrent.futures import ThreadPoolExecutor

    from frazil.storage.s3_client import client_of

    client = client_of(at.settings.model.s3, at.settings.model.network)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: client.put_object(Bucket="photos", Key=f"{n:05d}.jpg", Body=photo(n)), range(IN_S3)))
    return [_looked_into(at, open_bucket("photos", at.settings, None), IN_S3, "the local S3 server", 500)]


def _looked_into(at: Content, place: ScanTarget, count: int, where: str, target: int) -> Result:
    work = ScanSession(at.settings, at.client, RunningEngine(at.spark, at.client.address))
    at.pipeline.drain(600)
    scanned = work.scan(place)
    assert scanned.tally.objects == count
    at.pipeline.drain(600)
    warm = extract(work, ExtractionRequest(bucket=place.bucket, only=HEADERS, limit=100))
    assert warm.by_status.get("failed", 0) == 0, warm.by_status
    done = extract(work, ExtractionRequest(bucket=place.bucket, only=HEADERS, mode="all"))
    assert done.objects == count
    assert set(done.by_status) == {"ok"}, done.by_status
    rate, share = count / done.seconds, done.bytes_read / (count * _MB)
    return Result(
        f"header metadata ({', '.join(HEADERS)}) of {count:,} JPEGs of 1 MB in {where}, 2 cores",
        f"{rate:,.0f} objects/s",
        f"{share:.1%} of the bytes read",
        target=f"{verdict(rate >= target, f'≥ {target:,}/s')}, {verdict(share <= 0.05, '≤ 5 % read')}",
    )  # fmt: skip


# -- labels ------------------------------------------------------------------------------------------------------------


def _labels() -> list[Result]:
    """One thread: the extractor, against the bare session on the same pictures, and on tensors that are ready."""
    from PIL import Image

    from frazil.extract.vision import labels, network
    from frazil.extract.vision.model import load_session
    from tests.extract_kit import MemoryItem

    cat = Image.open(Path("tests/data/pictures/chelsea.jpg"))
    bare = load_session()
    found = []
    for name, size in (("640×480", (640, 480)), ("12 MP", (4000, 3000))):
        held = io.BytesIO()
        cat.resize(size).save(held, "JPEG", quality=90)
        data = held.getvalue()

        def ours(data: bytes = data) -> None:
            assert any(
                label["Name"] == "cat" for label in labels.LABELS.look(MemoryItem(data, detected_type="image/jpeg"))
            )

        def plain(data: bytes = data) -> None:
            with Image.open(io.BytesIO(data)) as image:
                bare.run([network.OUTPUT], {network.INPUT: labels.pixels(image.convert("RGB"))})

        tensor = labels.pixels(cat.convert("RGB"))

        def ready(tensor: Any = tensor) -> None:
            bare.run([network.OUTPUT], {network.INPUT: tensor})

        mine, theirs, least = _cpu(ours, plain, ready)
        found.append(
            Result(
                f"labels of a JPEG of {name} ({len(data) / 1e6:.1f} MB)", f"{1 / mine:.0f} images/s per core",
                f"bare session with Pillow's decoding {1 / theirs:.0f}/s; on tensors that are ready {1 / least:.0f}/s",
                f"{theirs / mine:.2f}×; {least / mine:.2f}×", verdict(theirs / mine >= 0.8, "≥ 0.8×"),
            )
        )  # fmt: skip
    return found


def _cpu(*works: Callable[[], None], rounds: int = 30) -> list[float]:
    """Seconds of processor time of each, in turns; the median."""
    taken: list[list[float]] = [[] for _ in works]
    for work in works:
        work()
    for _ in range(rounds):
        for number, work in enumerate(works):
            began = time.process_time()
            work()
            taken[number].append(time.process_time() - began)
    return [statistics.median(times) for times in taken]


# -- a million rows ----------------------------------------------------------------------------------------------------


def _search(at: Content) -> list[Result]:
    tables = ContentTables.of(at.store, at.settings)
    cache = ByteCache()
    searches = {
        "label": {"label": ["heron"]}, "camera and year": {"camera": "NIKON Z 3", "taken": "2019"},
        "box": {"box": "48,2,49,3"}, "tag": {"tag": ["holiday"]},
        "size and type": {"min_size": 12_000_000, "media_type": "image/heic"},
        "EXIF": {"exif": ["ISOSpeedRatings=6400"], "taken": "2024-05"}, "path": {"path": "2024/00*/*.jpg"},
    }  # fmt: skip
    found = []
    for name, given in searches.items():
        search = parse_search(bucket=content_rows.BUCKET, **given)  # type: ignore[arg-type]
        cold = seconds(lambda search=search: find(tables, search, cache=cache))  # type: ignore[misc]
        times = [seconds(lambda search=search: find(tables, search, cache=cache)) for _ in range(15)]  # type: ignore[misc]
        p50 = statistics.median(times)
        found.append(
            Result(
                f"search by {name}, {ROWS:,} rows, in one process", f"p50 {p50 * 1000:.0f} ms",
                f"the first time {cold * 1000:.0f} ms", target=verdict(p50 <= 0.3, "p50 ≤ 300 ms"),
            )
        )  # fmt: skip
    return found


def _backfill(at: Content) -> list[Result]:
    made = [{"name": "iso", "type": "INTEGER", "jpath": "$.exif.ISOSpeedRatings"}]
    order = fields(made, cast="lenient", include_raw_metadata=True, backfill=["iso"])
    at.client.append(at.topic, Batch.of_messages([order]))
    taken = at.take()
    table = f"`{at.settings.catalog().name}`.{at.settings.model.content.namespace}.objects"
    filled = at.spark.sql(f"SELECT count(iso) FROM {table}").first()[0]
    assert filled == ROWS, filled
    return [
        Result(
            f"a column added and filled for {ROWS:,} rows with 1 KB of metadata", f"{ROWS / taken:,.0f} rows/s",
            f"{taken:.0f} s; no object is read",
        )
    ]  # fmt: skip


# -- seen again --------------------------------------------------------------------------------------------------------


def _again(folder: Path, count: int) -> list[Result]:
    """`frazil content scan`, the whole process, on a folder in which nothing has changed."""
    photos = folder / "photos"
    for number in range(count):
        if number % 1000 == 0:
            part = photos / f"{number // 1000:04d}"
            part.mkdir(parents=True)
        (part / f"{number:07d}.txt").touch()
    command = [
        FRAZIL,
        "content",
        "scan",
        photos,
        "--no-extract",
        "--set",
        f"home={folder / 'home'}",
        "--output",
        "json",
    ]
    first = _timed(command)
    times = [_timed(command) for _ in range(3)]
    shutil.rmtree(folder)
    again = statistics.median(t[0] for t in times)
    return [
        Result(
            f"second scan of {count:,} files, of which none has changed", f"{again:.1f} s",
            f"the first one {first[0]:.1f} s", f"{times[0][1] / 1e6:.1f} MB read by the process",
        )
    ]  # fmt: skip


def _timed(command: list[Any]) -> tuple[float, int]:
    """Seconds, and bytes that the process and those it waited for have read, as the kernel counts them."""
    began = time.perf_counter()
    before = _read_by_children()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    json.loads(done.stdout)
    return time.perf_counter() - began, _read_by_children() - before


def _read_by_children() -> int:
    """What ended children have read is added to this process's own count."""
    text = Path("/proc/self/io").read_text()
    return int(next(line for line in text.splitlines() if line.startswith("rchar:")).split()[1])
