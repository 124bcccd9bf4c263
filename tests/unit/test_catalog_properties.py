"""One catalog's settings in the words of both engines."""

from __future__ import annotations

import pytest

from frazil.catalogs import ABILITIES, parse_name, pyiceberg_properties, spark_conf
from frazil.catalogs.kinds import flavor_of
from frazil.errors import UnsupportedError, UsageError
from frazil.settings import CatalogSettings, load_settings


def catalog(**flags: str) -> CatalogSettings:
    named = {key.replace("__", "."): value for key, value in flags.items()}
    return load_settings(flags={"home": "/lake", **named}, environ={}).catalog()


def spark(settings: CatalogSettings) -> dict[str, str]:
    prefix = f"spark.sql.catalog.{settings.name}."
    return {key.removeprefix(prefix): value for key, value in spark_conf(settings).items() if key.startswith(prefix)}


def test_the_embedded_default_is_one_file_for_both():
    mine = catalog()
    assert pyiceberg_properties(mine)["uri"].startswith("sqlite:////lake/catalog.db?timeout=")
    assert spark(mine)["uri"] == "jdbc:sqlite:/lake/catalog.db"
    assert pyiceberg_properties(mine)["warehouse"] == spark(mine)["warehouse"] == "file:///lake/warehouse"
    assert spark(mine)["jdbc.schema-version"] == "V1"


@pytest.mark.parametrize("uri", ["http://host:8181", "thrift://host:9083", "glue"])
def test_spark_never_caches_tables_because_others_commit_too(uri):
    assert spark(catalog(catalog__uri=uri))["cache-enabled"] == "false"


@pytest.mark.parametrize(
    ("uri", "kind"), [("http://h", "rest"), ("https://h", "rest"), ("thrift://h:1", "hive"), ("glue", "glue")]
)
def test_the_kind_is_told_from_the_uri(uri, kind):
    mine = catalog(catalog__uri=uri)
    assert mine.kind == kind
    assert pyiceberg_properties(mine)["type"] == kind
    assert spark(mine)["type"] == kind


def test_token_and_oauth2_credentials_reach_both_engines():
    mine = catalog(
        catalog__uri="http://h", catalog__credential="id:secret", catalog__oauth2_uri="http://t", catalog__scope="s"
    )
    for properties in (pyiceberg_properties(mine), spark(mine)):
        assert properties["credential"] == "id:secret"
        assert properties["oauth2-server-uri"] == "http://t"
        assert properties["scope"] == "s"
    by_token = catalog(catalog__uri="http://h", catalog__token="t")
    assert pyiceberg_properties(by_token)["token"] == spark(by_token)["token"] == "t"


def test_signing_is_set_up_for_both_engines():
    mine = catalog(
        catalog__uri="http://h", catalog__sigv4="true", catalog__signing_name="s3tables",
        s3__access_key="k", s3__secret_key="s", s3__region="eu-west-1",
    )  # fmt: skip
    theirs = pyiceberg_properties(mine)
    assert (theirs["rest.sigv4-enabled"], theirs["rest.signing-name"]) == ("true", "s3tables")
    assert (theirs["client.access-key-id"], theirs["client.region"]) == ("k", "eu-west-1")
    java = spark(mine)
    assert (java["rest.access-key-id"], java["rest.secret-access-key"]) == ("k", "s")
    assert java["rest.signing-region"] == "eu-west-1"
    assert flavor_of(mine) == "s3tables"


def test_s3_access_reaches_both_engines_and_an_endpoint_means_path_style():
    mine = catalog(catalog__uri="glue", s3__endpoint="http://s3:9000", s3__access_key="k", s3__secret_key="s")
    assert pyiceberg_properties(mine)["s3.endpoint"] == spark(mine)["s3.endpoint"] == "http://s3:9000"
    assert spark(mine)["s3.path-style-access"] == "true"
    assert pyiceberg_properties(mine)["s3.force-virtual-addressing"] == "false"
    assert spark(catalog(catalog__uri="glue"))["s3.path-style-access"] == "false"


def test_further_properties_go_to_both_and_win():
    mine = catalog(**{"catalog__uri": "http://h", "catalog__properties__header.X-Team": "ice"})
    assert pyiceberg_properties(mine)["header.X-Team"] == spark(mine)["header.X-Team"] == "ice"


@pytest.mark.parametrize("name", ["photos", ".photos", "demo.", ""])
def test_half_a_name_is_refused(name):
    with pytest.raises(UsageError, match=r"not a table name"):
        parse_name(name, "frazil")


def test_a_name_may_carry_its_catalog():
    assert parse_name("frazil.demo.photos", "frazil") == parse_name("demo.photos", "frazil") == ("demo", "photos")
    assert parse_name("a.b.photos", "frazil") == ("a", "b", "photos")


def test_what_a_catalog_cannot_do_is_refused_with_the_reason():
    with pytest.raises(UnsupportedError, match="history") as refused:
        ABILITIES["nessie"].require("history", "prod")
    assert "Nessie keeps" in (refused.value.cause or "")


def test_nessie_is_known_by_its_own_configuration():
    mine = catalog(catalog__uri="http://h")
    assert flavor_of(mine, {"nessie.is-nessie-catalog": "true"}) == "nessie"
    assert flavor_of(mine, {}) == "rest"
