"""The demo deletes and prunes, so nothing of it may reach what the user's settings name."""

from __future__ import annotations

from pathlib import Path

from frazil.demo import _isolate
from frazil.settings import Settings, SettingsModel


def test_only_settings_of_the_machine_reach_the_demo(tmp_path):
    user = SettingsModel.model_validate(
        {
            "home": tmp_path / "home",
            "cache": tmp_path / "cache",
            "catalog": {"uri": "http://localhost:8181"},
            "s3": {"endpoint": "http://localhost:9000"},
            "backup": {"bucket": "s3://company-backups/lake", "policies": {"nightly": {}}},
            "log": {"directory": tmp_path / "log"},
            "database": {"url": "mysql://localhost/archive"},
            "spark": {"master": "local[1]"},
        }
    )
    found = _isolate(Settings(user), tmp_path / "demo").model
    default = SettingsModel(home=tmp_path / "demo", cache=user.cache)
    assert found.model_copy(update={"spark": default.spark}) == default
    assert found.spark == user.spark
    assert found.home == Path(tmp_path / "demo")
