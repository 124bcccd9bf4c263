"""Whoever has configured PyIceberg configures nothing twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import SecretStr

from frazil.errors import ConfigError
from frazil.settings.names import PYICEBERG_NAMES
from tests.unit.test_settings import Place, new_place, texts, value_at


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def configure(folder: Path, catalogs: dict[str, dict[str, Any]], **more: Any) -> None:
    (folder / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": catalogs, **more}))


VALUES = {
    "type": ("REST", "rest"),
    "uri": ("http://other", "http://other"),
    "rest.sigv4-enabled": ("true", "True"),
    "s3.endpoint": ("http://s3", "http://s3"),
    "s3.force-virtual-addressing": ("true", "False"),
    "warehouse": ("s3://w", "s3://w"),
}


@pytest.mark.parametrize("key", PYICEBERG_NAMES)
@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_property_of_pyiceberg_becomes_a_setting(place: Place, key: str, source: str):
    written, expected = VALUES.get(key, ("x", "x"))
    properties = {"uri": "http://main", key: written}
    prefix, _, name = key.rpartition(".")
    if name in ("access-key-id", "secret-access-key"):
        properties = {f"{prefix}.access-key-id": "x", f"{prefix}.secret-access-key": "x", **properties}
    environ = {}
    if source == "file":
        configure(place.home, {"main": properties})
    else:
        environ = {
            f"PYICEBERG_CATALOG__MAIN__{k.upper().replace('.', '__').replace('-', '_')}": v
            for k, v in properties.items()
        }
    loaded = place.load(**environ)
    assert str(value_at(loaded, ("catalog", *PYICEBERG_NAMES[key]))) == expected
    assert loaded.catalog().properties == {}


def test_any_other_property_is_handed_on(place: Place):
    configure(place.home, {"main": {"uri": "http://main", "header.X-Team": "a", "py-io-impl": "b"}})
    assert place.load().catalog().properties == {"header.x-team": "a", "py-io-impl": "b"}


def test_the_only_catalog_of_pyiceberg_becomes_the_default_and_this_is_said(place: Place):
    configure(place.home, {"main": {"uri": "http://main", "token": 123}})
    loaded = place.load()
    assert (loaded.catalog().name, loaded.catalog().uri) == ("main", "http://main")
    assert loaded.catalog().token == SecretStr("123")
    assert texts(loaded) == "catalog 'main' comes from PyIceberg's configuration (~/.pyiceberg.yaml:3)"


def test_of_several_the_default_of_pyiceberg_is_taken(place: Place):
    configure(place.home, {"default": {"uri": "http://d"}, "b": {"uri": "http://b"}})
    assert place.load().catalog().uri == "http://d"
    configure(place.home, {"a": {"uri": "http://a"}, "b": {"uri": "http://b"}}, **{"default-catalog": "b"})
    assert place.load().catalog().uri == "http://b"
    assert place.load(PYICEBERG_DEFAULT_CATALOG="A").catalog().uri == "http://a"


def test_of_several_without_a_default_none_is_taken_and_this_is_said(place: Place):
    configure(place.home, {"a": {"uri": "http://a"}, "b": {"uri": "http://b"}})
    loaded = place.load()
    assert loaded.catalog().kind == "sql"
    assert loaded.catalog("b").uri == "http://b"
    assert "PyIceberg's configuration has the catalogs a, b; Frazil uses one only if" in texts(loaded)


def test_a_catalog_of_our_own_keeps_pyiceberg_from_being_the_default(place: Place):
    configure(place.home, {"main": {"uri": "http://main"}})
    loaded = place.load({"catalog": {"uri": "http://mine"}})
    assert (loaded.catalog().uri, loaded.catalog("main").uri) == ("http://mine", "http://main")
    assert loaded.notices == ()


def test_a_foreign_bucket_does_not_hide_the_catalog_of_pyiceberg(place: Place):
    configure(place.home, {"main": {"uri": "http://main"}})
    loaded = place.load(WAREHOUSE_BUCKET="b")
    assert (loaded.catalog().name, loaded.catalog().warehouse) == ("main", "s3://b/")
    assert "from environment WAREHOUSE_BUCKET" in texts(loaded)


def test_a_catalog_of_ours_with_the_same_name_is_not_made_the_default_unasked(place: Place):
    configure(place.home, {"main": {"uri": "http://theirs"}})
    loaded = place.load({"catalogs": {"main": {"uri": "http://ours"}}})
    assert (loaded.catalog().name, loaded.catalog("main").uri) == ("frazil", "http://ours")


def test_a_catalog_of_ours_stands_in_for_one_of_pyiceberg_that_cannot_be_used(place: Place):
    configure(place.home, {"main": {"type": "dynamodb"}})
    ours = {"catalog": {"name": "main"}, "catalogs": {"main": {"uri": "http://ours"}}}
    assert place.load(ours).catalog().uri == "http://ours"


def test_a_catalog_name_chooses_one_of_pyiceberg(place: Place):
    configure(place.home, {"a": {"uri": "http://a"}, "b": {"uri": "http://b"}})
    assert place.load(FRAZIL_CATALOG__NAME="b").catalog().uri == "http://b"


def test_the_files_are_looked_for_in_the_order_of_pyiceberg(place: Place, tmp_path: Path):
    configure(place.project, {"main": {"uri": "http://folder"}})
    assert place.load().catalog().uri == "http://folder"
    configure(place.home, {"main": {"uri": "http://home"}})
    assert place.load().catalog().uri == "http://home"
    configure(tmp_path, {"main": {"uri": "http://named"}})
    assert place.load(PYICEBERG_HOME=str(tmp_path)).catalog().uri == "http://named"


def test_a_variable_of_pyiceberg_overrides_its_file_and_ours_overrides_both(place: Place):
    configure(place.home, {"main": {"uri": "http://main", "warehouse": "file"}})
    environ = {"PYICEBERG_CATALOG__MAIN__WAREHOUSE": "variable"}
    assert place.load(**environ).catalog().warehouse == "variable"
    loaded = place.load(**environ, FRAZIL_CATALOGS__MAIN__WAREHOUSE="ours")
    assert loaded.catalog("main").warehouse == "ours"


def test_a_name_is_shown_as_the_file_spells_it(place: Place):
    configure(place.home, {"Main": {"uri": "http://main"}})
    loaded = place.load(PYICEBERG_CATALOG__MAIN__WAREHOUSE="w")
    assert (loaded.catalog().name, loaded.catalog().warehouse) == ("Main", "w")


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"type": "dynamodb"}, "does not support catalogs of type 'dynamodb', only sql, rest, glue, hive"),
        ({"type": "sql", "uri": "postgresql://u:pw@h/db"}, "uri is not one of"),
        ({"py-catalog-impl": "a.B", "uri": "http://x"}, "py-catalog-impl"),
        ({"warehouse": "s3://x"}, "neither a type nor a uri"),
    ],
)
def test_a_catalog_that_frazil_cannot_use_is_left_out_and_hinders_nobody(
    place: Place, properties: dict[str, str], reason: str
):
    configure(place.home, {"default": properties, "good": {"uri": "http://good"}})
    loaded = place.load()
    assert loaded.catalog().kind == "sql"
    assert loaded.catalog("good").uri == "http://good"
    assert reason in texts(loaded)
    with pytest.raises(ConfigError, match="PyIceberg's catalog 'default' cannot be used") as error:
        place.load(flags={"catalog.name": "default"})
    assert reason in str(error.value.cause)


def test_a_token_of_pyiceberg_is_not_sent_to_another_server_of_the_same_name(place: Place):
    configure(place.home, {"prod": {"uri": "http://theirs", "token": "t"}})
    for ours in ({"catalogs": {"prod": {"uri": "http://ours"}}}, {"catalog": {"name": "prod", "uri": "http://ours"}}):
        loaded = place.load(ours)
        assert (loaded.catalog("prod").uri, loaded.catalog("prod").token) == ("http://ours", None)
        assert "PyIceberg's catalog 'prod' (~/.pyiceberg.yaml:3) is ignored" in texts(loaded)


def test_keys_for_s3_go_before_keys_for_all_of_aws_and_are_not_mixed_with_them(place: Place):
    client = {"client.access-key-id": "c", "client.secret-access-key": "cs", "client.region": "eu"}
    configure(place.home, {"m": {"uri": "http://m", **client}})
    s3 = place.load().catalog().s3
    assert s3 is not None
    assert (s3.access_key, s3.secret_key, s3.region) == ("c", SecretStr("cs"), "eu")
    configure(place.home, {"m": {"uri": "http://m", **client, "s3.access-key-id": "s", "s3.secret-access-key": "ss"}})
    s3 = place.load().catalog().s3
    assert s3 is not None
    assert (s3.access_key, s3.secret_key, s3.region) == ("s", SecretStr("ss"), "eu")


def test_a_broken_file_of_pyiceberg_is_told_by_its_name(place: Place):
    (place.home / ".pyiceberg.yaml").write_text("catalog: [}")
    with pytest.raises(ConfigError, match=r"~/\.pyiceberg\.yaml:1:11: invalid YAML"):
        place.load()
