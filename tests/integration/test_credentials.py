"""Credentials of every kind open their catalog for both engines, and wrong ones are refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import pytest

from frazil.catalogs import open_catalog
from frazil.errors import CredentialsError
from frazil.query import run_sql
from frazil.settings import load_settings
from tests.lane import Lane, people

pytestmark = [pytest.mark.spark, pytest.mark.timeout(300)]


@pytest.mark.parametrize("name", ["by_token", "by_oauth2", "s3tables", "glue"])
def test_both_engines_get_in(lane_settings, spark, name):
    lane = Lane(name, lane_settings, spark)
    namespace = f"login_{uuid.uuid4().hex[:8]}"
    lane.sql(f"CREATE NAMESPACE {name}.{namespace}")
    lane.catalog.create_table(f"{namespace}.people", schema=people().schema).append(people(1))
    assert lane.spark_rows(f"{namespace}.people") == [(1, "person 1")]


def test_a_short_lived_oauth2_token_is_renewed(services):
    from tests.services.secured_rest import start_secured_rest

    server = services.own(lambda folder: start_secured_rest(folder, upstream=services.rest, token_uses=3))
    catalog = open_catalog(load_from(server.settings()).catalog())
    for _ in range(10):
        catalog.list_namespaces()


def load_from(sections: dict):
    flags = {f"{section}.{key}": str(value) for section, entries in sections.items() for key, value in entries.items()}
    return load_settings(flags=flags, environ={})


@pytest.mark.parametrize(
    "wrong", [{"token": "wrong"}, {"credential": "frazil-client:wrong"}, {"credential": "nobody:x"}, {}]
)
def test_wrong_catalog_credentials_are_refused(services, wrong):
    server = services.secured_rest
    sections = {"catalog": {"uri": server.url, "oauth2_uri": server.oauth2_uri, **wrong}}
    with pytest.raises(CredentialsError, match="rejects our credentials"):
        open_catalog(load_from(sections).catalog()).list_namespaces()


def test_an_aws_profile_signs_requests_and_reads_files(services, tmp_path, monkeypatch):
    server = services.seaweedfs
    keys = f"aws_access_key_id = {server.access.access_key}\naws_secret_access_key = {server.access.secret_key}\n"
    (tmp_path / "credentials").write_text(f"[work]\n{keys}")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    sections = server.settings()
    sections["s3"] = {"endpoint": server.access.endpoint, "profile": "work"}
    settings = load_from(sections)
    catalog = open_catalog(settings.catalog())
    namespace = f"profile_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    table = catalog.create_table(f"{namespace}.people", schema=people().schema)
    table.append(people(7))
    assert table.scan().to_arrow()["id"].to_pylist() == [7]

    result = run_sql(f"SELECT id FROM {namespace}.people", settings, engine="duckdb")
    assert result.table["id"].to_pylist() == [7]


SPARK_BY_PROFILE = """
import sys
from frazil.settings import load_settings
from frazil.spark import spark_session

uri, endpoint, home = sys.argv[1:]
flags = {"catalog.uri": uri, "s3.endpoint": endpoint, "s3.profile": "work", "home": home}
with spark_session(load_settings(flags=flags, environ={})) as session:
    session.sql("CREATE NAMESPACE IF NOT EXISTS by_profile")
    session.sql("CREATE OR REPLACE TABLE by_profile.t USING iceberg AS SELECT 7 AS id")
    print(session.table("by_profile.t").collect()[0].id)
"""


@pytest.mark.slow
def test_spark_takes_its_keys_from_an_aws_profile(services, tmp_path):
    server = services.rest_on_s3
    keys = f"aws_access_key_id = {server.access.access_key}\naws_secret_access_key = {server.access.secret_key}\n"
    (tmp_path / "credentials").write_text(f"[work]\n{keys}")
    env = {**os.environ, "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    command = [sys.executable, "-c", SPARK_BY_PROFILE, server.url, server.access.endpoint, str(tmp_path / "home")]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=200, check=False)
    assert done.stdout == "7\n", done.stderr[-2000:]
