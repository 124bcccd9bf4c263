"""The store of documents in Iceberg on each kind of catalog: staged files, tables, and a projection built from them."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

import pytest
import yaml

from tests.documents_iceberg_kit import Home, everything, put

KINDS = ("rest", "rest_on_s3", "nessie", "seaweedfs", "glue", "hive")


@pytest.fixture(params=[pytest.param(k, marks=() if k == "rest" else pytest.mark.deep) for k in KINDS])
def home(request, services, tmp_path: Path) -> Home:
    config = tmp_path / "frazil.yaml"
    config.write_text(yaml.safe_dump(getattr(services, request.param).settings()))
    flags = {"documents.namespace": f"documents_{uuid.uuid4().hex[:8]}"}
    return Home(tmp_path / "home", flags, config)


def test_staged_files_and_tables_of_every_catalog_bring_the_projection_back(home, tmp_path):
    source = Home(tmp_path / "source")
    with source.owner() as (store, _):
        for number in range(5):
            put(store, f"loaded{number}", tags={"n": str(number)})
        store.delete_metadata("loaded3")
        loaded = [store.history(f"loaded{number}") for number in range(5)]
    with home.owner() as (store, log):
        put(store, "own")
        store.add_column("department", "string")
        change = {"department": "sales"}
        store.update_metadata("own", change, idempotency_key="once")
        assert store.load_revisions(loaded) == 6
        state = everything(store)
        store.rebuild()
        assert everything(store) == state
        home.advance(log)
        store.update_metadata("loaded0", {"size_bytes": 7})
        state = everything(store)
        assert store.via_table().page(sort="document_id").documents == store.page(sort="document_id").documents
        assert store.verify().findings == []
    shutil.rmtree(home.link.parent)
    with home.store() as store:
        assert everything(store) == state
        assert store.update_metadata("own", change, idempotency_key="once").revision == 2
        assert store.verify().findings == []
