"""A log, a catalog and Spark for tests of the content sink, and events as stores send them."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from frazil.content.columns import CREATE, DELETE, UPDATE
from frazil.content.intake.messages import headers_of, store
from frazil.content.names import journal_name, objects_name
from frazil.content.topic import ensure_events_topic
from frazil.settings import Settings
from frazil.topics.sinks.pipeline import Pipeline
from tests.content_truth import Told
from tests.sink_kit import SinkKit, sink_kit_of

_NAMES = {CREATE: "ObjectCreated:Put", DELETE: "ObjectRemoved:Delete", UPDATE: "LifecycleTransition"}


def record(told: Told, name: str | None = None) -> dict[str, Any]:
    """A change as AWS tells it."""
    marker = "ObjectRemoved:DeleteMarkerCreated"
    thing: dict[str, Any] = {"key": told.key, "sequencer": told.sequence}
    if told.kind == CREATE and not told.marker:
        thing |= {"eTag": told.etag, "size": told.size}
    if told.version:
        thing["versionId"] = told.version
    return {
        "eventVersion": "2.1",
        "eventSource": "aws:s3",
        "eventTime": told.time.isoformat().replace("+00:00", "Z"),
        "eventName": name or (marker if told.marker else _NAMES[told.kind]),
        "s3": {"bucket": {"name": told.bucket}, "object": thing},
    }


def body(*told: Told) -> bytes:
    return json.dumps({"Records": [record(t) for t in told]}).encode()


class ContentKit:
    """One log and one pair of tables."""

    def __init__(self, kit: SinkKit, spark: SparkSession, catalog: str) -> None:
        self.kit, self.spark, self.catalog, self.settings = kit, spark, catalog, kit.settings
        self.topic = ensure_events_topic(kit.client, kit.settings).name

    def publish(self, *payloads: bytes) -> None:
        """In this order: Frazil's own messages as its components publish them, all others as anybody does."""
        for own, group in groupby(payloads, lambda payload: payload.startswith(b'{"frazil":')):
            if own:
                store(self.kit.client, self.topic, list(group), headers_of("test"), internal=True)
            else:
                self.kit.publish(self.topic, *group)

    @contextmanager
    def pipeline(self, settings: Settings | None = None) -> Iterator[Pipeline]:
        chosen = settings or self.settings
        with Pipeline(
            chosen,
            self.kit.client,
            self.spark,
            self.kit.client.address,
            topics=[self.topic],
            catalog=self.catalog,
        ) as made:
            yield made

    def drain(self, *payloads: bytes) -> None:
        if payloads:
            self.publish(*payloads)
        with self.pipeline() as pipeline:
            pipeline.drain(120)

    def objects(self) -> list[dict[str, Any]]:
        rows = self.kit.store.load(objects_name(self.settings)).scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda r: (r["bucket"], r["key"], r["version_id"]))

    def row(self, key: str, version: str = "") -> dict[str, Any]:
        (found,) = [r for r in self.objects() if (r["key"], r["version_id"]) == (key, version)]
        return found

    def spark_objects(self, columns: str) -> list[tuple[Any, ...]]:
        table = f"`{self.catalog}`.{objects_name(self.settings)}"
        return sorted(tuple(row) for row in self.spark.sql(f"SELECT {columns} FROM {table}").collect())

    def journal(self) -> list[dict[str, Any]]:
        rows = self.kit.store.load(journal_name(self.settings)).scan().to_arrow().to_pylist()
        return sorted(rows, key=lambda r: (r["offset"], r["index"]))


@contextmanager
def content_kit(
    lane_settings: Settings, spark: SparkSession, folder: Path, catalog: str = "sql", **content: Any
) -> Iterator[ContentKit]:
    """A kit with a log and a namespace of its own."""
    model = lane_settings.model
    log = model.log.model_copy(update={"directory": folder / "log", "min_free": 0})
    pipeline = model.pipeline.model_copy(update={"max_lag_ms": 50})
    namespace = f"c{uuid.uuid4().hex[:10]}"
    s3 = content.pop("s3", model.s3)
    section = model.content.model_copy(update={"namespace": namespace, "topic": f"{namespace}_events", **content})
    settings = Settings(model.model_copy(update={"log": log, "pipeline": pipeline, "content": section, "s3": s3}))
    with sink_kit_of(settings, catalog) as made:
        yield ContentKit(made, spark, catalog)
