"""What issue 4 asks of the log, and whether the measurements meet it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from benchmarks.load import Load, Scene, count, micros
from benchmarks.measure import Result

FLOOR = "floor"
ASYNCIO_FLOOR = "floor of asyncio"
ECHO = "floor of Flight"
EMBEDDED, FLIGHT = "embedded", "Flight"
PEERS = ("NATS", "Redis")
#: µs: at `disk` above the floor, at `os` in all.
ABOVE_FLOOR = {EMBEDDED: 150, FLIGHT: 400}
AT_OS = {EMBEDDED: 50, FLIGHT: 250}
#: Messages of 256 B per second at `disk`: 128 asyncio publishers of single messages, and batches of 1,000.
SINGLE_RATE = {EMBEDDED: 150_000, FLIGHT: 100_000}
BATCH_RATE = {EMBEDDED: 2_000_000, FLIGHT: 1_000_000}
TIMES_PEERS = 5

Measured = Mapping[tuple[str, Scene], Load]


def held_against_targets(measured: Measured) -> list[Result]:
    """One row per number that the issue names."""
    return [*_acknowledgements(measured), *_rates(measured)]


def verdict(met: bool, target: str) -> str:
    return f"{target}: {'met' if met else '**missed**'}"


def _acknowledgements(measured: Measured) -> Iterator[Result]:
    for (name, scene), load in measured.items():
        way = name.split(",")[0]
        if scene.publishers != 1 or scene.batch != 1 or way not in ABOVE_FLOOR:
            continue
        floor = measured[FLOOR, scene].p50
        extra = 0.0 if scene.level == "os" else floor
        allowed = AT_OS[way] if scene.level == "os" else ABOVE_FLOOR[way]
        target = f"p50 ≤ {allowed} µs" if scene.level == "os" else f"≤ floor + {allowed} µs"
        echo = measured.get((ECHO, scene)) if way == FLIGHT else None
        yield Result(
            f"acknowledgement, {name}, {scene}",
            f"p50 {micros(load.p50)} µs",
            f"floor {micros(floor)} µs" + (f", a bare answer over Flight {micros(echo.p50)} µs" if echo else ""),
            f"+{micros(load.p50 - floor)} µs",
            verdict(load.p50 <= extra + allowed, target),
        )


def _rates(measured: Measured) -> Iterator[Result]:
    for batch, wanted in ((1, SINGLE_RATE), (1000, BATCH_RATE)):
        for way, target in wanted.items():
            name, scene = _fastest(measured, way, batch)
            rate = measured[name, scene].rate
            rivals = {peer: measured[_fastest(measured, peer, batch)].rate for peer in PEERS}
            bare = measured.get((ASYNCIO_FLOOR, scene))
            yield Result(
                f"durable throughput, {name}, {scene}",
                f"{count(rate)}/s",
                ", ".join(f"{peer} at its best {count(theirs)}/s" for peer, theirs in rivals.items())
                + (f", bare asyncio and one sync {count(bare.rate)}/s" if bare else ""),
                ", ".join(f"{rate / theirs:.0f}× {peer}" for peer, theirs in rivals.items()),
                verdict(rate >= target, f"≥ {count(target)}/s")
                + ", "
                + verdict(rate >= TIMES_PEERS * max(rivals.values()), f"≥ {TIMES_PEERS}× peers"),
            )


def _fastest(measured: Measured, way: str, batch: int) -> tuple[str, Scene]:
    """For single messages at most 128 publishers and for us asyncio, as the issue says; else whatever is best."""
    found = {
        key: load
        for key, load in measured.items()
        if key[0].startswith(way) and (key[1].size, key[1].batch, key[1].level) == (256, batch, "disk")
    }
    if batch == 1 and way not in PEERS:
        found = {key: load for key, load in found.items() if "asyncio" in key[0] and key[1].publishers == 128}
    return max(found, key=lambda key: found[key].rate)
