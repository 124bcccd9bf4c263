"""The foundation: how quickly the command answers, engines start, and two writers commit side by side."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.measure import Result, in_turns, shown
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


def run_it(*command: str | Path) -> Callable[[], object]:
    return lambda: subprocess.run(command, check=True, capture_output=True)


def command_start() -> list[Result]:
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


_FIRST = """
import sys
from frazil.settings import load_settings
settings = load_settings(flags={"home": sys.argv[1]}, environ={})
"""
#: One process each: from the start of Python to the answer, as a script of a user has it.
FIRST_QUERY = {
    "PyIceberg": _FIRST
    + "from frazil.catalogs import open_catalog\n"
    + "open_catalog(settings.catalog()).load_table('bench.people').scan().to_arrow().group_by('name').aggregate([])",
    "DuckDB": _FIRST + f"from frazil.query import run_sql\nrun_sql({QUESTION!r}, settings, engine='duckdb')",
    "Spark": _FIRST
    + f"from frazil.spark import spark_session\nwith spark_session(settings) as s: s.sql({QUESTION!r}).toArrow()",
}


def engines(settings: Settings) -> list[Result]:
    """Each engine: the first answer of a new process, and a later one."""
    catalog = open_catalog(settings.catalog())
    catalog.create_namespace("bench")
    catalog.create_table("bench.people", schema=people().schema).append(people(*range(10_000)))
    home = str(settings.model.home)
    scripts = [[sys.executable, "-c", script, home] for script in FIRST_QUERY.values()]
    first = dict(zip(FIRST_QUERY, in_turns(3, *(run_it(*script) for script in scripts)), strict=True))
    began = time.perf_counter()
    with spark_session(settings) as spark:
        started = time.perf_counter() - began
        later = in_turns(
            9,
            lambda: catalog.load_table("bench.people").scan().to_arrow().group_by("name").aggregate([]),
            lambda: run_sql(QUESTION, settings, engine="duckdb"),
            lambda: spark.sql(QUESTION).toArrow(),
        )
        ended = time.perf_counter()
    results = [
        Result("start a Spark session", shown(started)),
        Result("stop it, JVM gone", shown(time.perf_counter() - ended)),
    ]
    for (engine, taken), warm in zip(first.items(), later, strict=True):
        what = f"first query of a new process, {engine} (10,000 rows, grouped)"
        results.append(Result(what, shown(taken), f"later ones {shown(warm)}", f"{taken / warm:.0f}×"))
    return results


def embedded_commits(folder: Path) -> list[Result]:
    """200 commits from each engine, alone and both at once, on one embedded catalog."""
    alone = {engine: _commits(folder / f"alone-{engine}", [engine])[0] for engine in ("pyiceberg", "spark")}
    together, found = _commits(folder / "together", ["pyiceberg", "spark"])
    floor = alone["pyiceberg"] + alone["spark"]
    parts = f"PyIceberg {shown(alone['pyiceberg'])}, Spark {shown(alone['spark'])} including start"
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
