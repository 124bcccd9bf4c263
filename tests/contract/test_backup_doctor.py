"""What `frazil doctor` says of a backup repository in a bucket: whether it is there, and can lock objects."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any

import pytest

from frazil.backup.location import check_repository, open_repository
from frazil.errors import NotFoundError, UnsupportedError
from frazil.settings import Settings, load_settings

Bucket = Callable[..., Settings]


@pytest.fixture(params=["seaweedfs", pytest.param("minio", marks=pytest.mark.slow)])
def bucket(request: pytest.FixtureRequest, tmp_path) -> Bucket:
    """Makes a bucket, and gives settings with a repository in it."""
    access = getattr(request.getfixturevalue("services"), request.param).access

    def make(*, is_made: bool = True, locks: bool = False, **backup: Any) -> Settings:
        name = f"doctor-{secrets.token_hex(6)}"
        if is_made:
            access.client().create_bucket(Bucket=name, **({"ObjectLockEnabledForBucket": True} if locks else {}))
        flags = {"home": str(tmp_path), "backup.bucket": name, **{f"backup.{k}": str(v) for k, v in backup.items()}}
        return load_settings(flags=flags | {f"s3.{k}": str(v) for k, v in access.settings().items()}, environ={})

    return make


def test_a_bucket_without_backups_is_fine(bucket: Bucket):
    settings = bucket()
    assert check_repository(settings).endswith(": no backups yet")
    open_repository(settings, create=True)
    assert check_repository(settings).endswith(": 0 backups")


def test_a_bucket_that_does_not_exist_is_found(bucket: Bucket):
    with pytest.raises(NotFoundError, match="no bucket"):
        check_repository(bucket(is_made=False))
    with pytest.raises(NotFoundError):
        check_repository(bucket(is_made=False, lock_days=30))


def test_locks_are_checked_only_where_they_are_wanted(bucket: Bucket):
    with pytest.raises(UnsupportedError, match=r"backup\.lock_days is set, and bucket .* cannot lock objects"):
        check_repository(bucket(lock_days=30))
    assert "no backups yet; every object is locked for 30 days" in check_repository(bucket(locks=True, lock_days=30))
