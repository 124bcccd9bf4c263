"""A pytest plugin for `tests.run`: orders the files, and reports the time per room and tests that take too long.

make test ARGS=--record-durations      records the time of each file and of each long test, in tests/durations.json

A run beside other load takes longer, so a long test does not fail it. `tests/unit/test_run.py` fails if a test that was
recorded as long has no reason.
"""

from __future__ import annotations

import ast
import json
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

import pytest

DURATIONS = Path(__file__).with_name("durations.json")
#: A test may take so long without a reason given by `@pytest.mark.long`. What it shares with others is not counted.
LONG_S = 20.0
_LONG_TESTS = "long"
_UNKNOWN_S = 10.0
#: The room that a test file belongs to, by the first word of its name.
_ROOMS = {
    "catalog": "catalogs",
    "catalogs": "catalogs",
    "concurrent": "tables",
    "broker": "log",
    "killed": "log",
    "late": "topics",
    "migrate": "topics",
    "pipeline": "topics",
    "sink": "topics",
    "soak": "upkeep",
    "table": "tables",
    "topic": "topics",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("frazil")
    group.addoption("--tier", default="test", help="the tier that is run; set by tests.run")
    group.addoption("--failed-file", type=Path, help="write the ids of the tests that failed to this file")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Puts the files that take longest first, the same way in every worker; the tests of a file keep their order."""
    durations = load_durations(config.getoption("--tier"))
    order = {file: (-durations.get(file, _UNKNOWN_S), file) for file in {_file_of(item.nodeid) for item in items}}
    items.sort(key=lambda item: order[_file_of(item.nodeid)])


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    seconds: dict[str, float] = defaultdict(float)
    long: dict[str, float] = {}
    has_reason: set[str] = set()
    for report in _reports(terminalreporter):
        seconds[_file_of(report.nodeid)] += report.duration
        if report.when == "call" and report.duration > LONG_S:
            long[report.nodeid] = report.duration
        if "long" in report.keywords:
            has_reason.add(report.nodeid)
    if file := config.getoption("--failed-file"):
        failed = [*terminalreporter.stats.get("failed", []), *terminalreporter.stats.get("error", [])]
        file.write_text("\n".join(sorted({report.nodeid for report in failed})))
    if config.getoption("--record-durations"):
        record_durations(config.getoption("--tier"), seconds, long)
    rooms: dict[str, float] = defaultdict(float)
    for file, taken in seconds.items():
        rooms[room_of(file)] += taken
    terminalreporter.section("time per room, all workers together")
    for room, taken in sorted(rooms.items(), key=lambda pair: -pair[1]):
        terminalreporter.write_line(f"{taken:7.0f} s  {room}")
    for test, taken in sorted(long.items(), key=lambda pair: -pair[1]):
        if test not in has_reason:
            terminalreporter.write_line(f"{taken:7.0f} s without a reason (@pytest.mark.long): {test}")


def load_durations(tier: str) -> dict[str, float]:
    if not DURATIONS.exists():
        return {}
    found: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text())
    return found.get("test" if tier == "check" else tier, {})


def load_long_tests() -> dict[str, float]:
    """Returns the tests that took longer than `LONG_S` when the durations were recorded, by their ids."""
    found: dict[str, dict[str, float]] = json.loads(DURATIONS.read_text()).get(_LONG_TESTS, {})
    return {test: taken for tests in found.values() for test, taken in tests.items()}


def lacks_reason(test: str, root: Path) -> bool:
    """Whether a test exists and has no `@pytest.mark.long`."""
    file, _, name = test.partition("::")
    if not (root / file).exists():
        return False
    tree = ast.parse((root / file).read_text())
    name = name.partition("[")[0].rpartition("::")[2]
    found = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef) and n.name == name]
    return any(not any("mark.long(" in ast.unparse(d) for d in each.decorator_list) for each in found)


def record_durations(tier: str, seconds: dict[str, float], long: dict[str, float]) -> None:
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    known[tier] = {file: round(taken, 1) for file, taken in sorted(seconds.items())}
    known.setdefault(_LONG_TESTS, {})[tier] = {test: round(taken, 1) for test, taken in sorted(long.items())}
    DURATIONS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")


def room_of(file: str) -> str:
    """Returns the room of a test file: `tests/unit/test_log_batch.py` → `log`."""
    word = Path(file).stem.removeprefix("test_").split("_")[0]
    return _ROOMS.get(word, word)


def _file_of(nodeid: str) -> str:
    return nodeid.split("::", 1)[0]


def _reports(reporter: pytest.TerminalReporter) -> Iterable[pytest.TestReport]:
    for reports in reporter.stats.values():
        for report in reports:
            if isinstance(report, pytest.TestReport):
                yield report
