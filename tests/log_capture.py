"""Captures log entries whatever level an earlier test of the same process has configured."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import structlog


@contextmanager
def captured_logs() -> Iterator[list[Any]]:
    before = structlog.get_config()
    structlog.reset_defaults()
    try:
        with structlog.testing.capture_logs() as entries:
            yield entries
    finally:
        structlog.configure(**before)
