from __future__ import annotations

from pathlib import Path

import pytest

from tests import lanes

AGAIN = "===== again, alone: "
GOOD = "def test_good():\n    assert True\n"
BAD = "def test_bad():\n    assert False\n"
FIRST_TIME_BAD = """from pathlib import Path

def test_unsteady():
    seen = Path(__file__).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError("by chance")
"""


DIES = "import os\n\ndef test_dies():\n    os._exit({})\n"


@pytest.fixture
def run(tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """In a folder of its own, as in the project's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(lanes.__file__).parents[1]))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    (tmp_path / "pytest.ini").write_text("[pytest]\naddopts = -p no:cacheprovider --import-mode=importlib\n")

    def call(first: dict[str, str], second: dict[str, str], *options: str, few: int = 3) -> tuple[int, str]:
        for lane, tests in (("first", first), ("second", second)):
            (tmp_path / lane).mkdir()
            for name, text in tests.items():
                (tmp_path / lane / f"test_{name}.py").write_text(text)
        code = lanes.run((("first",), ("second",)), ["-q", *options], few=few)
        return code, capfd.readouterr().out

    return call


def test_where_all_pass_nothing_is_run_again(run):
    code, said = run({"a": GOOD}, {"b": GOOD})
    assert code == 0 and AGAIN not in said and said.count("passed: ") == 2


def test_one_that_passes_alone_is_named_and_the_run_is_green(run):
    code, said = run({"a": GOOD}, {"b": FIRST_TIME_BAD, "c": GOOD})
    assert code == 0
    assert "by chance" in said, "the first failure is told whole"
    assert "second/test_b.py::test_unsteady" in said.splitlines()[-1] and said.splitlines()[-1].startswith("UNSTEADY")
    assert "test_c" not in said.partition(AGAIN)[2]


def test_one_that_fails_again_makes_it_red(run):
    code, said = run({"a": BAD}, {"b": FIRST_TIME_BAD})
    assert code == 1 and "FAILED twice (1): " in said


def test_many_are_not_run_again(run):
    code, said = run({"a": FIRST_TIME_BAD, "b": FIRST_TIME_BAD}, {"c": FIRST_TIME_BAD}, few=2)
    assert code == 1 and AGAIN not in said


@pytest.mark.parametrize("code", [1, 77])
def test_a_lane_that_dies_is_not_excused(run, code):
    found, said = run({"a": FIRST_TIME_BAD}, {"b": DIES.format(code)})
    assert found == code and AGAIN not in said


def test_where_not_all_were_run_nothing_is_excused(run):
    code, said = run({"a": FIRST_TIME_BAD, "b": GOOD}, {"c": GOOD}, "-x")
    assert code == 1 and AGAIN not in said


def test_the_fast_lane_runs_nothing_twice(run):
    code, said = run({"a": FIRST_TIME_BAD}, {"b": GOOD}, few=0)
    assert code == 1 and AGAIN not in said
