"""The content tables of former versions, continued on Spark. `tests/component/test_formats.py` has the rest."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from frazil.catalogs import open_catalog
from frazil.settings import Settings
from tests import golden
from tests.content_sink_kit import ContentKit, body
from tests.content_truth import Told
from tests.golden_make import BUCKET, settings_of
from tests.sink_kit import sink_kit_of

pytestmark = pytest.mark.spark
_CATALOG = "sql"


@pytest.fixture(params=golden.VERSIONS)
def kit(
    request: pytest.FixtureRequest, lane_settings: Settings, spark: SparkSession, tmp_path: Path
) -> Iterator[ContentKit]:
    """The log of a former version; its content tables stand in the catalog that the shared session knows."""
    home, _ = golden.unpack(request.param, tmp_path)
    former, model = settings_of(home), lane_settings.model
    names = [f"content.{name}" for name in ("journal", "objects")]
    catalog = open_catalog(lane_settings.catalog(_CATALOG))
    catalog.create_namespace_if_not_exists("content")
    for name in names:
        catalog.register_table(name, open_catalog(former.catalog()).load_table(name).metadata_location)
    log = former.model.log.model_copy(update={"directory": home / "log"})
    with sink_kit_of(Settings(model.model_copy(update={"log": log})), _CATALOG) as made:
        yield ContentKit(made, spark, _CATALOG)
    for name in names:
        catalog.drop_table(name)


def test_the_content_tables_of_a_former_version_are_continued(kit: ContentKit) -> None:
    before = kit.objects()
    kit.drain(body(Told(bucket=BUCKET, key="a.jpg", sequence="F" * 18, etag="a9", size=99)))
    rows = {(r["key"], r["version_id"]): r for r in kit.objects()}
    assert (rows["a.jpg", ""]["etag"], rows["a.jpg", ""]["size"]) == ("a9", 99)
    assert rows["late.jpg", ""]["etag"] == "l1", "what was in the log, and in no table yet"
    unchanged = [r for r in before if r["key"] != "a.jpg"]
    assert [rows[r["key"], r["version_id"]] for r in unchanged] == unchanged
    assert len(rows) == len(before) + 1
    assert kit.spark_objects("key, version_id, etag") == sorted((k, v, r["etag"]) for (k, v), r in rows.items())
