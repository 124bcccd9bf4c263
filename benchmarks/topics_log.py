"""The log: acknowledgements and throughput, against the bare disk, and against NATS and Redis at equal durability."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.floor import raw_write
from benchmarks.frazil_flight import flight_log
from benchmarks.frazil_log import embedded_log
from benchmarks.load import Contender, Load, Scene, rounds
from benchmarks.measure import Result
from benchmarks.peers import peers
from benchmarks.targets import FLOOR, held_against_targets

PUBLISHERS = (1, 16, 128)
SIZES = (256, 1024)
# Peers reach their best batch rate with few publishers, more only wait longer; NATS takes 50 atomic batches at once.
FEW_AT_ONCE = {"NATS, sent ahead": 1, "NATS, atomic batch": 16, "Redis, pipeline": 16}


def run() -> list[Result]:
    measured: dict[tuple[str, Scene], Load] = {}
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as name:
        folder = Path(name)
        bare = {FLOOR: raw_write(folder)}
        with (
            embedded_log(folder) as (single, batched),
            flight_log(folder) as (flight_single, flight_batched),
            peers(folder) as (their_single, their_batched),
        ):
            single, batched = {**single, **flight_single}, {**batched, **flight_batched}
            for size, publishers in itertools.product(SIZES, PUBLISHERS):
                everybody = {**bare, **single, **their_single} if publishers == 1 else {**single, **their_single}
                _measure(measured, everybody, Scene(size, publishers))
                _measure(measured, {**bare, **single} if publishers == 1 else single, Scene(size, publishers, 1, "os"))
                _measure(measured, {**batched, **their_batched}, Scene(size, publishers, 1000))
        for size, batch in itertools.product(SIZES, (128, 1000)):
            _measure(measured, bare, Scene(size, 1, batch))
    return [*held_against_targets(measured), *_all(measured)]


def _measure(measured: dict[tuple[str, Scene], Load], contenders: Mapping[str, Contender], scene: Scene) -> None:
    able = {name: run for name, run in contenders.items() if scene.publishers <= FEW_AT_ONCE.get(name, 128)}
    for name, load in rounds(able, scene, times=3, seconds=0.4).items():
        measured[name, scene] = load
        print(f"  … {name}: {scene}: {load}", flush=True)


def _all(measured: Mapping[tuple[str, Scene], Load]) -> Iterator[Result]:
    """One row for each contender, size, batch and level; the publishers side by side."""

    def row(key: tuple[str, Scene]) -> tuple[int, int, str, str]:
        name, scene = key
        return scene.size, scene.batch, scene.level, name

    for (size, batch, level, name), keys in itertools.groupby(sorted(measured, key=row), key=row):
        loads = {scene.publishers: measured[name, scene] for name, scene in keys}
        cells = " · ".join(f"**{publishers}:** {loads[publishers]}" for publishers in sorted(loads))
        how = f"batches of {batch:,}" if batch > 1 else "single"
        yield Result(f"{name}; {size:,} B, {how}, `{level}`", cells)
