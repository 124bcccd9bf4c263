"""When a policy of backups is due."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from frazil.backup.location import repository_uri
from frazil.backup.schedule import backup_name, due_since, interval_s, next_due, policy_of
from frazil.errors import ConfigError
from frazil.settings import load_settings
from frazil.settings.model import BackupPolicySettings

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=UTC)  # a Wednesday


def policy(**values: object) -> BackupPolicySettings:
    return BackupPolicySettings.model_validate(values)


@pytest.mark.parametrize("values", [{}, {"every_s": 60}, {"at": "02:30"}, {"at": "sun 02:30"}])
def test_a_policy_without_a_backup_is_due(values: dict[str, object]):
    assert due_since(policy(**values), None, NOW) == NOW


def test_without_a_schedule_a_policy_is_due_once_a_day():
    assert due_since(policy(), NOW - timedelta(hours=20), NOW) is None
    assert due_since(policy(), NOW - timedelta(hours=25), NOW) is not None


def test_an_hourly_timer_makes_an_hourly_backup_although_it_comes_a_little_early():
    hourly, last = policy(every_s=3600), NOW
    for _ in range(24):
        run = last + timedelta(seconds=3600 - 100)
        assert due_since(hourly, last, run)
        last = run
    assert due_since(hourly, last, last + timedelta(minutes=30)) is None


@pytest.mark.parametrize(
    ("at", "last", "due"),
    [
        ("02:30", datetime(2026, 3, 4, 2, 30, 5, tzinfo=UTC), None),
        ("02:30", datetime(2026, 3, 4, 2, 29, tzinfo=UTC), datetime(2026, 3, 4, 2, 30, tzinfo=UTC)),
        ("02:30", datetime(2026, 2, 1, tzinfo=UTC), datetime(2026, 2, 1, 2, 30, tzinfo=UTC)),
        ("02:30, 11:00", datetime(2026, 3, 4, 3, tzinfo=UTC), datetime(2026, 3, 4, 11, tzinfo=UTC)),
        ("02:30, 13:00", datetime(2026, 3, 4, 3, tzinfo=UTC), None),
        ("sun 02:30", datetime(2026, 3, 1, 3, tzinfo=UTC), None),
        ("wed 02:30", datetime(2026, 3, 1, 3, tzinfo=UTC), datetime(2026, 3, 4, 2, 30, tzinfo=UTC)),
    ],
)
def test_a_time_of_day_is_due_once_it_has_passed_since_the_last_backup(at: str, last: datetime, due: datetime | None):
    assert due_since(policy(at=at), last, NOW) == due


def test_a_failed_run_leaves_the_policy_due():
    """There is no state beside the backups: without a new one, the slot stays open."""
    daily, last = policy(at="02:30"), NOW - timedelta(days=1)
    for hours in range(3):
        assert due_since(daily, last, NOW + timedelta(hours=hours)) == NOW.replace(hour=2, minute=30)


def test_the_next_time_is_known_in_advance():
    assert next_due(policy(at="sun 02:30"), NOW, NOW) == datetime(2026, 3, 8, 2, 30, tzinfo=UTC)
    assert next_due(policy(every_s=60), NOW, NOW) == NOW + timedelta(seconds=60)


@pytest.mark.parametrize(
    ("values", "seconds"),
    [
        ({}, 86400),
        ({"every_s": 60}, 60),
        ({"at": "02:30"}, 86400),
        ({"at": "02:00, 08:00"}, 18 * 3600),
        ({"at": "sun 02:30"}, 7 * 86400),
        ({"at": "mon 00:00, thu 00:00"}, 4 * 86400),
    ],
)
def test_alerts_know_the_longest_time_between_two_backups(values: dict[str, object], seconds: float):
    assert interval_s(policy(**values)) == seconds


def test_the_name_of_a_backup_says_which_policy_made_it():
    name = backup_name("nightly", NOW)
    assert name == "nightly-20260304T120000Z"
    assert policy_of(name, ["nightly", "hourly"]) == "nightly"
    assert policy_of(name, ["hourly"]) is None
    assert policy_of("nightly", ["nightly"]) is None
    assert policy_of("nightly-by-hand", ["nightly"]) is None


@pytest.mark.parametrize(
    "values", [{"at": "24:00"}, {"at": "2:30"}, {"at": "fry 02:30"}, {"at": "02:30", "every_s": 5}, {"keep_last": 0}]
)
def test_a_wrong_policy_is_refused(values: dict[str, object]):
    flags = {f"backup.policies.nightly.{key}": str(value) for key, value in values.items()}
    with pytest.raises(ConfigError, match=r"backup\.policies\.nightly"):
        load_settings(flags=flags, environ={})


def test_a_policy_has_a_plain_name():
    with pytest.raises(ConfigError, match="'Nightly Run' is not a policy's name"):
        load_settings(flags={"backup.policies.Nightly Run.keep_last": "1"}, environ={})


@pytest.mark.parametrize(
    ("bucket", "uri"),
    [
        ("iceberg", "s3://iceberg"),
        ("iceberg/backups", "s3://iceberg/backups"),
        ("s3://iceberg/x", "s3://iceberg/x"),
        ("/srv/backups", "/srv/backups"),
        ("file:/srv/backups", "file:/srv/backups"),
        ("gs://b/x", "gs://b/x"),
    ],
)
def test_the_repository_is_a_bucket_a_uri_or_a_folder(bucket: str, uri: str):
    assert repository_uri(load_settings(environ={"BACKUP_BUCKET": bucket})) == uri


def test_by_default_the_repository_lies_in_home():
    assert repository_uri(load_settings(flags={"home": "/srv/lake"}, environ={})) == "/srv/lake/backups"
