"""Settings as a mapping: nested or dotted, in Python's types."""

from __future__ import annotations

from typing import Any

import pytest

from frazil.errors import ConfigError
from frazil.settings import load_settings
from frazil.settings.arguments import flatten_settings


def loaded(settings: dict[str, Any]) -> Any:
    return load_settings(flags=flatten_settings(settings, "connect()"), environ={}, option="connect()")


def test_sections_may_be_nested_or_dotted_and_values_have_pythons_types():
    found = loaded(
        {
            "log": {"min_free": 0, "broker": None},
            "upkeep.enabled": False,
            "spark.conf": {"spark.ui.enabled": True},
            "topics.partition": ["day(publish_time)", "bucket(2, offset)"],
            "upkeep": {"tables": {"topics.*": {"compact": False}}},
            "catalogs": {"prod-eu": {"uri": "http://127.0.0.1:1"}},
        }
    )
    assert (found.model.log.min_free, found.model.log.broker, found.model.upkeep.enabled) == (0, None, False)
    assert found.model.spark.conf == {"spark.ui.enabled": "true"}
    assert found.model.topics.partition == ["day(publish_time)", "bucket(2, offset)"]
    assert found.model.upkeep.tables["topics.*"].compact is False
    assert found.catalog("prod-eu").uri == "http://127.0.0.1:1"
    assert "connect() log.min_free" in found.sources()


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"log": {"min_fre": 1}}, "connect(): unknown setting 'log.min_fre'"),
        ({"home": {"a": 1}}, "'home' takes a single value"),
        ({"log.min_free": "much"}, "connect() log.min_free: log.min_free is 'much'"),
    ],
)
def test_an_error_names_the_call_and_the_setting(settings, says):
    with pytest.raises(ConfigError) as failed:
        loaded(settings)
    assert says in failed.value.message
