"""Deleting from S3: spellings, the server's clock, and a server that asks for patience."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from frazil.errors import NotAllowedError
from frazil.tables.metadata.locations import canonical_uri
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expired_file_lists, orphans, reclaim
from frazil.upkeep.expiry.clock import storage_now
from frazil.upkeep.expiry.shared_locations import SharedLocationError
from frazil.upkeep.expiry.verify import verify
from tests.faulty_storage import gateway_to
from tests.upkeep_files import expired_by_hand, make, old_ids, replaced, sound, step
from tests.upkeep_s3 import care_on


@pytest.fixture
def care(services, tmp_path) -> Iterator[UpkeepContext]:
    with care_on(services, tmp_path / "home") as made:
        yield made


def litter(care: UpkeepContext, table, *names: str) -> None:
    places = care.storage_of(table)
    for name in names:
        store, key = places.find(f"{table.location()}/{name}")
        store.put(key, b"lost")


def there(care: UpkeepContext, table) -> set[str]:
    root = canonical_uri(table.location()) + "/"
    return {uri.removeprefix(root) for uri, _ in care.storage_of(table).list(table.location())}


def test_orphans_in_a_bucket_by_the_servers_clock(care):
    table = make(care)
    before = there(care, table)
    litter(care, table, "data/a b%20c.parquet", "data/x=1/lost.parquet", "metadata/lost-m0.avro", "data/_SUCCESS")
    assert orphans.find(care, table, 3600).young == 3
    assert orphans.run(care, table, step("orphans", age_s=-60.0)).files_removed == 3
    assert there(care, table) == before | {"data/_SUCCESS"}, "and no probe of the clock is left"
    sound(care, table, [1, 2, 3])


def test_the_clock_is_the_servers(care):
    table = make(care, commits=1)
    places = care.storage_of(table)
    now = storage_now(places, expired_file_lists.folder_of(table))
    written = max(info.last_modified for _, info in places.list(table.location()))
    assert abs((now - written).total_seconds()) < 60
    assert not any("frazil-clock" in name for name in there(care, table))


def test_a_table_that_is_spelled_otherwise_is_still_the_same_place(care):
    table = make(care)
    make(care, "other.t", location=table.location().replace("s3://", "s3a://") + "/inner")
    with pytest.raises(SharedLocationError, match=r"other\.t"):
        orphans.find(care, table, 0)


@pytest.mark.deep
@pytest.mark.parametrize("spelling", ["{}", "{}/", "{}//", "{}%20b", "{} b"])
def test_a_table_whose_prefix_begins_another_ones_loses_orphans_alone(care, spelling):
    """Where a spelling leads elsewhere, as two slashes do in S3, it refuses; no file of either table goes."""
    place = f"{care.catalog.warehouse}/{uuid.uuid4().hex}"
    table = make(care, location=spelling.format(place))
    longer = make(care, "other.longer", location=f"{place}2")
    try:
        orphans.run(care, table, step("orphans", age_s=-60.0))
    except NotAllowedError as error:
        assert "does not show" in error.message
    sound(care, table, [1, 2, 3])
    sound(care, longer, [1, 2, 3])


def test_files_of_a_table_with_an_s3a_location_are_known_by_either_spelling(care):
    location = f"{care.catalog.warehouse}/other-{uuid.uuid4().hex}".replace("s3://", "s3a://")
    table = make(care, location=location)
    plain = {"write.data.path": location.replace("s3a://", "s3://") + "/data"}
    table.transaction().set_properties(plain).commit_transaction()
    replaced(table)
    assert orphans.find(care, table, -60.0).orphans == ()
    assert verify(care, care.load("ns.t")).sound
    expired = expired_by_hand(care, table, *old_ids(table))
    assert reclaim.run(care, table, step("reclaim", grace_s=0.0)).files_removed == len(expired.files)
    sound(care, table, [1, 2, 3])


def test_a_missing_object_is_found(care):
    table = make(care)
    assert verify(care, table).sound
    path = next(iter(table.scan().plan_files())).file.file_path
    store, key = care.storage_of(table).find(path)
    store.delete(key)
    (finding,) = verify(care, table).findings
    assert finding.uri == path


def test_a_server_that_asks_for_patience_gets_it(services, tmp_path, care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    with (
        gateway_to(services.seaweedfs.url) as gateway,
        care_on(services, tmp_path / "home", gateway.url) as throttled,
    ):
        gateway.first = {"DELETE": 2}
        outcome = reclaim.run(throttled, table, step("reclaim", grace_s=0.0))
    assert (outcome.result, outcome.files_removed, outcome.reason) == ("done", len(expired.files), None)
    assert gateway.refused["DELETE"] == 2
    sound(care, table, [1, 2, 3])


def test_a_server_without_end_of_patience_leaves_the_list_for_later(services, tmp_path, care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    with (
        gateway_to(services.seaweedfs.url) as gateway,
        care_on(
            services, tmp_path / "home", gateway.url, network__retry_attempts=2, network__breaker_failures=1000
        ) as throttled,
    ):
        gateway.first = {"DELETE": 10_000}
        outcome = reclaim.run(throttled, table, step("reclaim", grace_s=0.0))
    assert (outcome.result, outcome.files_removed) == ("failed", 0)
    assert "left for later" in (outcome.reason or "")
    assert 0 < gateway.seen["DELETE"] < 20, "it is not asked again and again"
    sound(care, table, [1, 2, 3])
    (left,) = expired_file_lists.waiting(care.storage_of(table), table)
    assert left.files == expired.files
    assert reclaim.run(care, table, step("reclaim", grace_s=0.0)).files_removed == len(expired.files)
    assert expired_file_lists.waiting(care.storage_of(table), table) == []
    names = {canonical_uri(file.uri).removeprefix(canonical_uri(table.location()) + "/") for file in expired.files}
    assert not names & there(care, table)
    sound(care, table, [1, 2, 3])
