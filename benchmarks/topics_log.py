"""The log: acknowledgements and throughput, against the bare disk, and against NATS and Redis at equal durability."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from benchmarks.echo_process import flight_echo
from benchmarks.floor import bare_asyncio, raw_write
from benchmarks.frazil_flight import flight_log
from benchmarks.frazil_log import embedded_log
from benchmarks.load import Contender, Load, Scene, rounds
from benchmarks.measure import Result
from benchmarks.peers import peers
from benchmarks.targets import ASYNCIO_FLOOR, ECHO, FLOOR, held_against_targets

PUBLISHERS = (1, 16, 128)
SIZES = (256, 1024)
#: The machine is twice as fast in some seconds as in others: enough rounds to see both.
SINGLE_ROUNDS = 7
# Peers reach their best batch rate with few publishers, more only wait longer; NATS takes 50 atomic batches at once.
FEW_AT_ONCE = {"NATS, sent ahead": 1, "NATS, atomic batch": 16, "Redis, pipeline": 16}


def run() -> list[Result]:
    measured: dict[tuple[str, Scene], Load] = {}
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as name:
        folder = Path(name)
        bare, crowd = {FLOOR: raw_write(folder)}, {ASYNCIO_FLOOR: bare_asyncio(folder)}
        with (
            embedded_log(folder) as (single, batched),
            flight_log(folder) as (flight_single, flight_batched),
            flight_echo(folder / "echo") as echo,
            peers(folder) as (their_single, their_batched),
        ):
            single, batched = {**single, **flight_single}, {**batched, **flight_batched}
            for size, publishers in itertools.product(SIZES, PUBLISHERS):
                floors = bare if publishers == 1 else crowd
                _measure(measured, {**floors, **single, **their_single}, Scene(size, publishers), times=SINGLE_ROUNDS)
                floors = {**bare, ECHO: echo} if publishers == 1 else crowd
                _measure(measured, {**floors, **single}, Scene(size, publishers, 1, "os"), times=SINGLE_ROUNDS)
                _measure(measured, {**batched, **their_batched}, Scene(size, publishers, 1000))
        for size, batch in itertools.product(SIZES, (128, 1000)):
            _measure(measured, bare, Scene(size, 1, batch))
    return [*held_against_targets(measured), *_all(measured)]


def _measure(
    measured: dict[tuple[str, Scene], Load], contenders: Mapping[str, Contender], scene: Scene, times: int = 3
) -> None:
    able = {name: run for name, run in contenders.items() if scene.publishers <= FEW_AT_ONCE.get(name, 128)}
    for name, load in rounds(able, scene, times=times, seconds=0.4).items():
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
