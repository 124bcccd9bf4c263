"""Upkeep on S3 that refuses every n-th request with SlowDown: it ends right, or says so and has changed nothing."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from frazil.errors import FrazilError
from frazil.tables.metadata.locations import canonical_uri
from frazil.tables.metadata.reachable import find_reachable_files
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.expiry import expire, expired_file_lists, orphans, reclaim
from frazil.upkeep.expiry.verify import verify
from frazil.upkeep.model import Outcome, Step
from frazil.upkeep.rewrite import compact, deletes, manifests, partition, retention, statistics
from tests.faulty_storage import REQUESTS, Gateway, gateway_to
from tests.rewrite_kit import COMPACT
from tests.services.kit import Services
from tests.sink_kit import SinkKit, sink_kit_of
from tests.upkeep_files import make, old_ids, rows, step
from tests.upkeep_s3 import care_on, settings_on

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]
_COMMITS = 8
T = TypeVar("T")


@contextmanager
def throttled(
    services: Services, spark: SparkSession, folder: Path, every: dict[str, int]
) -> Iterator[tuple[UpkeepContext, UpkeepContext, Gateway]]:
    """The same tables twice: as they are, and behind a gateway that refuses some requests."""
    name = {"catalog__name": f"s{uuid.uuid4().hex[:8]}"}
    with (
        gateway_to(services.seaweedfs.url) as gateway,
        care_on(services, folder / "home", **name) as plain,
        care_on(services, folder / "home", gateway.url, spark=spark, **name) as care,
    ):
        gateway.every = every
        yield plain, care, gateway


def patiently(act: Callable[[], T], plain: UpkeepContext, table: Table) -> T:
    """An action until it gets through. Whenever it does not, it must say that it can be tried again, and do nothing."""
    name = ".".join(table.name())
    for _ in range(10):
        before = plain.load(name).metadata_location
        try:
            return act()
        except FrazilError as error:
            assert error.retryable, error.to_dict()
            assert plain.load(name).metadata_location == before
            assert verify(plain, table.refresh()).sound
    raise AssertionError("it never got through")


def care_for_all(plain: UpkeepContext, care: UpkeepContext) -> None:
    """What upkeep does most, one after the other."""
    table = make(plain, commits=_COMMITS, properties={"commit.manifest-merge.enabled": "false"})
    expected = rows(table)

    def do(act: Callable[[UpkeepContext, Table, object], Outcome], kind: str, **options: object) -> Outcome:
        return patiently(lambda: act(care, table, step(kind, **options)), plain, table)

    outcome = do(manifests.run, "manifests", small=2)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", _COMMITS, 1)
    outcome = do(compact.run, "compact", **COMPACT)
    assert (outcome.result, outcome.files_before, outcome.files_after) == ("done", _COMMITS, 1)
    going = old_ids(plain.load("ns.t"))
    outcome = do(expire.run, "expire", snapshots=going)
    assert (outcome.result, outcome.snapshots_removed) == ("done", len(going))
    waits = [expired for expired in expired_file_lists.waiting(plain.storage_of(table), table) if expired.committed]
    outcome = do(reclaim.run, "reclaim", grace_s=0.0)
    assert (outcome.result, outcome.files_removed) == ("done", sum(len(expired.files) for expired in waits))
    places = plain.storage_of(table)
    for name in ("data/lost.parquet", "metadata/lost-m0.avro"):
        store, key = places.find(f"{table.location()}/{name}")
        store.put(key, b"lost")
    # What tries before the last have left behind is found too.
    outcome = do(orphans.run, "orphans", age_s=-60.0)
    assert (outcome.result, outcome.files_removed >= 2) == ("done", True)
    assert verify(care, care.load("ns.t")).sound
    fresh = plain.load("ns.t")
    assert rows(fresh) == expected
    there = {uri for uri, _ in places.list(canonical_uri(table.location()))}
    assert there == set(find_reachable_files(plain.store, fresh)), "nothing is lost, and nothing is left over"


def worn_by_age(plain: UpkeepContext, spark: SparkSession, catalog: str) -> Table:
    """A file with old rows alone, three with some, and three files of position deletes."""
    name = f"{catalog}.ns.old"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.ns")
    spark.sql(
        f"CREATE TABLE {name} (id BIGINT, name STRING, at TIMESTAMP) USING iceberg TBLPROPERTIES ("
        "'format-version'='2', 'write.delete.mode'='merge-on-read', 'write.delete.granularity'='partition')"
    )
    for number in range(4):
        age = "10" if number == 0 else "CASE WHEN id % 10 < 5 THEN 10 ELSE 0 END"
        frame = spark.range(number * 10, number * 10 + 10, 1, 1)
        at = f"current_timestamp() - make_dt_interval({age}) AS at"
        frame.selectExpr("id", "concat('person ', id) AS name", at).writeTo(name).append()
    for i in (15, 25, 35):
        spark.sql(f"DELETE FROM {name} WHERE id = {i}")
    return plain.load("ns.old")


def care_for_the_rest(plain: UpkeepContext, care: UpkeepContext, table: Table) -> None:
    """What upkeep does only where a policy or a person asks for it: each of these is one commit."""

    def do(act: Callable[[UpkeepContext, Table, Step], Outcome], kind: str, **options: object) -> Outcome:
        return patiently(lambda: act(care, table, step(kind, **options)), plain, table)

    old = {"column": "at", "before_us": int((time.time() - 86400) * 1e6)}
    assert do(retention.run, "retention", **old).result == "done"
    assert rows(plain.load("ns.old")) == [i for i in range(10, 40) if i not in (15, 25, 35)]
    assert do(retention.run, "retention", **old, exact=True).result == "done"
    expected = [i for i in range(10, 40) if i % 10 > 5]
    assert rows(plain.load("ns.old")) == expected
    outcome = do(deletes.run, "deletes", min_files=2)
    assert outcome.result == "done" and outcome.files_after < outcome.files_before
    assert do(statistics.run, "stats").result == "done"
    outcome = do(compact.run, "compact", **COMPACT, strategy="zorder", sort_by=["id", "name"])
    assert (outcome.result, outcome.files_after) == ("done", 1)
    spec = "bucket(2, id)"
    assert patiently(lambda: partition.apply(care, table, spec), plain, table).changed
    applied = patiently(lambda: partition.apply(care, table, spec, rewrite=True), plain, table)
    assert (applied.after, applied.left) == (spec, 0)
    fresh = plain.load("ns.old")
    assert rows(fresh) == expected
    assert verify(plain, fresh).sound


@pytest.mark.deep
@pytest.mark.long("every action of upkeep, with the pauses after each refused request")
def test_upkeep_ends_right_where_every_fourth_request_is_refused(
    services: Services, spark: SparkSession, tmp_path: Path
) -> None:
    with throttled(services, spark, tmp_path, dict.fromkeys(REQUESTS, 4)) as (plain, care, gateway):
        care_for_all(plain, care)
    assert {kind for kind in REQUESTS if gateway.refused[kind]} >= {"PUT", "GET", "HEAD", "LIST"}, gateway


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [2, 3, 5])
@pytest.mark.parametrize("kind", [*REQUESTS, "all"])
def test_every_action_ends_right_whatever_is_refused(
    services: Services, spark: SparkSession, tmp_path: Path, kind: str, every: int
) -> None:
    refused = dict.fromkeys(REQUESTS if kind == "all" else (kind,), every)
    with throttled(services, spark, tmp_path, refused) as (plain, care, gateway):
        care_for_all(plain, care)
    assert gateway.refused.total() or gateway.seen[kind] < every, "there were enough to refuse one"


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.parametrize("every", [2, 3, 5])
def test_every_action_on_request_ends_right_where_every_nth_request_is_refused(
    services: Services, spark: SparkSession, tmp_path: Path, every: int
) -> None:
    with throttled(services, spark, tmp_path, {}) as (plain, care, gateway):
        table = worn_by_age(plain, spark, care.catalog.name)
        gateway.every = dict.fromkeys(REQUESTS, every)
        care_for_the_rest(plain, care, table)
    assert {kind for kind in REQUESTS if gateway.refused[kind]} >= {"PUT", "GET", "HEAD"}, gateway


def caught_up(kit: SinkKit, topic: str) -> None:
    """As a pipeline does it: what can be tried again is, by an engine that knows nothing of the last try."""
    for _ in range(10):
        try:
            kit.engine(topic).catch_up()
        except FrazilError as error:
            assert error.retryable, error.to_dict()
        else:
            return
    raise AssertionError("it never got through")


@pytest.mark.soak
def test_a_batch_of_a_topic_lands_once_where_every_fifth_request_is_refused(services: Services, tmp_path: Path) -> None:
    with gateway_to(services.seaweedfs.url) as gateway:
        flags = {"log__directory": tmp_path / "log", "log__min_free": 0, "network__breaker_failures": 1000}
        settings = settings_on(services, tmp_path / "home", gateway.url, **flags)
        gateway.every = dict.fromkeys(REQUESTS, 5)
        with sink_kit_of(settings) as kit:
            kit.create("orders")
            for number in range(3):
                kit.publish("orders", *(b"%d" % n for n in range(number * 100, number * 100 + 100)))
                caught_up(kit, "orders")
            gateway.every = {}
            kit.check("orders")
    assert gateway.refused["PUT"] and gateway.refused["GET"]
