"""What upkeep promises of expiry, reclaim, orphans, pins and the checker, on every kind of catalog."""

from __future__ import annotations

import time

import pytest

from frazil.catalogs.kinds import ABILITIES
from frazil.errors import UnsupportedError
from frazil.tables.metadata.locations import canonical_uri
from frazil.upkeep.expiry import expire, expired_file_lists, orphans, reclaim
from frazil.upkeep.expiry.expire import choose
from frazil.upkeep.expiry.pins import pin, pins, release
from frazil.upkeep.expiry.verify import verify
from tests.rewrite_kit import Bench
from tests.tiers import kinds
from tests.upkeep_files import step

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=kinds())
def bench(request, lane_settings, spark) -> Bench:
    return Bench(lane_settings, request.param, spark)


@pytest.fixture
def abilities(bench):
    return ABILITIES["rest" if bench.catalog == "rest_on_s3" else bench.catalog]


def there(bench: Bench, name: str) -> set[str]:
    table = bench.load(name)
    root = canonical_uri(table.location()) + "/"
    return {uri.removeprefix(root) for uri, _ in bench.care.storage_of(table).list(table.location())}


@pytest.mark.deep
def test_old_snapshots_and_their_files_go_and_every_row_stays(bench, abilities):
    name = bench.table()
    bench.insert(name, 0, 10)
    bench.sql(f"DELETE FROM {name} WHERE id < 10")
    metadata = bench.load(name).metadata
    ids = choose(metadata, max_age_s=None, max_snapshots=1, now_ms=int(time.time() * 1000))
    if not abilities.history:
        assert ids == []
        outcome = expire.run(bench.care, bench.load(name), step("expire", snapshots=[1]))
        assert (outcome.result, outcome.reason) == ("unsupported", abilities.note)
        assert verify(bench.care, bench.load(name)).sound
        return
    assert len(ids) == 2
    outcome = expire.run(bench.care, bench.load(name), step("expire", snapshots=ids))
    assert (outcome.result, outcome.snapshots_removed) == ("done", 2)
    assert len(bench.load(name).metadata.snapshots) == 1
    assert verify(bench.care, bench.load(name)).sound
    table = bench.load(name)
    if bench.catalog == "s3tables":
        assert reclaim.run(bench.care, table, step("reclaim", grace_s=0.0)).result == "nothing"
        assert bench.ids(name) == list(range(10, 20))
        return
    (waits,) = expired_file_lists.waiting(bench.care.storage_of(table), table)
    assert [file.kind for file in waits.files].count("data") == 1
    outcome = reclaim.run(bench.care, table, step("reclaim", grace_s=0.0))
    assert (outcome.result, outcome.files_removed) == ("done", len(waits.files))
    assert expired_file_lists.waiting(bench.care.storage_of(table), table) == []
    assert not {file.uri.rpartition("/")[2] for file in waits.files} & {
        n.rpartition("/")[2] for n in there(bench, name)
    }
    assert verify(bench.care, bench.load(name)).sound
    assert bench.ids(name) == list(range(10, 20))


def test_orphans_go_where_they_can_be_told(bench):
    name = bench.table()
    bench.insert(name, 0)
    table = bench.load(name)
    if bench.catalog in ("nessie", "s3tables"):
        with pytest.raises(UnsupportedError) as error:
            orphans.find(bench.care, table, 0.0)
        assert error.value.cause
        assert error.value.hint
        return
    before = there(bench, name)
    store, key = bench.care.storage_of(table).find(f"{table.location()}/data/lost.parquet")
    store.put(key, b"lost")
    assert orphans.find(bench.care, table, 3600.0).young == 1
    outcome = orphans.run(bench.care, table, step("orphans", age_s=-60.0))
    assert (outcome.result, outcome.files_removed) == ("done", 1)
    assert there(bench, name) == before
    assert bench.ids(name) == list(range(10))


def test_a_pin_is_a_tag_where_there_are_tags(bench, abilities):
    name = bench.table()
    bench.insert(name, 0)
    if not abilities.refs:
        with pytest.raises(UnsupportedError, match="no pins") as error:
            pin(bench.care, bench.load(name), "backup", 60)
        assert "file_grace_s" in (error.value.hint or "")
        return
    held = pin(bench.care, bench.load(name), "backup", 600)
    bench.insert(name, 10, 20)
    assert [found.tag for found in pins(bench.load(name))] == [held.tag]
    ids = choose(bench.load(name).metadata, max_age_s=None, max_snapshots=1, now_ms=int(time.time() * 1000))
    assert ids == []
    release(bench.care, held)
    assert pins(bench.load(name)) == []
    ids = choose(bench.load(name).metadata, max_age_s=None, max_snapshots=1, now_ms=int(time.time() * 1000))
    assert len(ids) == 2
