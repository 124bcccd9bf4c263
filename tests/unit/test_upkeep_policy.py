"""Policies: what holds for a table, where it comes from, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
import yaml
from pyiceberg.types import TimestamptzType

from frazil.catalogs import open_catalog
from frazil.errors import ConfigError
from frazil.settings import Settings, load_settings
from frazil.settings.policies import idle_patterns, snapshots_kept
from frazil.upkeep.policy import BUILT_IN, Policy, check_policies, policy_for

MIB = 1024 * 1024
COLUMNS = pa.schema(
    [pa.field("id", pa.int64()), pa.field("at", pa.timestamp("us", "UTC")), pa.field("name", pa.string())]
)


class Place:
    """Settings in a file, and a catalog with tables."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._settings = load_settings(flags={"home": str(folder / "home")}, environ={})
        self._catalog = open_catalog(self._settings.catalog())

    def settings(self, upkeep: dict | None = None, flags: dict | None = None, **environ: str) -> Settings:
        file = self._folder / "frazil.yaml"
        file.write_text(yaml.safe_dump({"upkeep": upkeep or {}}))
        return load_settings(flags=flags, config=file, environ=environ, folder=self._folder)

    def table(self, name: str = "shop.orders", **properties: str):
        self._catalog.create_namespace_if_not_exists(name.split(".")[0])
        given = {key.replace("__", "-").replace("_", "."): value for key, value in properties.items()}
        return self._catalog.create_table(name, COLUMNS, properties=given)

    def policy(self, upkeep: dict | None = None, name: str = "shop.orders", **properties: str) -> Policy:
        return policy_for(self.settings(upkeep), self.table(name, **properties))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_without_a_word_the_built_in_policy_holds(place: Place):
    policy = place.policy(frazil_position_archive_orders="{}")
    assert {name: getattr(policy, name) for name in BUILT_IN} == dict(BUILT_IN)
    assert {policy.source(name) for name in BUILT_IN} == {"default"}
    assert policy.gc


@pytest.mark.parametrize(
    "name",
    [
        "topics.orders",
        "topics.dead_letters",
        "content.journal",
        "document_archive.document_history",
        "frazil.upkeep_history",
    ],
)
def test_orphans_of_frazils_own_tables_are_removed_without_a_word(place: Place, name: str):
    own = name == "frazil.upkeep_history"
    table = place.table(name, **({} if own else {"frazil_position_archive_orders": "{}"}))
    if own:
        with table.update_schema() as change:
            change.add_column("started_at", TimestamptzType())
    assert policy_for(place.settings(), table).orphans


@pytest.mark.parametrize("name", ["topics.exported", "content.exported"])
def test_a_table_that_somebody_made_beside_frazils_own_is_not_one_of_them(place: Place, name: str):
    policy = place.policy(name=name)
    assert not policy.orphans and policy.orphans_on_request


def test_orphans_of_tables_that_others_made_are_removed_only_where_somebody_has_said_so(place: Place):
    policy = place.policy()
    assert not policy.orphans and policy.orphans_on_request
    assert policy.source("orphans") == "not one of Frazil's own tables"
    for said in ({"policy": {"orphans": True}}, {"tables": {"shop.*": {"orphans": True}}}):
        assert policy_for(place.settings(said), place.table(f"shop.{next(iter(said))}")).orphans
    never = policy_for(place.settings({"policy": {"orphans": False}}), place.table("shop.never"))
    assert not never.orphans and not never.orphans_on_request


def test_a_longer_pattern_is_stronger_than_a_shorter_one_and_both_than_the_policy_for_all(place: Place):
    tables = {"*": {"manifests": 5, "delete_files": 5}, "shop.*": {"manifests": 6}, "other.*": {"manifests": 7}}
    policy = place.policy({"policy": {"manifests": 3, "delete_files": 3, "min_input_files": 3}, "tables": tables})
    assert (policy.manifests, policy.delete_files, policy.min_input_files) == (6, 5, 3)
    assert policy.source("manifests").startswith("upkeep.tables.shop.*, frazil.yaml:")
    assert policy.source("min_input_files").startswith("upkeep.policy, frazil.yaml:")


def test_a_tables_own_name_is_stronger_than_any_pattern(place: Place):
    tables = {"shop.orders": {"compact": False}, "shop.[o]rders*": {"compact": True}}
    assert not place.policy({"tables": tables}).compact


@pytest.mark.parametrize("key", ['upkeep.tables."shop.*".compact', "upkeep.tables.shop.*.compact"])
def test_a_pattern_can_be_set_by_a_flag(place: Place, key: str):
    policy = policy_for(place.settings(flags={key: "false"}), place.table())
    assert not policy.compact
    assert policy.source("compact") == f"upkeep.tables.shop.*, flag --set {key}"


def test_patterns_can_be_set_by_the_environment_as_a_map(place: Place):
    settings = place.settings(FRAZIL_UPKEEP__TABLES='{"shop.*": {"sort_by": "id,at", "strategy": "zorder"}}')
    policy = policy_for(settings, place.table())
    assert (policy.strategy, policy.sort_by) == ("zorder", ("id", "at"))


def test_an_unknown_key_of_a_pattern_names_the_nearest(place: Place):
    with pytest.raises(ConfigError, match=r"unknown setting 'upkeep\.tables\.shop\.\*\.compct'") as caught:
        place.settings({"tables": {"shop.*": {"compct": "true"}}})
    assert caught.value.hint == "upkeep.tables.shop.*.compact"


def test_a_target_of_nothing_is_refused(place: Place):
    with pytest.raises(ConfigError, match=r"^frazil\.yaml:4: upkeep\.tables\.shop\.\*\.target_file_size is '0'"):
        place.settings({"tables": {"shop.*": {"target_file_size": 0}}})


@pytest.mark.parametrize(
    ("upkeep", "words"),
    [
        ({"min_snapshots": 20, "max_snapshots": 10}, r"min_snapshots 20 \(.*:\d\) is more than max_snapshots 10 \(.*"),
        ({"retention_age_s": 10}, r"retention_age_s 10.0 \(.*\) says nothing without retention_column"),
        ({"retention_column": "at"}, r"retention_column at \(.*\) says nothing without retention_age_s"),
        ({"sort_by": "id"}, r"sort_by id \(.*\) does not go with strategy auto \(default\)"),
        ({"strategy": "zorder"}, r"strategy zorder \(.*\) needs columns"),
        ({"orphan_age_s": 3600, "file_grace_s": 7200}, r"orphan_age_s 3600.0 \(.*\) is less than file_grace_s 7200.0"),
    ],
)
def test_a_policy_that_contradicts_itself_is_refused_with_both_sides_and_their_places(
    place: Place, upkeep: dict, words: str
):
    for where in ({"policy": upkeep}, {"tables": {"shop.*": upkeep}}):
        settings = place.settings(where)
        with pytest.raises(ConfigError, match=words):
            check_policies(settings)
    with pytest.raises(ConfigError, match=words):
        policy_for(settings, place.table())


def test_a_pattern_may_contradict_what_stands_for_all(place: Place):
    settings = place.settings({"policy": {"max_snapshots": 10}, "tables": {"shop.*": {"min_snapshots": 20}}})
    with pytest.raises(ConfigError, match=r"upkeep of shop\.\*: min_snapshots 20"):
        check_policies(settings)


def test_only_what_is_not_sound_for_all_tables_of_a_pattern_is_refused(place: Place):
    tables = {"shop.*": {"strategy": "sort", "sort_by": "id"}, "log.*": {"retention_column": "at"}}
    tables["log.clicks"] = {"retention_age_s": "60"}
    with pytest.raises(ConfigError, match=r"upkeep of log\.\*: retention_column at"):
        check_policies(place.settings({"tables": tables}))
    del tables["log.*"], tables["log.clicks"]
    check_policies(place.settings({"policy": {"min_snapshots": 3}, "tables": tables}))


def test_a_default_gives_way_to_what_is_set(place: Place):
    policy = place.policy({"policy": {"min_snapshots": 500, "file_grace_s": 864000}})
    assert (policy.max_snapshots, policy.orphan_age_s) == (500, 864000)
    assert policy.source("max_snapshots").startswith("min_snapshots, upkeep.policy")


def test_the_history_that_a_table_asks_for_is_kept_whatever_the_settings_say(place: Place):
    policy = place.policy(
        {"policy": {"max_snapshot_age_s": 60, "max_snapshots": 10}},
        history_expire_max__snapshot__age__ms="3600000",
        history_expire_min__snapshots__to__keep="7",
    )
    assert (policy.max_snapshot_age_s, policy.max_snapshots, policy.min_snapshots) == (3600, None, 7)
    assert policy.source("max_snapshot_age_s") == "table property history.expire.max-snapshot-age-ms"


def test_a_table_that_wants_more_snapshots_than_the_settings_allow_gets_them(place: Place):
    policy = place.policy({"policy": {"max_snapshots": 10}}, history_expire_min__snapshots__to__keep="30")
    assert (policy.min_snapshots, policy.max_snapshots) == (30, 30)


def test_the_target_size_is_that_of_the_settings_then_that_of_the_table(place: Place):
    size = {"write_target__file__size__bytes": str(5 * MIB)}
    assert place.policy(**size).target_file_size == 5 * MIB
    set_by_us = {"policy": {"target_file_size": 9 * MIB}}
    assert place.policy(set_by_us, "shop.more", **size).target_file_size == 9 * MIB


@pytest.mark.parametrize("value", ["0", "-5", "many"])
def test_a_property_that_makes_no_sense_is_an_error(place: Place, value: str):
    with pytest.raises(ConfigError, match=rf"write\.target-file-size-bytes = '{value}'"):
        place.policy(write_target__file__size__bytes=value)


def test_a_table_whose_files_may_not_be_removed_says_so(place: Place):
    policy = place.policy(gc_enabled="false")
    assert not policy.gc
    assert policy.source("gc") == "table property gc.enabled"


@pytest.mark.parametrize(
    ("section", "namespace"), [("topics", "topics"), ("content", "content"), ("documents", "document_archive")]
)
def test_tables_of_sinks_keep_as_many_snapshots_as_their_sinks_do(place: Place, section: str, namespace: str):
    policy = place.policy(name=f"{namespace}.clicks")
    assert (policy.max_snapshots, policy.source("max_snapshots")) == (50, f"{section}.keep_snapshots, default")
    said = place.policy({"tables": {f"{namespace}.*": {"max_snapshots": 9}}}, f"{namespace}.more")
    assert said.max_snapshots == 9


@pytest.mark.parametrize(
    ("upkeep", "kept"),
    [
        ({}, 50),
        ({"policy": {"max_snapshots": 9}}, 50),  # upkeep removes the rest
        ({"policy": {"max_snapshots": 200}}, 200),
        ({"policy": {"max_snapshots": 200}, "tables": {"topics.*": {"max_snapshots": 70}}}, 70),
        ({"tables": {"topics.*": {"max_snapshots": 70}, "topics.clicks": {"max_snapshots": 300}}}, 300),
        ({"tables": {"topics.*": {"min_snapshots": 80}}}, 80),
        ({"tables": {"shop.*": {"max_snapshots": 300}}}, 50),
    ],
)
def test_a_sink_leaves_what_a_policy_lets_stay(place: Place, upkeep: dict, kept: int):
    settings = place.settings(upkeep)
    assert snapshots_kept(settings, ("topics", "clicks"), 50) == kept
    policy = policy_for(settings, place.table("topics.clicks"))
    assert policy.max_snapshots is not None and policy.max_snapshots <= kept


def test_patterns_that_name_no_table_are_told_with_their_place(place: Place):
    tables = {"shop.*": {"manifests": 5}, "shp.*": {"manifests": 5}, "shop.order": {"manifests": 6}}
    found = idle_patterns(place.settings({"tables": tables}), ["shop.orders", "topics.clicks"])
    assert sorted(pattern for pattern, _ in found) == ["shop.order", "shp.*"]
    assert all(str(origin).startswith("frazil.yaml:") for _, origin in found)
    assert idle_patterns(place.settings(), []) == []


@pytest.mark.parametrize(
    ("upkeep", "words", "hint"),
    [
        ({"strategy": "sort", "sort_by": "idd"}, r"sort_by names the column 'idd' \(upkeep\.policy, .*\)", "id"),
        ({"strategy": "sort"}, r"strategy sort .* needs columns, and the table has no order", "set sort_by"),
        ({"retention_column": "att", "retention_age_s": 9}, r"retention_column names the column 'att'", "at"),
        (
            {"retention_column": "name", "retention_age_s": 9},
            r"retention_column name .* is no time",
            "a column of type",
        ),
    ],
)
def test_columns_that_the_table_does_not_have_are_refused(place: Place, upkeep: dict, words: str, hint: str):
    with pytest.raises(ConfigError, match=words) as caught:
        place.policy({"policy": upkeep})
    assert caught.value.hint is not None
    assert caught.value.hint.startswith(hint)


def test_what_the_branch_main_promises_cannot_be_cut_short(place: Place):
    table = place.table()
    table.append(pa.table({"id": [1], "at": [None], "name": ["a"]}, schema=COLUMNS))
    main = table.metadata.refs["main"]
    table.metadata.refs["main"] = main.model_copy(update={"max_snapshot_age_ms": 7_200_000, "min_snapshots_to_keep": 4})
    policy = policy_for(place.settings(), table)
    assert (policy.max_snapshot_age_s, policy.max_snapshots, policy.min_snapshots) == (7200, None, 4)
    with pytest.raises(ConfigError, match=r"max_snapshot_age_s 60\.0 .* is less than the branch main promises, 7200"):
        policy_for(place.settings({"policy": {"max_snapshot_age_s": 60}}), table)
