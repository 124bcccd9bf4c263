"""A plugin of pytest for `tests.lanes`: notes in the folder `LANES_NOTES` which tests fail, and that all were run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "LANES_NOTES"
FAILED, WHOLE = "failed", "whole"


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        _note(FAILED, report.nodeid)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        _note(FAILED, report.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Not reached where the process was ended in the middle."""
    if not session.shouldfail and not session.shouldstop:
        _note(WHOLE, " ".join(session.config.args))


def _note(file: str, line: str) -> None:
    with Path(os.environ[VARIABLE], file).open("a") as notes:
        notes.write(f"{line}\n")
