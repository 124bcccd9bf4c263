"""The session of a pipeline: what it sets, and what it leaves to the user."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from typing import Any, Self

import pytest

from frazil.settings import load_settings
from frazil.topics.sinks import jobs
from frazil.topics.sinks.jobs import for_pipeline, warm_up


def conf_of(**own: str) -> dict[str, str]:
    flags = {f"spark.conf.{name}": value for name, value in own.items()}
    return for_pipeline(load_settings(flags=flags, environ={})).model.spark.conf


def test_the_jvms_of_a_pipeline_do_not_optimise_what_hardly_runs() -> None:
    conf = conf_of()
    for role in ("driver", "executor"):
        assert "-XX:Tier4InvocationThreshold=50000" in conf[f"spark.{role}.extraJavaOptions"].split()


def test_what_the_user_says_comes_last_and_so_counts() -> None:
    own = "-XX:Tier4InvocationThreshold=5000"
    conf = conf_of(**{"spark.scheduler.mode": "FIFO", "spark.driver.extraJavaOptions": own})
    assert conf["spark.scheduler.mode"] == "FIFO"
    assert conf["spark.driver.extraJavaOptions"].split()[-1] == own
    assert conf["spark.driver.extraJavaOptions"].split()[0] == "-XX:Tier4InvocationThreshold=50000"


class Context:
    """Of a Spark with three cores, that runs its tasks here."""

    defaultParallelism = 3  # noqa: N815 - Spark's name

    def __init__(self) -> None:
        self.sparkContext = self
        self.parts: list[list[int]] = []

    def setLocalProperty(self, name: str, value: str) -> None:
        assert (name, value) == ("spark.scheduler.pool", "warm-up")

    def parallelize(self, items: Iterable[int], parts: int) -> Self:
        self.parts = [[item] for item in items]
        assert len(self.parts) == parts
        return self

    def mapPartitions(self, task: Callable[[Iterable[int]], Iterator[int]]) -> Self:
        for part in self.parts:
            list(task(part))
        return self

    def collect(self) -> list[Any]:
        raise RuntimeError("Spark has ended")


def test_a_pipeline_loads_what_tasks_need_into_a_worker_of_each_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "_STAY_S", 0.0)
    loaded: list[str] = []
    monkeypatch.setattr(jobs, "import_module", loaded.append)
    context = Context()
    warm_up(context)  # type: ignore[arg-type]  # that it fails is for the batches to tell
    assert len(context.parts) == 3
    assert loaded.count("frazil.topics.sinks.archive") == 3
    for name in set(loaded):
        assert find_spec(name), name
