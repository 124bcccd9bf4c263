"""The Python of the pages runs as it is shown, one example after the other, with Spark and where needed a broker."""

from __future__ import annotations

import uuid
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

import frazil.spark
from frazil.catalogs import open_catalog, spark_conf
from frazil.log.remote.broker import Broker
from frazil.settings import load_settings
from frazil.topics import open_log
from tests.lane import people
from tests.unit.test_docs import ROOT, blocks

pytestmark = [pytest.mark.spark, pytest.mark.timeout(280)]

_SHOWN = "grpc://127.0.0.1:8815"


@pytest.fixture
def own_settings(monkeypatch, tmp_path: Path) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nobody"))
    monkeypatch.setenv("FRAZIL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("FRAZIL_LOG__MIN_FREE", "0")
    monkeypatch.chdir(tmp_path)


@pytest.mark.usefixtures("own_settings")
def test_the_examples_of_topics_run(spark, capsys, tmp_path):
    with open_log(load_settings()) as log, Broker(log) as broker:
        log.announce(flight=broker.address)
        log.create_topic("orders", storage="iceberg")
        names: dict[str, Any] = {"spark": spark}
        try:
            for text in blocks(ROOT / "docs" / "topics.md", "python"):
                exec(compile(text.replace(_SHOWN, broker.address), "docs/topics.md", "exec"), names)
        finally:
            names["lake"].close()
        published = log.info("orders").end
        assert published == 7
        assert sum(int(line) for line in capsys.readouterr().out.splitlines() if line.isdecimal()) == published
        assert names["messages"].count() == published
        assert names["stream"].isStreaming
    assert (tmp_path / "shop" / "log").is_dir(), "the embedded log of the page"


@pytest.mark.usefixtures("own_settings")
def test_the_examples_of_upkeep_run(spark, capsys, monkeypatch):
    """They start a session of their own; here it is the one of all tests, which learns of the catalog."""
    monkeypatch.setenv("FRAZIL_CATALOG__NAME", "of_the_page")
    settings = load_settings()
    catalog = open_catalog(settings.catalog())
    catalog.create_namespace("shop")
    orders = catalog.create_table("shop.orders", schema=people().schema)
    orders.append(people(1, 2, 3))
    for key, value in spark_conf(settings.catalog()).items():
        spark.conf.set(key, value)
    monkeypatch.setattr(frazil.spark, "spark_session", lambda settings: nullcontext(spark))
    names: dict[str, Any] = {}
    for text in blocks(ROOT / "docs" / "upkeep.md", "python"):
        exec(compile(text, "docs/upkeep.md", "exec"), names)
    assert sorted(names["rows"]["id"].to_pylist()) == [1, 2, 3]
    assert "frazil-pin-audit-" in capsys.readouterr().out
    assert names["again"].tag == names["held"].tag
    assert set(orders.refresh().metadata.refs) == {"main"}


@pytest.mark.long("scans and extracts on Spark, compacts and expires, in the order of the page")
@pytest.mark.usefixtures("own_settings")
def test_the_examples_of_python_run(spark, lane_settings, capsys, monkeypatch, tmp_path):
    """The lake starts a session; here it is the one of all tests, with a catalog of that session."""
    catalog, own = lane_settings.catalog("sql"), uuid.uuid4().hex[:8]
    settings = {"CATALOG__NAME": "sql", "CATALOG__URI": catalog.uri, "CATALOG__WAREHOUSE": catalog.warehouse}
    settings |= {"TOPICS__NAMESPACE": f"topics_{own}", "CONTENT__NAMESPACE": f"content_{own}"}
    for name, value in settings.items():
        monkeypatch.setenv(f"FRAZIL_{name}", value)
    monkeypatch.setattr(frazil.spark, "spark_session", lambda settings: nullcontext(spark))
    names: dict[str, Any] = {}
    try:
        for text in blocks(ROOT / "docs" / "python.md", "python"):
            exec(compile(text.replace("shop", f"shop_{own}"), "docs/python.md", "exec"), names)
    finally:
        names["lake"].close()
    printed = capsys.readouterr().out
    assert names["everything"].num_rows == names["recent"].num_rows == 106
    assert names["total"].to_pylist() == [{"n": 3, "total": 24.75}]
    assert names["rows"].num_rows == 3
    assert names["report"].extraction.by_status == {"ok": 2}
    assert [row["key"] for page in (names["page"], names["rest"]) for row in page] == ["hello.txt", "plan.txt"]
    for line in ("['hello.txt']", "topic 'oders' does not exist", "Try: 'orders'", "['put', 'update']"):
        assert line in printed

    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "a.txt").write_text("no picture")
    with frazil.connect() as lake:
        lake.content.scan("./photos", wait=False)
    (example,) = blocks(ROOT / "README.md", "python")
    exec(compile(example, "README.md", "exec"), {})
    with frazil.connect() as lake:
        assert lake.topic("orders").read()["payload"].to_pylist()[-1] == b'{"id": 8}'
