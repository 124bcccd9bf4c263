"""The foundation: how quickly the command answers, engines start, and two writers commit side by side."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.measure import Result, in_turns, seconds, shown
from frazil.catalogs import open_catalog
from frazil.query import run_sql
from frazil.settings import Settings, load_settings
from frazil.spark import spark_session
from tests.lane import people

FRAZIL = Path(sys.executable).with_name("frazil")
QUESTION = "SELECT name, count(*) FROM bench.people GROUP BY name"


def run() -> list[Result]:
    with tempfile.TemporaryDirectory(prefix="frazil-bench-") as folder:
        settings = load_settings(flags={"home": f"{folder}/lake"}, environ={})
        return [*command_start(), *engines(settings), *embedded_commits(Path(folder))]


def command_start() -> list[Result]:
    run_it = lambda *command: lambda: subprocess.run(command, check=True, capture_output=True)  # noqa: E731
    bare, version, helps, page = in_turns(
        15,
        run_it(sys.executable, "-c", "pass"),
        run_it(FRAZIL, "--version"),
        run_it(FRAZIL, "--help"),
        run_it(FRAZIL, "sql", "--help"),
    )
    against = f"bare `python -c pass` {shown(bare)}"
    return [
        Result("`frazil --version`", shown(version), against, f"{version / bare:.1f}×"),
        Result("`frazil --help`", shown(helps), against, f"{helps / bare:.1f}×"),
        Result("`frazil sql --help`", shown(page), against, f"{page / bare:.1f}×"),
    ]


def engines(settings: Settings) -> list[Result]:
    """Each engine in this process: its start, its first answer, and a later one."""
    opened = seconds(lambda: open_catalog(settings.catalog()))
    catalog = open_catalog(settings.catalog())
    catalog.create_namespace("bench")
    table = catalog.create_table("bench.people", schema=people().schema)
    table.append(people(*range(10_000)))
    results = [Result("open the embedded catalog, first time (imports PyIceberg)", shown(opened))]
    ask_duckdb = lambda: run_sql(QUESTION, settings, engine="duckdb")  # noqa: E731
    ask_pyiceberg = lambda: catalog.load_table("bench.people").scan().to_arrow().group_by("name").aggregate([])  # noqa: E731
    first = {"PyIceberg": seconds(ask_pyiceberg), "DuckDB": seconds(ask_duckdb)}
    began = time.perf_counter()
    with spark_session(settings) as spark:
        results.append(Result("start a Spark session", shown(time.perf_counter() - began)))
        ask_spark = lambda: spark.sql(QUESTION).toArrow()  # noqa: E731
        first["Spark"] = seconds(ask_spark)
        later = dict(zip(first, in_turns(9, ask_pyiceberg, ask_duckdb, ask_spark), strict=True))
        ended = time.perf_counter()
    results.append(Result("stop it, JVM gone", shown(time.perf_counter() - ended)))
    results += [
        Result(
            f"first query, {name} (10,000 rows, grouped)",
            shown(first[name]),
            f"later ones {shown(later[name])}",
            f"{first[name] / later[name]:.1f}×",
        )
        for name in first
    ]
    command = lambda engine: lambda: subprocess.run(  # noqa: E731
        [FRAZIL, "sql", QUESTION, "--engine", engine, "-o", "csv"],
        check=True, capture_output=True, env={**os.environ, "FRAZIL_HOME": str(settings.model.home)},
    )  # fmt: skip
    duck, spark_command = in_turns(3, command("duckdb"), command("spark"))
    results.append(
        Result(
            "`frazil sql`, whole command, DuckDB",
            shown(duck),
            f"Spark {shown(spark_command)}",
            f"{duck / spark_command:.2f}×",
        )
    )
    return results


def embedded_commits(folder: Path) -> list[Result]:
    """200 commits from each engine, alone and both at once, on one embedded catalog."""
    alone = {engine: _commits(folder / f"alone-{engine}", [engine])[0] for engine in ("pyiceberg", "spark")}
    together, found = _commits(folder / "together", ["pyiceberg", "spark"])
    floor = alone["pyiceberg"] + alone["spark"]
    parts = f"PyIceberg {shown(alone['pyiceberg'])}, Spark {shown(alone['spark'])} with start"
    against = f"one after the other {shown(floor)} ({parts})"
    return [
        Result(
            f"200 + 200 commits at once, two processes: {found} of 400 rows there",
            shown(together),
            against,
            f"{together / floor:.2f}×",
        )
    ]


def _commits(home: Path, engines: list[str]) -> tuple[float, int]:
    settings = load_settings(flags={"home": str(home)}, environ={})
    catalog = open_catalog(settings.catalog())
    catalog.create_namespace("race")
    catalog.create_table("race.people", schema=people().schema)
    began = time.perf_counter()
    writers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.writers", engine, str(home), "race.people", str(1000 * n), "200"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )
        for n, engine in enumerate(engines)
    ]  # fmt: skip
    if any(writer.wait() != 0 for writer in writers):
        raise RuntimeError("a writer failed")
    taken = time.perf_counter() - began
    return taken, catalog.load_table("race.people").scan().to_arrow().num_rows
