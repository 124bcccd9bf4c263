"""The compose file of a document archive holds together, and Frazil understands the environment that it gives."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from frazil.documents.open import store_url
from frazil.settings import load_settings

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "documents.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
ONE_SHOT = {"bucket"}


def environment(service: str) -> dict[str, str]:
    """As compose gives it where nothing is set."""
    given = SERVICES[service]["environment"]
    return {name: re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", str(value)) for name, value in given.items()}


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_on_the_loopback_and_every_image_has_a_version(name: str):
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)
    assert re.search(r":(\$\{\w+:-)?[\w.-]+\}?$", SERVICES[name]["image"])
    assert ("healthcheck" in SERVICES[name]) == (name not in ONE_SHOT)


def test_services_wait_for_what_they_need():
    waits = {name: service.get("depends_on", {}) for name, service in SERVICES.items()}
    assert waits["bucket"] == {"seaweedfs": {"condition": "service_healthy"}}
    assert waits["nessie"] == {"bucket": {"condition": "service_completed_successfully"}}
    assert waits["app"] == {"nessie": {"condition": "service_healthy"}}


def test_the_app_keeps_documents_in_iceberg_on_the_catalog_and_the_bucket_of_this_file():
    settings = load_settings(environ=environment("app"))
    catalog = settings.catalog()
    assert store_url(settings) == "iceberg"
    assert (catalog.kind, catalog.uri) == ("rest", "http://nessie:19120")
    assert catalog.s3 is not None and catalog.s3.endpoint == "http://seaweedfs:8333"
    assert catalog.s3.access_key == environment("seaweedfs")["AWS_ACCESS_KEY_ID"]
    location = environment("nessie")["nessie.catalog.warehouses.documents.location"]
    assert catalog.warehouse == location.rstrip("/") == "s3://document-archive-iceberg-warehouse"
    assert settings.model.serve.host == "0.0.0.0"


def test_bucket_and_app_share_settings_and_image():
    assert environment("bucket").items() <= environment("app").items()
    assert SERVICES["bucket"]["image"] == SERVICES["app"]["image"]
    assert (DEPLOY / SERVICES["app"]["build"]["context"]).resolve() == ROOT


def test_what_must_survive_a_restart_lies_in_volumes():
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"]) == {"frazil", "nessie", "seaweedfs"}


def test_the_readme_says_how_to_use_it():
    assert "deploy/documents.yaml up" in (DEPLOY / "README.md").read_text()
