"""Spark for a chapter, its start a step that is timed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from frazil.demo.stage import Stage
from frazil.settings import Settings
from frazil.spark import spark_session


@contextmanager
def started(stage: Stage, settings: Settings) -> Iterator[Any]:
    with stage.step("start Spark"):
        session = spark_session(settings)
        spark = session.__enter__()
    try:
        yield spark
    finally:
        session.__exit__(None, None, None)
