from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests import report, run

ROOT = Path(run.__file__).parents[1]
GOOD = "def test_good():\n    assert True\n"
BAD = "def test_bad():\n    assert False\n"
BAD_ONCE = """from pathlib import Path

def test_unsteady():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("by chance")
"""
MARKED = "import pytest\n\n@pytest.mark.{}\ndef test_marked():\n    assert False\n"
DIES = "import os\n\ndef test_dies():\n    os._exit(3)\n"
#: Test files that may be newer than the durations: those marked `slow` are never in them.
_UNRECORDED = 60
Runner = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def run_tier(tmp_path: Path) -> Runner:
    """Runs a tier over test files in a folder, as the Makefile does it; returns exit code and lines."""
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\nmarkers =\n  deep\n  slow\n  long\n  soak\n"
    )

    def call(files: dict[str, str], *options: str, tier: str = "test", **popen: object) -> tuple[int, list[str]]:
        for name, text in files.items():
            (tmp_path / f"test_{name}.py").write_text(text)
        env = {**os.environ, "PYTHONPATH": str(ROOT), "TEST_WORKERS": "2", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        command = [sys.executable, "-m", "tests.run", tier, "-p", "xdist", *options]
        done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False, **popen)  # type: ignore[call-overload]
        return done.returncode, done.stdout.splitlines()

    return call


def test_the_last_line_states_that_all_passed(run_tier: Runner):
    code, lines = run_tier({"a": GOOD, "b": GOOD})
    assert code == 0 and lines[-1].startswith("make test: green, ")


def test_a_failure_makes_the_run_red_and_the_last_line_says_so(run_tier: Runner):
    code, lines = run_tier({"a": GOOD, "b": BAD})
    assert code == 1 and lines[-1].startswith("make test: RED (exit code 1), ")


def test_a_test_that_passes_alone_is_named_in_the_last_line(run_tier: Runner):
    code, lines = run_tier({"a": GOOD, "b": BAD_ONCE})
    assert code == 0 and "UNSTEADY: test_b.py::test_unsteady" in lines[-1]
    assert any("by chance" in line for line in lines), "the first failure is shown in full"


def test_many_failures_do_not_run_again(run_tier: Runner):
    code, lines = run_tier(dict.fromkeys("abcd", BAD))
    assert code == 1 and not any("again, alone" in line for line in lines)


def test_a_worker_that_dies_makes_the_run_red(run_tier: Runner):
    code, lines = run_tier({"a": GOOD, "b": DIES})
    assert code != 0 and "RED" in lines[-1]


@pytest.mark.parametrize(("tier", "mark", "failed"), [("test", "deep", 0), ("deep", "deep", 1), ("deep", "slow", 0)])
def test_a_tier_leaves_out_what_is_marked_for_another(run_tier: Runner, tier: str, mark: str, failed: int):
    code, _ = run_tier({"a": MARKED.format(mark)}, "-k", "marked", tier=tier)
    assert code == failed


def test_a_run_in_the_background_of_a_shell_still_hears_ctrl_c(run_tier: Runner):
    hears = "import signal\n\ndef test_hears():\n    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN\n"
    code, _ = run_tier({"a": hears}, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert code == 0


def test_the_longest_files_start_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report, "DURATIONS", tmp_path / "durations.json")
    report.record_durations("test", {"test_short.py": 1.0, "test_long.py": 90.0}, {})
    report.record_durations("deep", {"test_long.py": 3.0}, {})
    assert report.load_durations("test") == {"test_short.py": 1.0, "test_long.py": 90.0}
    assert report.load_durations("deep") == {"test_long.py": 3.0}


def test_the_durations_name_no_file_that_is_gone():
    recorded = {file for tier in ("test", "deep") for file in report.load_durations(tier)}
    files = {str(path.relative_to(ROOT)) for path in (ROOT / "tests").rglob("test_*.py")}
    assert recorded - files == set(), "make test ARGS=--record-durations, or rename them in tests/durations.json"
    assert len(files - recorded) <= _UNRECORDED, "make test ARGS=--record-durations, and make test-deep likewise"


def test_every_test_that_was_recorded_as_long_says_why():
    without = {test: taken for test, taken in report.load_long_tests().items() if report.lacks_reason(test, ROOT)}
    assert without == {}, f'over {report.LONG_S} s: make them shorter, or @pytest.mark.long("reason")'


def test_a_long_test_is_recorded_and_one_without_a_reason_is_found(
    tmp_path: Path, run_tier: Runner, monkeypatch: pytest.MonkeyPatch
):
    """Recorded by a run whose limit is a tenth of a second; what a fixture takes is not counted."""
    sleeps = """
import time

import pytest

@pytest.fixture(scope="session")
def shared():
    time.sleep(0.2)

def test_short(shared):
    assert True

def test_without_a_reason():
    time.sleep(0.2)

@pytest.mark.long("because")
@pytest.mark.parametrize("number", [1])
def test_with_a_reason(number):
    time.sleep(0.2)
"""
    (tmp_path / "conftest.py").write_text(
        "from pathlib import Path\n\nfrom tests import report\n\n"
        f"report.LONG_S, report.DURATIONS = 0.1, Path({str(tmp_path / 'durations.json')!r})\n"
    )
    code, lines = run_tier({"a": sleeps}, "--record-durations")
    assert code == 0, lines
    assert [line.split(": ")[-1] for line in lines if "without a reason" in line] == [
        "test_a.py::test_without_a_reason"
    ]
    monkeypatch.setattr(report, "DURATIONS", tmp_path / "durations.json")
    assert set(report.load_long_tests()) == {"test_a.py::test_without_a_reason", "test_a.py::test_with_a_reason[1]"}
    assert [test for test in report.load_long_tests() if report.lacks_reason(test, tmp_path)] == [
        "test_a.py::test_without_a_reason"
    ]


@pytest.mark.parametrize(
    ("file", "room"),
    [("tests/unit/test_log_batch.py", "log"), ("tests/integration/test_late_sink.py", "topics")],
)
def test_a_file_belongs_to_the_room_that_it_is_named_after(file: str, room: str):
    assert report.room_of(file) == room
