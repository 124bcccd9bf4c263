"""Replications by cp, rsync and rclone: metadata before data, in any order, stopped half-way, with files that grow.

Every sync serves a version that the primary had, row by row, or nothing yet.
"""

from __future__ import annotations

import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from tests.copy_kit import Site, Tool, ToolName, run_rounds
from tests.replica_sync_kit import Pair, open_pair
from tests.services.kit import Services
from tests.upkeep_s3 import care_on


@pytest.mark.parametrize("name", ["cp", "rsync"])
def test_a_copy_that_stops_in_a_data_file_shows_the_version_before(tmp_path: Path, name: ToolName) -> None:
    with open_pair(tmp_path, commits=0) as pair:
        site = open_site(pair, name, seed=1)
        site.write("append")
        site.copy_all()
        site.sync()
        assert site.served == 1
        site.write("append")
        data = [name for name in site.list_new() if name.endswith(".parquet")]
        metadata = [name for name in site.list_new() if name not in data]
        assert site.tool.start(pair.source, metadata, slow=False, cut=False).wait(60) == 0
        assert site.tool.start(pair.source, data, slow=False, cut=True).wait(60) != 0
        report = site.sync()
        assert report is not None and (report.action, site.served) == ("waiting", 1)
        assert data[0] in report.missing[0] and " bytes" in report.missing[0]
        site.copy_all()
        site.sync()
        assert site.served == 2


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["cp", "rsync", "rclone"])
def test_many_copies_in_the_worst_order_never_show_a_broken_table(tmp_path: Path, name: ToolName, seed: int) -> None:
    with open_pair(tmp_path, commits=0) as pair:
        run_rounds(open_site(pair, name, seed=seed), rounds=8)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
def test_a_copy_into_a_bucket_in_the_worst_order_never_shows_a_broken_table(
    services: Services, tmp_path: Path, seed: int
) -> None:
    bucket = services.seaweedfs.make_bucket("copies")
    access = services.seaweedfs.access
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("AWS_")},
        "RCLONE_CONFIG_DR_TYPE": "s3",
        "RCLONE_CONFIG_DR_PROVIDER": "Other",
        "RCLONE_CONFIG_DR_ENDPOINT": access.endpoint,
        "RCLONE_CONFIG_DR_REGION": access.region,
        "RCLONE_CONFIG_DR_ACCESS_KEY_ID": access.access_key,
        "RCLONE_CONFIG_DR_SECRET_ACCESS_KEY": access.secret_key,
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
    }
    place = f"{bucket}/{tmp_path.parent.name}-{tmp_path.name}"
    with open_pair(tmp_path, commits=0) as pair, care_on(services, tmp_path / "on-s3") as care:
        pair.replica.store.close()
        pair.replica = care
        pair.order = replace(pair.order, replicated_path=f"{place}/landed", warehouse=f"{place}/replica")
        tool = Tool("rclone", f"dr:{place.removeprefix('s3://')}/landed", env)
        run_rounds(Site(pair, tool, random.Random(seed)), rounds=6)


def open_site(pair: Pair, name: ToolName, *, seed: int) -> Site:
    pair.landed.mkdir(parents=True)
    return Site(pair, Tool(name, str(pair.landed)), random.Random(seed))
