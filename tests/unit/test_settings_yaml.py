"""Settings files that are not as they should be, and YAML that is more than maps of values."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.errors import ConfigError
from tests.unit.test_settings import Place, new_place


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("text", "line_and_column"),
    [
        ("catalog:\n  uri: http://x\n   kind: rest\n", "3:8"),
        ("catalog: {uri: x\n", "2:1"),
        ("catalog:\n\turi: x\n", "2:1"),
        ("home: 'x\n", "2:1"),
        ("home: x\nhome: *y\n", "2:7"),
        ("home: x\ncatalog: \x07\n", "2:10"),
        ("home: x\n---\nhome: y\n", "2:1"),
    ],
)
def test_broken_yaml_is_told_with_line_and_column(place: Place, text: str, line_and_column: str):
    with pytest.raises(ConfigError) as error:
        place.load(text)
    assert error.value.message == f"frazil.yaml:{line_and_column}: invalid YAML"
    assert error.value.cause
    assert error.value.hint == "check the indentation and quotes there"


def test_a_broken_user_file_is_told_by_its_name(place: Place):
    with pytest.raises(ConfigError, match=r"^~/\.config/frazil/config\.yaml:1:8: invalid YAML"):
        place.load(user="home: [}")


@pytest.mark.parametrize("text", ["- a\n- b\n", "just words\n"])
def test_a_file_that_is_no_map_is_refused(place: Place, text: str):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:1: the file does not contain a map of settings"):
        place.load(text)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n", "\ufeff"])
def test_a_file_without_settings_is_fine(place: Place, text: str):
    assert place.load(text).origins == {}


def test_a_file_that_is_not_utf8_is_refused(place: Place):
    place.project_file.write_bytes(b"home: \xff\xfe")
    with pytest.raises(ConfigError, match=r"frazil\.yaml: the file is not UTF-8 text"):
        place.load_as_it_is()


def test_a_key_that_stands_twice_is_refused_with_both_lines(place: Place):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:3: 'catalog\.uri' is also set in line 2"):
        place.load("catalog:\n  uri: http://a\n  uri: http://b\n")


def test_a_list_is_refused(place: Place):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:2: 'catalog\.uri' is a list"):
        place.load("catalog:\n  uri: [a, b]\n")


@pytest.mark.parametrize("text", ["? [a]\n: x\n", "catalog:\n  {a: b}: c\n"])
def test_a_key_that_is_no_word_is_refused(place: Place, text: str):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:\d: a key must be a word"):
        place.load(text)


def test_anchors_aliases_and_merge_keys_work_and_keep_their_lines(place: Place):
    loaded = place.load(
        "s3: &common\n"
        "  endpoint: http://a\n"
        "  region: eu\n"
        "catalogs:\n"
        "  one:\n"
        "    uri: &uri http://one\n"
        "    s3: *common\n"
        "  two:\n"
        "    uri: *uri\n"
        "    s3:\n"
        "      <<: *common\n"
        "      region: us\n"
    )
    one, two = loaded.model.catalogs["one"], loaded.model.catalogs["two"]
    assert one.s3 == loaded.model.s3
    assert two.s3 is not None
    assert (two.uri, two.s3.endpoint, two.s3.region) == ("http://one", "http://a", "us")
    assert str(loaded.origin(("catalogs", "two", "s3", "endpoint"))) == "frazil.yaml:2"
    assert str(loaded.origin(("catalogs", "two", "s3", "region"))) == "frazil.yaml:12"


def test_of_several_merged_maps_the_first_wins(place: Place):
    text = "s3: &a {region: a}\ncatalog: {s3: &b {region: b, endpoint: 'http://b'}}\n"
    loaded = place.load(text + "catalogs: {c: {uri: glue, s3: {<<: [*a, *b]}}}\n")
    s3 = loaded.model.catalogs["c"].s3
    assert s3 is not None
    assert (s3.region, s3.endpoint) == ("a", "http://b")


def test_a_merge_of_something_else_than_a_map_is_refused(place: Place):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:1: '<<' requires a map"):
        place.load("<<: x\n")


@pytest.mark.parametrize("text", ["catalog: &a\n  s3: *a\n", "catalog: &a\n  <<: *a\n"])
def test_an_alias_inside_its_own_anchor_is_refused(place: Place, text: str):
    with pytest.raises(ConfigError, match=r"frazil\.yaml: an alias"):
        place.load(text)


def test_dotted_keys_can_be_pasted_from_config_show(place: Place):
    loaded = place.load("catalog.uri: http://x\nspark.conf.spark.sql.a: b\n")
    assert loaded.model.catalog.uri == "http://x"
    assert loaded.model.spark.conf == {"spark.sql.a": "b"}
