"""docs/http-api.md and docs/http-documents.md say what the API does: paths, parameters, bodies and every field."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from frazil.api import documents, documents_access, request_body
from frazil.api.app import create_app
from frazil.api.models import MAX_MESSAGES, Acknowledgement, Topic
from frazil.api.problems import PREFIX, PROBLEM
from frazil.api.publishing import KINDS
from frazil.api.request_body import JSON
from frazil.api.strict_json import MAX_DEPTH
from frazil.documents.decide import MAX_WRITES
from frazil.errors import FrazilError
from frazil.log import Ack, Level, Log
from frazil.settings import SettingsModel

DOCS = Path(__file__).parents[2] / "docs"
TOPICS_PAGE = (DOCS / "http-api.md").read_text()
DOCUMENTS_PAGE = (DOCS / "http-documents.md").read_text()
PAGE = TOPICS_PAGE + DOCUMENTS_PAGE
#: Schemas that are values, not objects with fields.
VALUES = {"Level", "JsonValue"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("api")
    with Log.open(folder) as log:
        app = create_app(log, SettingsModel(home=folder, cache=folder))
        app.state.service.close()
        return app.openapi()


def documented_fields() -> dict[str, dict[str, str]]:
    pages = (TOPICS_PAGE, DOCUMENTS_PAGE)
    sections = [
        s for page in pages for s in re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", page, re.DOTALL | re.MULTILINE)
    ]
    rows = {name: re.findall(r"^\| `(\w+)` \| [^|]+ \| ([^|]+) \|$", text, re.MULTILINE) for name, text in sections}
    return {name: dict(found) for name, found in rows.items()}


def test_every_field_is_documented_with_the_same_words(spec):
    schemas = {name: s for name, s in spec["components"]["schemas"].items() if name not in VALUES}
    described = {
        name: {field: about.get("description", "") for field, about in schema["properties"].items()}
        for name, schema in schemas.items()
    }
    assert all(about for fields in described.values() for about in fields.values()), "a field without a meaning"
    assert documented_fields() == described


def test_every_path_and_every_parameter_is_documented(spec):
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            assert f"`{method.upper()} {path}`" in PAGE
            for parameter in operation.get("parameters", ()):
                assert parameter["in"] == "path" or f"`{parameter['name']}`" in PAGE or f"`{parameter['name']}=" in PAGE
    named = set(re.findall(r"`(?:GET|POST|PUT|PATCH|DELETE) (/[^`?]*)`", PAGE))
    assert named == set(spec["paths"])


def test_every_reference_leads_to_a_schema(spec):
    references = re.findall(r"#/components/schemas/(\w+)", str(spec))
    assert set(references) <= set(spec["components"]["schemas"])


def test_every_content_type_is_documented(spec):
    taken = spec["paths"]["/topics/{topic}/messages"]["post"]["requestBody"]["content"]
    assert set(taken) == set(KINDS) == set(re.findall(r"^\| `(application/[^`]+)` \|", TOPICS_PAGE, re.MULTILINE))


def test_limits_are_documented():
    assert f"{MAX_MESSAGES:,} messages" in TOPICS_PAGE
    assert f"after {request_body._MEMORY_WAIT_S:.0f} seconds" in TOPICS_PAGE
    for page in (TOPICS_PAGE, DOCUMENTS_PAGE):
        assert f"for {request_body._IDLE_S:.0f} seconds" in page
    assert f"{documents.DEFAULT_LIMIT} by default, up to {documents.MAX_LIMIT:,}" in DOCUMENTS_PAGE
    assert f"up to {MAX_WRITES:,} writes" in DOCUMENTS_PAGE
    assert f"waits up to {documents_access._PATIENCE_S:.0f} seconds" in DOCUMENTS_PAGE
    assert f"more than {MAX_DEPTH} levels" in DOCUMENTS_PAGE


def test_answers_have_the_fields_that_are_described(tmp_path):
    with Log.open(tmp_path) as log:
        shown = log.create_topic("t").to_dict()
    assert set(shown) - {"schema"} == set(Topic.model_fields)
    assert set(Ack("t", 0, 1, Level.disk, 0).to_dict()) == set(Acknowledgement.model_fields)


def test_errors_have_the_fields_that_are_described(spec):
    more = {"start", "acknowledged", "stored"}
    assert set(FrazilError("x").to_dict()) | more == set(spec["components"]["schemas"]["Failure"]["properties"])
    for path, operations in spec["paths"].items():
        kind, schema = (PROBLEM, "Problem") if path.startswith(PREFIX) else (JSON, "Failure")
        for operation in operations.values():
            (content,) = operation["responses"]["default"]["content"].items()
            assert content == (kind, {"schema": {"$ref": f"#/components/schemas/{schema}"}})
            assert "422" not in operation["responses"]
