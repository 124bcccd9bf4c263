"""`frazil config show` and `frazil config check`, as from a shell."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

from frazil.cli.run import run_command
from frazil.settings import keys
from frazil.settings.names import ENVIRONMENT_NAMES

FILE = """\
catalog:
  uri: http://u:zQ7@catalog:8181
  token: zQ7-token
s3:
  endpoint: http://s3:9000
  access_key: key
  secret_key: zQ7-secret
  path_style: true
spark:
  conf:
    spark.sql.x: y
catalogs:
  prod:
    uri: glue
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys) -> Iterator[Callable[..., tuple[int, str, str]]]:
    """Runs `frazil config …` in a folder with the file above, and a home without any."""
    foreign = [v for v in os.environ if v.startswith(("FRAZIL_", "PYICEBERG_", "XDG_")) or v in ENVIRONMENT_NAMES]
    for name in foreign:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "frazil.yaml").write_text(FILE)
    monkeypatch.chdir(tmp_path / "project")

    def run(*args: str) -> tuple[int, str, str]:
        code = run_command("config", "config", list(args))
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    yield run
    # The command set up logging to a stderr that ends with the test.
    structlog.reset_defaults()
    logging.basicConfig(force=True, level=logging.WARNING)


def test_show_prints_every_setting_with_its_source_and_no_secret(config):
    code, out, err = config("show")
    assert (code, err) == (0, "")
    shown = {line.split()[0]: line.split()[1:] for line in out.splitlines()}
    assert shown["catalog.uri"] == ["http://u:********@catalog:8181", "frazil.yaml:2"]
    assert shown["catalog.token"] == ["********", "frazil.yaml:3"]
    assert shown["catalog.kind"] == ["rest", "default"]
    assert shown["catalogs.prod.uri"] == ["glue", "frazil.yaml:14"]
    assert shown["spark.conf.spark.sql.x"] == ["y", "frazil.yaml:11"]
    assert shown["topics.namespace"] == ["topics", "default"]
    assert "zQ7" not in out
    optional = (
        *("catalog.s3.", "catalogs.", "spark.conf", "catalog.properties", "upkeep.tables."),
        *("content.schema.field.", "documents.follow_buckets.", "backup.policies.", "replica.tables."),
    )
    assert {key for key, _ in keys.known_keys() if not key.startswith(optional)} <= set(shown)


def test_show_has_a_json_twin_with_numbers_as_numbers(config):
    code, out, _ = config("show", "-o", "json")
    rows = {row["key"]: row for row in json.loads(out)}
    assert code == 0
    assert rows["s3.path_style"] == {"key": "s3.path_style", "value": True, "source": "frazil.yaml:8"}
    assert rows["network.retry_attempts"]["value"] == 4
    assert rows["s3.session_token"]["value"] is None
    assert rows["s3.secret_key"]["value"] == "********"
    assert "zQ7" not in out


@pytest.mark.parametrize(
    ("key", "shown"),
    [
        ("s3.endpoint", ["s3.endpoint"]),
        ("database", ["database.url"]),
        ("spark.conf", ["spark.conf.spark.sql.x"]),
        ("spark.conf.spark.sql.x", ["spark.conf.spark.sql.x"]),
        ("iceberg.catalog_uri", ["catalog.uri"]),
        ("catalogs.prod.kind", ["catalogs.prod.kind"]),
        ("catalogs.frazil.uri", ["catalog.uri"]),
        ("catalog.properties", []),
    ],
)
def test_show_of_a_key_prints_what_lies_at_or_below_it(config, key: str, shown: list[str]):
    code, out, _ = config("show", key, "-o", "json")
    assert code == 0
    assert [row["key"] for row in json.loads(out)] == shown


def test_show_of_an_empty_map_says_that_nothing_is_set(config):
    assert config("show", "catalog.properties") == (0, "(no setting under catalog.properties has a value)\n", "")


def test_show_of_an_unknown_key_names_the_nearest(config):
    code, out, err = config("show", "catalog.url")
    assert (code, out) == (2, "")
    assert err == "error: config show: unknown setting 'catalog.url'\n  Try: catalog.uri\n"


def test_show_of_an_unknown_catalog_lists_the_known_ones(config):
    code, _, err = config("show", "catalogs.nope")
    assert code == 10
    assert "one of: frazil, prod" in err


def test_show_says_aloud_which_foreign_variable_is_used(config, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DATABASE_URL", "mysql://root:zQ7@host/db")
    _, out, err = config("show")
    assert err == "note: database.url is 'mysql://root:********@host/db', from environment DATABASE_URL\n"
    assert "zQ7" not in out
    assert config("show", "topics")[2] == ""


def test_show_of_an_embedded_catalog_says_where_it_lies(config, tmp_path: Path):
    Path("frazil.yaml").write_text("home: ./lake")
    _, out, _ = config("show", "catalog", "-o", "json")
    rows = {row["key"]: row["value"] for row in json.loads(out)}
    assert rows["catalog.uri"] == f"sqlite:///{tmp_path}/project/lake/catalog.db"
    assert rows["catalog.warehouse"] == f"{tmp_path}/project/lake/warehouse"


def test_check_of_valid_settings_names_the_sources_and_what_is_worth_knowing(config, monkeypatch):
    monkeypatch.setenv("S3_ENDPOINT", "http://other")
    code, out, err = config("check", "--set", "topics.namespace=t")
    assert (code, err) == (0, "")
    assert out == (
        "the settings are valid\n"
        "from: flag --set topics.namespace, environment S3_ENDPOINT, frazil.yaml\n"
        "note: s3.endpoint is 'http://other', from environment S3_ENDPOINT, "
        "which overrides 'http://s3:9000' of frazil.yaml:5\n"
    )


def test_check_has_a_json_twin(config):
    code, out, _ = config("check", "-o", "json")
    assert code == 0
    assert json.loads(out) == {"valid": True, "sources": ["frazil.yaml"], "notices": []}


def test_check_without_any_source_says_so(config):
    Path("frazil.yaml").unlink()
    assert config("check") == (0, "the settings are valid\nfrom: defaults only\n", "")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("catalog: {uri: }}", "error: frazil.yaml:1:17: invalid YAML\n  why: "),
        ("catalog: {kind: x}", "error: frazil.yaml:1: catalog.kind is 'x': Input should be 'sql', 'rest',"),
        ("catalgo: {uri: x}", "error: frazil.yaml:1: unknown setting 'catalgo.uri'\n  Try: catalog.uri\n"),
    ],
)
def test_check_of_invalid_settings_ends_with_2_and_a_hint(config, text: str, error: str):
    Path("frazil.yaml").write_text(text)
    code, out, err = config("check")
    assert (code, out) == (2, "")
    assert err.startswith(error)
    assert "  Try: " in err
    assert "Traceback" not in err


def test_check_of_invalid_settings_has_a_json_form(config):
    Path("frazil.yaml").write_text("catalog: {kind: x}")
    code, out, err = config("check", "-o", "json")
    told = json.loads(err)
    assert (code, out) == (2, "")
    assert (told["error"], told["exit_code"], told["cause"]) == ("ConfigError", 2, None)


def test_check_reads_the_file_that_is_named(config):
    Path("other.yaml").write_text("topics: {namespace: other}")
    assert "from: other.yaml\n" in config("check", "--config", "other.yaml")[1]
    code, _, err = config("check", "--config", "nowhere.yaml")
    assert code == 2
    assert "settings file not found" in err


def test_no_secret_is_told_even_with_a_stack_trace(config):
    for text in ("s3: {secret_key: zQ7}", "catalog: {token: *zQ7token}", "catalog: {token: zQ7, kind: x}"):
        Path("frazil.yaml").write_text(text)
        code, _, err = config("check", "-v")
        assert code == 2
        assert "Traceback" in err
        assert "zQ7" not in err
