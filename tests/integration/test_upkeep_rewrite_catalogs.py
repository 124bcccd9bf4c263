"""Upkeep's rewrites on every kind of catalog, within what it can do."""

from __future__ import annotations

import pytest

from frazil.catalogs import abilities_of
from frazil.errors import UnsupportedError
from frazil.upkeep.model import Step
from frazil.upkeep.rewrite import compact, deletes, manifests, metadata, partition, statistics
from tests.rewrite_kit import COMPACT, Bench
from tests.tiers import kinds

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


@pytest.fixture(scope="module", params=kinds())
def bench(request, lane_settings, spark) -> Bench:
    return Bench(lane_settings, request.param, spark)


@pytest.mark.deep
@pytest.mark.parametrize(
    "version", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_rewrites_keep_every_row(bench, version):
    abilities = abilities_of(bench.care.catalog, dict(bench.care.store.catalog.properties))
    if version == 3 and not abilities.v3:
        version = 2
    mode = "copy-on-write" if version == 1 else "merge-on-read"
    name = bench.table(version=version, write__delete__mode=mode, commit__manifest_merge__enabled="false")
    bench.insert(name, 0, 10, 20)
    bench.sql(f"DELETE FROM {name} WHERE id = 5")
    left = [i for i in range(30) if i != 5]

    def do(action, kind, **options):
        return action.run(bench.care, bench.load(name), Step(kind, "a test", options=options))

    merged = do(manifests, "manifests", small=2)
    assert (merged.result, merged.files_after) == ("done", 1)
    assert bench.ids(name) == left
    outcome = do(compact, "compact", **COMPACT)
    assert (outcome.result, outcome.files_after) == ("done", 1)
    assert outcome.snapshot_id == bench.load(name).metadata.current_snapshot_id
    assert bench.ids(name) == left
    assert do(deletes, "deletes", min_files=2).result in ("done", "nothing")
    assert do(metadata, "metadata", versions=5).result == "done"
    assert do(statistics, "stats").result == "done"
    assert len(bench.load(name).metadata.statistics) == 1
    assert bench.ids(name) == left


def test_partitions_change_where_the_catalog_has_them(bench):
    name = bench.table()
    bench.insert(name, 0)
    before = bench.load(name).metadata_location
    try:
        applied = partition.apply(bench.care, bench.load(name), "bucket(2, id)", rewrite=True)
    except UnsupportedError:
        assert bench.catalog == "s3tables"
        assert bench.load(name).metadata_location == before
    else:
        assert (applied.after, applied.left) == ("bucket(2, id)", 0)
    assert bench.ids(name) == list(range(10))
