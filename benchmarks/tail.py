"""Reads that include the log's tail: how long after its acknowledgement an event is listed, without a pipeline."""

from __future__ import annotations

import json
import subprocess
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.content import Content, fill, key_of
from benchmarks.lake import FRAZIL
from benchmarks.measure import Result
from benchmarks.server import http_server
from benchmarks.targets import verdict
from frazil.catalogs import open_catalog
from frazil.content.names import objects_name
from frazil.content.tables import ensure_objects
from frazil.settings import load_settings
from frazil.tables import TableStore

SIZES = (10_000, 100_000, 1_000_000)
EVENTS = 100
COMMANDS = 10


def run() -> list[Result]:
    found: list[Result] = []
    for size in SIZES:
        with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
            found += _measure(Path(folder) / "home", size)
    return found


def _measure(home: Path, size: int) -> list[Result]:
    settings = load_settings(flags={"home": str(home)}, environ={})
    with TableStore(open_catalog(settings.catalog()), settings.catalog()) as store:
        at: Any = Content(settings, None, None, store, None)  # type: ignore[arg-type] # neither log nor Spark is needed to fill
        ensure_objects(store, settings)
        fill(at, 0, size, objects_name(settings))
        flags = ["--set", f"home={home}"]
        with http_server(FRAZIL, flags) as (address, _):
            over_http, listed = [], []
            for number in range(EVENTS + 5):
                key = key_of(number * 7 % size)
                _post(address, at.event(key))
                acknowledged = time.perf_counter()
                while not _is_listed(address, key, at.sequence):
                    pass
                over_http.append(time.perf_counter() - acknowledged)
            for number in range(COMMANDS):
                key = key_of(number * 11 % size)
                _post(address, at.event(key))
                began = time.perf_counter()
                command = [FRAZIL, "content", "list", "bench", "--prefix", key, *flags, "--output", "json"]
                answer = subprocess.run(command, capture_output=True, text=True, check=True)
                listed.append(time.perf_counter() - began)
                assert f"{at.sequence:032x}" in answer.stdout
    p50, p95 = np.percentile(over_http[5:], [50, 95])
    return [
        Result(
            f"event acknowledged → listed over HTTP, {size:,} objects, up to {EVENTS} events in the tail",
            f"p50 {p50 * 1000:.0f} ms, p95 {p95 * 1000:.0f} ms",
            target=verdict(bool(p50 <= 0.1), "≤ 100 ms"),
        ),
        Result(
            f"`frazil content list` of one key after it, {size:,} objects",
            f"p50 {float(np.median(listed)) * 1000:.0f} ms with the start of the process",
        ),
    ]


def _post(address: str, event: bytes) -> None:
    request = urllib.request.Request(
        f"{address}/events/s3", data=event, headers={"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request) as response:
        response.read()


def _is_listed(address: str, key: str, sequence: int) -> bool:
    query = urllib.parse.urlencode({"bucket": "bench", "key": key})
    with urllib.request.urlopen(f"{address}/content/objects?{query}") as response:
        objects = json.loads(response.read())["objects"]
    return bool(objects) and objects[0]["etag"] == f"{sequence:032x}"
