"""Settings: who wins, where a value came from, and what is said aloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import SecretStr

from frazil.errors import ConfigError, NotFoundError, UsageError
from frazil.settings import Settings, keys, load_settings
from frazil.settings.names import ENVIRONMENT_NAMES, FILE_NAMES, FIXED_KEYS
from frazil.settings.sources import parse_set, variable_of


class Place:
    """A home folder and a project folder, and settings loaded from there."""

    def __init__(self, root: Path) -> None:
        self.home, self.project = root / "home", root / "project"
        self.user_file = self.home / ".config" / "frazil" / "config.yaml"
        self.project_file = self.project / "frazil.yaml"
        self.user_file.parent.mkdir(parents=True)
        self.project.mkdir()

    def load(self, project: Any = None, *, user: Any = None, flags: dict[str, str] | None = None, **environ: str):
        for file, content in ((self.project_file, project), (self.user_file, user)):
            file.unlink(missing_ok=True)
            if content is not None:
                file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
        return self.load_as_it_is(flags, **environ)

    def load_as_it_is(self, flags: dict[str, str] | None = None, **environ: str) -> Settings:
        return load_settings(flags=flags, environ={"HOME": str(self.home)} | environ, folder=self.project)


def new_place(root: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(root / "home"))
    return Place(root)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    return new_place(tmp_path, monkeypatch)


def value_at(loaded: Settings, path: keys.Path) -> Any:
    node: Any = loaded.model
    for part in path:
        node = node[part] if isinstance(node, dict) else getattr(node, part)
    return node.get_secret_value() if isinstance(node, SecretStr) else node


def texts(loaded: Settings) -> str:
    return "\n".join(n.text for n in loaded.notices)


def nested(path: keys.Path, value: Any) -> dict[str, Any]:
    return {path[0]: nested(path[1:], value) if path[1:] else value}


# Precedence


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layers=st.sets(st.sampled_from(["flag", "environment", "project", "user"])))
def test_the_strongest_source_wins_and_is_named(place: Place, layers: set[str]):
    loaded = place.load(
        {"topics": {"namespace": "project"}} if "project" in layers else None,
        user={"topics": {"namespace": "user"}} if "user" in layers else None,
        flags={"topics.namespace": "flag"} if "flag" in layers else {},
        **({"FRAZIL_TOPICS__NAMESPACE": "environment"} if "environment" in layers else {}),
    )
    strongest = next((name for name in ("flag", "environment", "project", "user") if name in layers), "topics")
    assert loaded.model.topics.namespace == strongest
    assert (
        str(loaded.origin(("topics", "namespace")))
        == {
            "flag": "flag --set topics.namespace",
            "environment": "environment FRAZIL_TOPICS__NAMESPACE",
            "project": "frazil.yaml:2",
            "user": "~/.config/frazil/config.yaml:2",
            "topics": "default",
        }[strongest]
    )


def test_without_any_source_everything_is_a_default(place: Place):
    loaded = place.load()
    assert loaded.origins == {}
    assert loaded.notices == ()
    assert loaded.sources() == []
    assert loaded.model.home == place.home / ".local/share/frazil"
    assert loaded.catalog().uri == f"sqlite:///{place.home}/.local/share/frazil/catalog.db"


def test_the_xdg_folders_are_followed(place: Place, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "config" / "frazil").mkdir(parents=True)
    (tmp_path / "config" / "frazil" / "config.yaml").write_text("topics: {namespace: mine}")
    loaded = place.load(XDG_CONFIG_HOME=str(tmp_path / "config"))
    assert (loaded.model.home, loaded.model.cache) == (tmp_path / "data/frazil", tmp_path / "cache/frazil")
    assert loaded.model.topics.namespace == "mine"


def test_the_project_file_is_found_from_a_folder_below(place: Place):
    below = place.project / "a" / "b"
    below.mkdir(parents=True)
    place.project_file.write_text("topics: {namespace: above}")
    loaded = load_settings(environ={}, folder=below)
    assert loaded.model.topics.namespace == "above"
    assert str(loaded.origin(("topics", "namespace"))) == f"{place.project_file}:1"


def test_a_named_file_replaces_the_one_that_would_be_found(place: Place):
    place.project_file.write_text("topics: {namespace: found}")
    (place.project / "other.yaml").write_text("topics: {namespace: named}")
    by_flag = load_settings(config=Path("other.yaml"), environ={}, folder=place.project)
    by_variable = load_settings(environ={"FRAZIL_CONFIG": "other.yaml"}, folder=place.project)
    assert by_flag.model.topics.namespace == by_variable.model.topics.namespace == "named"


def test_a_named_file_that_is_not_there_is_an_error(place: Place):
    with pytest.raises(UsageError, match=r"settings file not found: .*nowhere\.yaml"):
        load_settings(config=Path("nowhere.yaml"), environ={}, folder=place.project)


def test_an_empty_environment_with_a_named_file_reads_that_file_and_nothing_else(place: Place, monkeypatch):
    place.user_file.write_text("topics: {namespace: user}")
    for folder in (place.home, place.project):
        (folder / ".pyiceberg.yaml").write_text("catalog: {default: {uri: 'http://production'}}")
    place.project_file.write_text("spark: {master: yarn}")
    monkeypatch.chdir(place.project)
    monkeypatch.setenv("FRAZIL_TOPICS__NAMESPACE", "shell")
    (place.project / "only.yaml").write_text("home: ./lake")
    loaded = load_settings(config=place.project / "only.yaml", environ={})
    assert set(loaded.origins) == {("home",)}
    assert loaded.catalog().resolved_kind == "sql"


# Every key in every source


SAMPLES = {
    "catalog.name": "other",
    "catalog.kind": "glue",
    "catalog.uri": "http://host:8181",
    "catalog.sigv4": "true",
    "s3.endpoint": "http://host:9000",
    "s3.path_style": "true",
    "spark.driver_memory": "3g",
    "log.max_file_size": "8192",
    "log.sync_interval_ms": "7",
    "log.sync_mode": "none",
    "log.broker": "grpc://host:8815",
    "log.max_buffer": "8192",
    "log.size_limit": "8192",
    "pipeline.read_segments": "never",
    "topics.storage": "log",
    "topics.compression": "gzip",
    "topics.partition": "hour(publish_time), bucket(4, producer_id)",
    "topics.sort": "publish_time, offset",
    "content.dialect": "minio",
    "content.extract.extractors": "type, exif",
    "content.extract.max_json_bytes": "2048",
    "content.extract.max_memory_bytes": "134217728",
    "content.schema.include_raw_metadata": "false",
    "content.schema.custom_metadata_fields": "iso, keywords",
    "content.schema.cast": "strict",
    "backup.metrics_file": "/some/where",
    "backup.policies.<name>.tables": "sales.*, demo.photos",
    "backup.policies.<name>.at": "02:30, sun 04:00",
    "backup.policies.<name>.data": "reference",
    "replica.witnessed_only": "true",
    "replica.metrics_file": "/some/where",
    "replica.tables.<name>.mode": "data-files",
    "replica.tables.<name>.witnessed_only": "true",
    "replica.tables.<name>.partition": "day(ts), region",
    "replica.compact": "true",
    "replica.tables.<name>.compact": "true",
    "replica.tables.<name>.prune_missing": "true",
    "upkeep.enabled": "false",
    "upkeep.share": "0.5",
    "upkeep.history": "care.steps",
    "upkeep.policy.compact": "false",
    "upkeep.policy.strategy": "zorder",
    "upkeep.policy.target_file_size": "8388608",
    "upkeep.policy.delete_ratio": "0.5",
    "upkeep.policy.orphans": "false",
    "upkeep.policy.orphan_age_s": "7200",
    "upkeep.policy.statistics": "true",
    "documents.follow_buckets.<name>.create": "true",
    "documents.follow_buckets.<name>.delete": "true",
    "network.retry_attempts": "7",
    "network.breaker_failures": "7",
    "logging.level": "debug",
    "logging.format": "json",
}
#: What must stand beside a key for it to be valid.
COMPANIONS = {"access_key": "secret_key", "secret_key": "access_key"}


def sample(key: str) -> str:
    short = key.replace("catalogs.<name>.", "catalog.").replace("catalog.s3.", "s3.")
    short = short.replace("upkeep.tables.<name>.", "upkeep.policy.")
    if short == "catalog.name" and key.startswith("catalogs."):
        return "one"
    is_place = short.endswith(("home", "cache", "directory", "ivy_settings", "warehouse", "replicated_path"))
    return SAMPLES.get(short, "/some/where" if is_place else "5")


@pytest.mark.parametrize("key", [key for key, _ in keys.known_keys()])
@pytest.mark.parametrize("source", ["flag", "environment", "project"])
def test_every_key_can_be_set_by_every_source(place: Place, key: str, source: str):
    written = key.replace("<name>", "one")
    is_map = keys.shape_at(keys.resolve(written, where="test")) == "map"
    path = (*written.split("."), *(["a.B"] if is_map else []))
    values = {written: '{"a.B": "5"}' if is_map else sample(key)}
    if (companion := COMPANIONS.get(path[-1])) is not None:
        values[".".join((*path[:-1], companion))] = "other"
    tree = {k: {"a.B": "5"} if is_map else v for k, v in values.items()}
    loaded = {
        "flag": lambda: place.load(flags=values),
        "environment": lambda: place.load(**{variable_of(k): v for k, v in values.items()}),
        "project": lambda: place.load(tree),
    }[source]()
    got = value_at(loaded, path)
    got = ", ".join(got) if isinstance(got, list) else got
    expected = "5" if is_map else sample(key)
    assert str(got).lower() in (expected, f"{expected}.0")
    assert loaded.origin(path).layer.name.lower() == source


@pytest.mark.parametrize("key", [key for key, _ in keys.known_keys()])
def test_a_key_resolves_to_itself(key: str):
    path = keys.resolve(key, where="test")
    assert keys.dotted(path) == key
    assert keys.field_at(path) is not None


@settings(deadline=None)
@given(st.text(alphabet="abcXYZ.-_", min_size=1))
def test_a_key_of_a_map_is_kept_as_it_is_written(key: str):
    path = keys.resolve(f"spark.conf.{key}", where="test")
    assert path == ("spark", "conf", key)
    assert keys.field_at(path) is None


# The names of other systems


ALIAS_VALUES = {
    "endpoint": "http://alias:1",
    "kind": "rest",
    "path_style": "true",
    "max_file_size": "8192",
    "sync_mode": "periodic",
    "sync_interval_ms": "9",
}
ALIAS_COMPANIONS = {
    "S3_ACCESS_KEY": "S3_SECRET_KEY",
    "S3_SECRET_KEY": "S3_ACCESS_KEY",
    "AWS_ACCESS_KEY_ID": "AWS_SECRET_ACCESS_KEY",
    "AWS_SECRET_ACCESS_KEY": "AWS_ACCESS_KEY_ID",
}


def alias_value(name: str, path: keys.Path) -> tuple[str, str]:
    """What to write under a name of another system, and what it must become."""
    if name == "HIVE_METASTORE_URI":
        return "metastore:9083", "thrift://metastore:9083"
    if name == "WAREHOUSE_BUCKET" or name.endswith("object_store.bucket"):
        return "lake", "s3://lake/"
    if path == ("catalog", "uri"):
        return "http://alias:1", "http://alias:1"
    text = ALIAS_VALUES.get(path[-1], "/alias")
    return text, text


@pytest.mark.parametrize("variable", ENVIRONMENT_NAMES)
def test_a_variable_of_another_system_works(place: Place, variable: str):
    name = ENVIRONMENT_NAMES[variable]
    written, expected = alias_value(variable, name.path)
    environ = {variable: written}
    if companion := ALIAS_COMPANIONS.get(variable):
        environ[companion] = "other"
    loaded = place.load(**environ)
    assert str(value_at(loaded, name.path)) == expected
    assert str(loaded.origin(name.path)) == f"environment {variable}"
    assert (f"from environment {variable}" in texts(loaded)) == name.announce


@pytest.mark.parametrize("key", FILE_NAMES)
def test_a_file_key_of_another_system_works(place: Place, key: str):
    path = FILE_NAMES[key].path
    written, expected = alias_value(key, path)
    tree = nested(tuple(key.split(".")), written)
    if path == ("catalog", "kind"):
        tree["catalog"] = {"uri": "http://alias:1"}
    loaded = place.load(tree)
    assert str(value_at(loaded, path)).lower() == expected
    assert str(loaded.origin(path)).startswith("frazil.yaml:")


@pytest.mark.parametrize("key", FIXED_KEYS)
def test_a_file_key_that_chooses_what_frazil_is_not_is_refused(place: Place, key: str):
    for valid in FIXED_KEYS[key]:
        place.load(nested(tuple(key.split(".")), valid))
    with pytest.raises(ConfigError, match=r"frazil\.yaml:\d+: .*'mysql'") as error:
        place.load(nested(tuple(key.split(".")), "mysql"))
    assert FIXED_KEYS[key][0] in str(error.value.hint)


@pytest.mark.parametrize("section", ["iceberg", "storage"])
def test_an_empty_section_of_another_system_is_no_error(place: Place, section: str):
    assert place.load(f"{section}:\n").origins == {}


def test_a_bucket_is_the_warehouse_only_where_no_warehouse_is_named(place: Place):
    objects = {"storage": {"iceberg_config": {"object_store": {"bucket": "b"}, "warehouse": "s3://w/"}}}
    loaded = place.load(objects)
    assert loaded.model.catalog.warehouse == "s3://w/"
    assert "'s3://w/'" in texts(loaded)
    assert "'s3://b/'" in texts(loaded)


# What is said aloud


def test_a_foreign_variable_that_overrides_a_file_says_so(place: Place):
    loaded = place.load(
        {"s3": {"endpoint": "http://mine", "region": "eu-west-1"}}, S3_ENDPOINT="http://x", AWS_REGION="r"
    )
    assert [n.section for n in loaded.notices] == ["s3", "s3"]
    assert (
        "s3.endpoint is 'http://x', from environment S3_ENDPOINT, which overrides 'http://mine' of frazil.yaml:2"
        in (texts(loaded))
    )
    assert "overrides 'eu-west-1' of frazil.yaml:3" in texts(loaded)


def test_our_own_variable_overrides_a_file_silently(place: Place):
    assert place.load({"s3": {"endpoint": "http://mine"}}, FRAZIL_S3__ENDPOINT="http://x").notices == ()


def test_a_foreign_variable_that_loses_is_not_announced(place: Place):
    loaded = place.load(flags={"database.url": "sqlite:////x"}, DATABASE_URL="mysql://other")
    assert loaded.model.database.url == "sqlite:////x"
    assert loaded.notices == ()


def test_two_contradicting_variables_are_reported(place: Place):
    loaded = place.load(ICEBERG_S3_ENDPOINT="http://one", S3_ENDPOINT="http://two")
    assert loaded.model.s3.endpoint == "http://one"
    assert "ICEBERG_S3_ENDPOINT says 'http://one', environment S3_ENDPOINT says 'http://two'" in texts(loaded)


def test_two_variables_that_agree_are_not_reported(place: Place):
    assert place.load(AWS_REGION="eu", AWS_DEFAULT_REGION="eu").notices == ()


def test_a_file_that_contradicts_itself_is_an_error(place: Place):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:2 says 'http://a', frazil\.yaml:4 says 'http://b'"):
        place.load("catalog:\n  uri: http://a\niceberg:\n  catalog_uri: http://b\n")


# Keys and their secrets


def test_a_secret_is_never_taken_from_another_source_than_its_key(place: Place):
    pair = {"s3": {"access_key": "file-key", "secret_key": "file-secret"}}
    loaded = place.load(pair, AWS_ACCESS_KEY_ID="aws", AWS_SECRET_ACCESS_KEY="aws-secret")
    assert (loaded.model.s3.access_key, value_at(loaded, ("s3", "secret_key"))) == ("aws", "aws-secret")
    with pytest.raises(ConfigError, match=r"FRAZIL_S3__ACCESS_KEY, but s3.secret_key from frazil\.yaml:3"):
        place.load(pair, FRAZIL_S3__ACCESS_KEY="other")


def test_a_session_token_of_another_pair_is_not_used(place: Place):
    mine = {"FRAZIL_S3__ACCESS_KEY": "k", "FRAZIL_S3__SECRET_KEY": "s"}
    aws = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "t"}
    loaded = place.load(**mine, **aws)
    assert loaded.model.s3.access_key == "k"
    assert loaded.model.s3.session_token is None


def test_the_key_may_stand_in_a_file_and_its_secret_in_the_environment(place: Place):
    loaded = place.load({"s3": {"access_key": "k"}}, FRAZIL_S3__SECRET_KEY="apart")
    assert value_at(loaded, ("s3", "secret_key")) == "apart"
    over_another = place.load({"s3": {"access_key": "k", "secret_key": "s"}}, FRAZIL_S3__SECRET_KEY="apart")
    assert value_at(over_another, ("s3", "secret_key")) == "apart"


def test_a_secret_that_belongs_to_another_key_is_not_used(place: Place):
    flags = {"s3.access_key": "k"}
    pairs = {"AWS_ACCESS_KEY_ID": "aws", "AWS_SECRET_ACCESS_KEY": "aws-secret"}
    user = place.load({"s3": {"secret_key": "mine"}}, flags=flags, **pairs)
    assert value_at(user, ("s3", "secret_key")) == "mine"


def test_a_session_token_left_in_the_shell_does_not_join_other_keys(place: Place):
    loaded = place.load({"s3": {"access_key": "k", "secret_key": "s"}}, AWS_SESSION_TOKEN="t")
    assert loaded.model.s3.session_token is None
    assert "s3.session_token of environment AWS_SESSION_TOKEN is ignored" in texts(loaded)


@pytest.mark.parametrize("half", ["access_key", "secret_key"])
def test_half_a_pair_is_an_error(place: Place, half: str):
    with pytest.raises(ConfigError, match=rf"frazil\.yaml:2: s3: {half} is given without"):
        place.load({"s3": {half: "x"}})


def test_a_profile_given_by_flag_replaces_keys_of_the_environment(place: Place):
    aws = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    loaded = place.load(flags={"s3.profile": "work"}, **aws)
    assert (loaded.model.s3.profile, loaded.model.s3.access_key) == ("work", None)
    assert place.load(AWS_PROFILE="work", **aws).model.s3.access_key == "a"


# Catalogs


def test_a_catalog_name_that_names_an_entry_makes_it_the_default(place: Place):
    loaded = place.load(
        {"catalog": {"name": "prod"}, "catalogs": {"prod": {"uri": "http://p"}, "test": {"uri": "glue"}}}
    )
    assert loaded.catalog().uri == loaded.catalog("prod").uri == "http://p"
    assert str(loaded.origin(("catalog", "uri"))) == "frazil.yaml:5"
    assert loaded.catalog_names() == ["prod", "test"]


def test_a_default_catalog_described_twice_is_an_error(place: Place):
    with pytest.raises(ConfigError, match=r"catalog\.uri: .*'http://a'.*'http://b'"):
        place.load({"catalog": {"name": "prod", "uri": "http://a"}, "catalogs": {"prod": {"uri": "http://b"}}})


@pytest.mark.parametrize("name", ["prod", "Prod", "prod-eu", "Prod_EU"])
def test_a_variable_finds_the_catalog_of_the_file_however_it_is_spelled(place: Place, name: str):
    variable = f"FRAZIL_CATALOGS__{name.upper().replace('-', '_')}__WAREHOUSE"
    loaded = place.load({"catalogs": {name: {"uri": "http://p"}}}, **{variable: "w"})
    assert (loaded.catalog(name).uri, loaded.catalog(name).warehouse) == ("http://p", "w")


@pytest.mark.parametrize("name", ["1st", "-x", "a b"])
def test_a_catalog_name_that_sql_cannot_say_is_refused(place: Place, name: str):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:3: catalogs: a catalog name consists of letters"):
        place.load({"catalogs": {name: {"uri": "glue"}}})
    with pytest.raises(ConfigError, match=r"catalog\.name is .*: a catalog name consists of letters"):
        place.load({"catalog": {"name": name}})


def test_a_dot_in_a_catalog_name_is_refused(place: Place):
    with pytest.raises(ConfigError, match=r"unknown setting 'catalogs\.my\.cat\.uri'"):
        place.load({"catalogs": {"my.cat": {"uri": "glue"}}})


def test_a_catalog_is_named_by_its_key(place: Place):
    assert place.load({"catalogs": {"a": {"uri": "glue"}}}).model.catalogs["a"].name == "a"
    with pytest.raises(ConfigError, match=r"catalogs\.a has a different name, 'b'"):
        place.load({"catalogs": {"a": {"name": "b"}}})


def test_an_unknown_catalog_lists_the_known_ones(place: Place):
    with pytest.raises(NotFoundError) as error:
        place.load({"catalogs": {"a": {"uri": "glue"}}}).catalog("b")
    assert "one of: a, frazil" in str(error.value.hint)


@pytest.mark.parametrize(
    ("catalog", "problem"),
    [
        ({"uri": "ftp://x"}, "uri is not one of"),
        ({"uri": "postgresql://x", "kind": "sql"}, "uri is not one of"),
        ({"uri": "http://x", "kind": "hive"}, "which is that of a rest catalog"),
        ({"kind": "rest"}, "needs a uri"),
        ({"kind": "iceberg"}, "should be 'sql', 'rest', 'glue' or 'hive'"),
    ],
)
def test_a_catalog_that_cannot_be_is_refused_with_its_place(place: Place, catalog: dict[str, str], problem: str):
    with pytest.raises(ConfigError, match=problem) as error:
        place.load({"catalog": catalog})
    assert error.value.message.startswith("frazil.yaml:2")
    assert error.value.hint


def test_a_catalogs_own_s3_access_stands_alone_but_for_the_region(place: Place):
    common = {"endpoint": "http://common", "region": "eu", "access_key": "k", "secret_key": "s"}
    own = {"endpoint": "http://own"}
    s3 = place.load({"s3": common, "catalogs": {"a": {"uri": "glue", "s3": own}}}).catalog("a").s3
    assert s3 is not None
    assert (s3.endpoint, s3.access_key, s3.region) == ("http://own", None, "eu")


# Values


@pytest.mark.parametrize("text", ["0123", "1_000", "yes", "2024-01-01", "1e5", "12:30:45", "0x1F", "nan"])
def test_a_yaml_scalar_stays_the_text_that_was_written(place: Place, text: str):
    loaded = place.load(f"catalog: {{token: {text}}}\nspark: {{conf: {{a: {text}}}}}")
    assert value_at(loaded, ("catalog", "token")) == text
    assert loaded.model.spark.conf == {"a": text}


@pytest.mark.parametrize("variable", ["FRAZIL_HOME", "FRAZIL_S3__ENDPOINT", "S3_ENDPOINT", "FRAZIL_CONFIG"])
def test_an_empty_variable_counts_as_not_set(place: Place, variable: str):
    assert place.load(**{variable: ""}).origins == {}


def test_a_setting_emptied_by_flag_goes_back_to_its_default(place: Place):
    loaded = place.load({"s3": {"endpoint": "http://x", "region": "eu"}}, flags={"s3.endpoint": "", "s3.region": ""})
    assert (loaded.model.s3.endpoint, loaded.model.s3.region) == (None, "us-east-1")


def test_nothing_written_in_a_file_counts_as_not_set(place: Place):
    assert place.load("s3:\n  region:\ncatalog: {}\nhome: ~\n", user={"s3": {"region": "eu"}}).model.s3.region == "eu"


def test_a_map_in_one_variable_is_yaml_or_json(place: Place):
    loaded = place.load(FRAZIL_SPARK__CONF='{"spark.sql.caseSensitive": true, "spark.x": ""}')
    assert loaded.model.spark.conf == {"spark.sql.caseSensitive": "true", "spark.x": ""}
    assert str(loaded.origin(("spark", "conf", "spark.x"))) == "environment FRAZIL_SPARK__CONF"


def test_a_map_is_merged_key_by_key(place: Place):
    loaded = place.load({"spark": {"conf": {"a.b": "file", "c": "file"}}}, flags={"spark.conf.a.b": "flag"})
    assert loaded.model.spark.conf == {"a.b": "flag", "c": "file"}


def test_a_key_of_a_map_in_a_variables_name_is_refused_because_capitals_are_lost(place: Place):
    with pytest.raises(ConfigError, match="no lower-case letters") as error:
        place.load(FRAZIL_SPARK__CONF__SPARK__SQL__CASESENSITIVE="1")
    assert "FRAZIL_SPARK__CONF='{" in str(error.value.hint)


# Paths


@pytest.mark.parametrize(
    ("key", "written", "expected"),
    [
        ("home", "lake", "{project}/lake"),
        ("home", "~/lake", "{home}/lake"),
        ("log.directory", "../log", "{root}/log"),
        ("spark.java_home", "/jdk", "/jdk"),
        ("catalog.warehouse", "./wh", "{project}/wh"),
        ("catalog.warehouse", "wh", "{project}/wh"),
        ("catalog.warehouse", "s3://bucket/wh", "s3://bucket/wh"),
        ("catalog.uri", "sqlite:///c.db", "sqlite:///{project}/c.db"),
        ("catalog.uri", "sqlite:////c.db", "sqlite:////c.db"),
        ("database.url", "sqlite:///d.db", "sqlite:///{project}/d.db"),
        ("backup.bucket", "./b", "{project}/b"),
        ("backup.bucket", "b", "b"),
        ("replica.warehouse", "./r", "{project}/r"),
        ("replica.replicated_path", "r", "{project}/r"),
        ("replica.replicated_path", "hdfs://new/wh", "hdfs://new/wh"),
        ("catalogs.a.warehouse", "wh", "{project}/wh"),
        ("catalogs.a.uri", "sqlite:///c.db", "sqlite:///{project}/c.db"),
    ],
)
def test_a_relative_path_is_relative_to_the_file_it_stands_in(place: Place, key: str, written: str, expected: str):
    below = place.project / "below"
    below.mkdir()
    place.project_file.write_text(yaml.safe_dump({key: written}))
    loaded = load_settings(environ={}, folder=below)
    folders = {"project": place.project, "home": place.home, "root": place.project.parent}
    assert str(value_at(loaded, tuple(key.split(".")))) == expected.format(**folders)


def test_a_relative_path_of_a_flag_or_variable_is_relative_to_the_current_folder(place: Place):
    assert place.load(flags={"home": "lake"}).model.home == place.project / "lake"
    assert place.load(FRAZIL_HOME="lake").model.home == place.project / "lake"


def test_the_warehouse_of_a_rest_catalog_is_a_name(place: Place):
    assert place.load({"catalog": {"uri": "http://x", "warehouse": "main"}}).catalog().warehouse == "main"


def test_the_home_of_nobody_is_an_error(place: Place):
    with pytest.raises(ConfigError, match=r"frazil\.yaml:1: home is '~nobody-there/x'"):
        place.load({"home": "~nobody-there/x"})


# Unknown keys


@pytest.mark.parametrize(
    ("tree", "nearest"),
    [
        ({"catalog": {"url": "x"}}, "catalog.uri"),
        ({"catalgo": {"uri": "x"}}, "catalog.uri"),
        ({"s3": {"acces_key": "x"}}, "s3.access_key"),
        ({"catalog": {"retry_attempts": 3}}, "network.retry_attempts"),
        ({"iceberg": {"catalog_url": "x"}}, "iceberg.catalog_uri"),
        ({"catalogs": {"prod": {"urii": "x"}}}, "catalogs.prod.uri"),
        ({"catalog": {"urii": None}}, "catalog.uri"),
    ],
)
def test_an_unknown_key_names_the_nearest(place: Place, tree: dict[str, Any], nearest: str):
    with pytest.raises(ConfigError, match=r"^frazil\.yaml:\d+: unknown setting") as error:
        place.load(tree)
    assert error.value.hint == nearest


def test_an_unknown_variable_names_the_nearest_variable(place: Place):
    with pytest.raises(ConfigError, match="environment FRAZIL_CATALOG_URI: unknown setting") as error:
        place.load(FRAZIL_CATALOG_URI="x")
    assert error.value.hint == "FRAZIL_CATALOG__URI"


def test_an_unknown_flag_names_the_nearest(place: Place):
    with pytest.raises(ConfigError, match=r"--set: unknown setting 'catalog\.url'") as error:
        place.load(flags={"catalog.url": "x"})
    assert error.value.hint == "catalog.uri"


@pytest.mark.parametrize(
    "tree", [{"catalog": "http://x"}, {"catalogs": {"prod": "http://x"}}, {"s3": 5}, {"catalog": {"uri": {"a": 1}}}]
)
def test_a_value_where_a_section_belongs_and_the_reverse_are_refused(place: Place, tree: dict[str, Any]):
    with pytest.raises(ConfigError, match=r"^frazil\.yaml:\d: '[a-z0-9.]+' (is a section|takes a single value)"):
        place.load(tree)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("network.retry_attempts", "many"),
        ("s3.path_style", "perhaps"),
        ("log.max_file_size", "1"),
        ("s3.endpoint", "h:1"),
    ],
)
def test_a_wrong_value_is_refused_with_its_place_and_an_example(place: Place, key: str, value: str):
    section, name = key.split(".")
    with pytest.raises(ConfigError, match=rf"^frazil\.yaml:2: {key} is '{value}': ") as error:
        place.load({section: {name: value}})
    assert str(error.value.hint).startswith(f"{key}: ")
    assert error.value.cause is None


# --set


def test_a_set_without_a_value_is_refused():
    with pytest.raises(UsageError, match="--set takes key=value"):
        parse_set(["catalog.uri"])


def test_a_set_given_twice_is_refused_unless_it_agrees():
    assert parse_set(["a=b=c", "a=b=c"]) == {"a": "b=c"}
    with pytest.raises(UsageError, match="--set a is given twice"):
        parse_set(["a=1", "a=2"])


KUBERNETES = {
    "FRAZIL_SERVICE_HOST": "10.0.0.1",
    "FRAZIL_SERVICE_PORT": "8000",
    "FRAZIL_SERVICE_PORT_HTTP_API": "8000",
    "FRAZIL_PORT": "tcp://10.0.0.1:8000",
    "FRAZIL_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "FRAZIL_PORT_8000_TCP_PROTO": "tcp",
    "FRAZIL_PORT_8000_TCP_PORT": "8000",
    "FRAZIL_PORT_8000_TCP_ADDR": "10.0.0.1",
    "FRAZIL_PORT_53_UDP_ADDR": "10.0.0.1",
    "FRAZIL_SERVE_SERVICE_HOST": "10.0.0.2",
    "FRAZIL_SERVE_PORT": "tcp://10.0.0.2:8000",
    "FRAZIL_SERVE_PORT_8000_TCP_ADDR": "10.0.0.2",
}


@pytest.mark.parametrize("variable", KUBERNETES)
def test_what_kubernetes_says_about_our_service_is_no_setting(place: Place, variable: str):
    loaded = place.load(**{variable: KUBERNETES[variable]})
    assert loaded.origins == {}


@pytest.mark.parametrize(
    "variable", ["FRAZIL_PORT", "FRAZIL_SERVE_PORT", "FRAZIL_SERVICE", "FRAZIL_CATALOG__SERVICE_HOST", "FRAZIL_HOST"]
)
def test_what_kubernetes_would_not_say_is_a_mistake(place: Place, variable: str):
    with pytest.raises(ConfigError, match=variable):
        place.load(**{variable: "8000"})
