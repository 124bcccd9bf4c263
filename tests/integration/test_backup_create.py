"""Backups of tables in buckets that fail now and then, and of tables that Spark writes; by threads and on Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.backup.create import create_backup
from frazil.backup.format import BackupRecord
from frazil.backup.repository import Repository
from frazil.observe.faultpoints import handled
from frazil.settings import Settings
from frazil.upkeep.expiry import pins
from tests import backup_create_kit
from tests.backup_create_kit import expected, held, open_bench
from tests.faulty_storage import Gateway, gateway_to
from tests.restore_kit import back_up, history, open_repository, restore
from tests.rewrite_kit import Bench
from tests.services.kit import Services
from tests.upkeep_files import grow, make
from tests.upkeep_s3 import care_on


class Faulty(Gateway):
    """Throttles, cuts connections and loses replies by turns."""

    def meets(self, method: str, path: str) -> str | None:  # type: ignore[override]
        self.refuses(method, path)
        return {0: "503", 5: "cut", 8: "lost"}.get(sum(self.seen.values()) % 11)


@pytest.mark.deep
def test_a_bucket_that_throttles_and_cuts_connections(services: Services, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with gateway_to(services.seaweedfs.access.endpoint, Faulty()) as gateway:
        flags = {"network__retry_attempts": 10, "network__breaker_failures": 1000}
        with care_on(services, home, gateway.url, **flags) as care:
            root = f"{care.catalog.warehouse}-repository"
            with care_on(services, home) as calm, open_bench(tmp_path, calm, root) as quiet:
                make(calm, commits=6)
                with open_bench(tmp_path, care, root) as bench:
                    (found,) = bench.backup().tables
                    assert gateway.seen.total() > 50
                assert held(quiet.repository, found) == expected(calm)
                grow(calm.load("ns.t"))
                (again,) = quiet.backup().tables
                assert (again.files, again.new_files) == (7, 1)
                assert held(quiet.repository, again) == expected(calm)


@pytest.mark.deep
def test_a_restore_from_and_to_a_bucket_that_throttles_and_cuts_connections(services: Services, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with care_on(services, home) as calm:
        make(calm, commits=6)
        root = f"{calm.catalog.warehouse}-repository"
        record = back_up(calm, open_repository(calm, root))
        flags = {"network__retry_attempts": 10, "network__breaker_failures": 1000}
        with (
            gateway_to(services.seaweedfs.access.endpoint, Faulty()) as gateway,
            care_on(services, home, gateway.url, **flags) as care,
        ):
            restore(care, open_repository(care, root), record)
        assert gateway.seen.total() > 50
        assert history(calm.load("ns.r")) == history(calm.load("ns.t"))


@pytest.fixture(scope="module")
def lane(lane_settings: Settings, spark: SparkSession) -> Bench:
    return Bench(lane_settings, lane_settings.catalog().name, spark)


@pytest.fixture
def repository(lane: Bench, tmp_path: Path) -> Iterator[Repository]:
    model = lane.settings.model
    yield Repository.open(str(tmp_path / "repository"), s3=model.s3, network=model.network, create=True)


def back_up_with(lane: Bench, repository: Repository, name: str, engine: str) -> tuple[BackupRecord, Counter[str]]:
    steps: Counter[str] = Counter()
    seen: list[int] = []

    def look(step: str) -> None:
        steps[step] += 1
        if step == "backup.create.pinned":
            seen.extend(p.snapshot_id for p in pins.pins(lane.care.load(name)))

    with handled(look):
        record = create_backup(lane.care, repository, [name], engine=engine)  # type: ignore[arg-type]
    steps["pins"] = len(seen)
    return record, steps


@pytest.mark.spark
@pytest.mark.parametrize("version", [pytest.param(2, marks=pytest.mark.deep), 3])
def test_spark_copies_what_threads_copy(lane: Bench, repository: Repository, version: int) -> None:
    full = lane.table(version=version, write__delete__mode="merge-on-read")
    name = full.split(".", 1)[1]
    lane.sql(f"INSERT INTO {full} SELECT id, 'x' FROM range(0, 40, 1, 4)")
    lane.sql(f"DELETE FROM {full} WHERE id % 7 = 0")
    lane.sql(f"ALTER TABLE {full} CREATE BRANCH side")
    record, steps = back_up_with(lane, repository, name, "spark")
    (found,) = record.tables
    assert steps["pins"] == 1
    assert found.refs == ("main", "side")
    assert held(repository, found) == expected(lane.care, name)
    lane.sql(f"INSERT INTO {full} VALUES (100, 'y')")
    lane.sql(f"DELETE FROM {full} WHERE id = 100 OR id = 3")
    record, steps = back_up_with(lane, repository, name, "local")
    (found,) = record.tables
    assert steps["pins"] == 1
    assert found.new_files == steps[backup_create_kit.FILES]
    assert held(repository, found) == expected(lane.care, name)
    assert set(lane.care.load(name).metadata.refs) == {"main", "side"}
