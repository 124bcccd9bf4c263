"""The session of a pipeline: what it sets, and what it leaves to the user."""

from __future__ import annotations

from frazil.settings import load_settings
from frazil.topics.sinks.jobs import for_pipeline


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
