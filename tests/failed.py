"""A plugin of pytest: notes the tests that fail in the file that `FAILED_TESTS` names, for `tests.lanes`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "FAILED_TESTS"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if report.failed:
        with Path(os.environ[VARIABLE]).open("a") as file:
            file.write(f"{report.nodeid}\n")
