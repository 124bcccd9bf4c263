"""The topic commands, in this process: what they print, what they refuse, and which exit codes they give."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import structlog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.types import LongType

from frazil.catalogs import local_path
from frazil.cli.amounts import seconds, shown_size, size
from frazil.cli.run import run_command
from frazil.cli.topic_publish import _lines
from frazil.content.tables import ensure_journal, ensure_objects
from frazil.content.topic import ensure_topic
from frazil.errors import UsageError
from frazil.log import Log
from frazil.log.batch import Batch
from frazil.settings import Settings
from frazil.tables import Position, commit_append
from frazil.topics.admin import compare
from frazil.topics.admin.verify import verify_topic
from frazil.topics.reading.reader import open_reader
from frazil.topics.reading.seek import parse_seek_target
from tests.content_kit import Content
from tests.odd_columns import append_unchecked
from tests.sink_kit import put_dead_letters, sink_kit
from tests.upkeep_files import care_of


class Cli:
    """Runs commands in a home folder of its own."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.home, self._capfd = home, capfd

    def __call__(self, *args: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        more = ["--set", f"home={self.home}", "--set", "log.min_free=0", "--set", "log.max_file_size=4096"]
        code = run_command("topic", "topic", [*args, *more])
        out, errors = self._capfd.readouterr()
        return code, out, errors

    def ok(self, *args: str) -> str:
        code, out, errors = self(*args)
        assert code == 0, errors
        return out

    def json(self, *args: str) -> Any:
        return json.loads(self.ok(*args, "--output", "json"))

    def fails(self, *args: str, code: int, says: list[str]) -> str:
        got, _, errors = self(*args)
        assert got == code, errors
        assert "error: " in errors and "Try: " in errors and "Traceback" not in errors
        for words in says:
            assert words in errors, errors
        return errors


@pytest.fixture
def cli(tmp_path, capfd) -> Iterator[Cli]:
    yield Cli(tmp_path, capfd)
    structlog.reset_defaults()  # a command has told it to write to what was standard error then


@pytest.fixture
def frozen(tmp_path, cli) -> Cli:
    """A topic of 60 messages, all of them in its table."""
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.create("orders")
        for number in range(60):
            kit.publish("orders", f"message {number} {'x' * 200}".encode())
        kit.engine("orders").catch_up()
    return cli


# -- amounts and places ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "found"), [("90s", 90), ("30m", 1800), ("1.5h", 5400), ("7d", 604800), ("2w", 1209600)]
)
def test_lengths_of_time(text, found):
    assert seconds(text) == found


@pytest.mark.parametrize(
    ("text", "found"), [("500", 500), ("10GB", 10**10), ("64MiB", 2**26), ("1.5 kb", 1500), ("2TiB", 2**41)]
)
def test_sizes(text, found):
    assert size(text) == found


@pytest.mark.parametrize(("parse", "text"), [(seconds, "7"), (seconds, "d7"), (size, "10XB"), (size, "-1"), (size, "")])
def test_what_is_no_amount_is_told_with_examples(parse, text):
    with pytest.raises(UsageError) as refused:
        parse(text)
    assert refused.value.hint


def test_sizes_are_shown_for_people():
    assert [shown_size(n) for n in (0, 1023, 1536, 150 * 2**20)] == ["0 B", "1023 B", "1.5 KiB", "150 MiB"]


def test_places_are_offsets_times_start_and_end():
    assert parse_seek_target("42") == 42 and parse_seek_target("start") == "start"
    assert parse_seek_target("2026-01-31T12:00:00").isoformat() == "2026-01-31T12:00:00+00:00"
    assert parse_seek_target("2026-01-31T12:00:00+02:00").utcoffset().seconds == 7200
    with pytest.raises(UsageError):
        parse_seek_target("yesterday")


def test_lines_that_come_together_go_together():
    assert list(_lines([b"a\nb", b"c\r\nd\n", b"\n", b"rest"])) == [[b"a"], [b"bc", b"d"], [b""], [b"rest"]]


# -- create, list, show ------------------------------------------------------------------------------------------------


def test_a_topic_is_created_listed_shown_and_deleted(cli):
    assert "orders" in cli.ok("create", "orders", "--storage", "log")
    assert [t["name"] for t in cli.json("list")] == ["orders"]
    assert re.search(r"orders +log +0 +0", cli.ok("list"))
    shown = cli.json("show", "orders")
    assert shown["storage"] == "log" and shown["table"] is None and shown["log"]["end"] == 0
    assert "log alone" not in cli.ok("show", "orders")
    cli.ok("delete", "orders", "--yes")
    assert cli.json("list") == []


def test_new_topics_have_the_storage_of_the_settings(cli):
    assert cli.json("create", "orders")["storage"] == "iceberg"
    assert cli.json("create", "plain", "--set", "topics.storage=log")["storage"] == "log"


def test_retention_can_be_given_at_once(cli):
    made = cli.json("create", "orders", "--keep", "7d", "--keep-size", "10GB")
    assert (made["retention_age_s"], made["retention_bytes"]) == (604800, 10**10)


def test_a_name_that_is_taken_reserved_or_wrong_is_refused(cli):
    cli.ok("create", "orders")
    cli.fails("create", "orders", code=11, says=["already"])
    cli.ok("create", "orders", "--exist-ok")
    cli.fails("create", "dead_letters", code=2, says=["Frazil's own"])
    cli.fails("create", "Orders EU", code=2, says=["Try: orders_eu"])


def test_an_unknown_topic_names_the_nearest(cli):
    cli.ok("create", "orders")
    for command in ("show", "tail", "replay", "retain", "delete"):
        cli.fails(command, "ordrs", code=10, says=["topic 'ordrs' does not exist", "orders"])


def test_where_no_broker_runs_that_is_said(cli):
    _, out, errors = cli("list", "--output", "json")
    assert out == "[]\n" and "no broker runs" in errors


def test_the_table_is_shown_with_lag(frozen):
    frozen.ok("publish", "orders", "one more")
    shown = frozen.json("show", "orders")
    assert shown["table"]["position"] == shown["table"]["rows"] == 60
    assert shown["sinks"] == [{"sink": "archive", "offset": 60, "lag": 1}]
    assert "topics.orders" in frozen.ok("show", "orders")


# -- publish -----------------------------------------------------------------------------------------------------------


def test_messages_are_acknowledged_one_by_one(cli):
    cli.ok("create", "orders")
    assert cli.ok("publish", "orders", "a", "b").splitlines() == ["orders: offset 0, disk", "orders: offset 1, disk"]
    assert cli.ok("publish", "orders", "c", "d", "--batch") == "orders: offsets 2 to 3, disk\n"
    acks = cli.json("publish", "orders", "e", "--level", "os")
    assert [(a["offset"], a["level"]) for a in acks] == [(4, "os")]


def test_headers_and_producers_are_kept(cli):
    cli.ok("create", "orders")
    cli.ok("publish", "orders", "a", "--header", "source=shop", "--header", "x=1=2", "--producer", "billing")
    (message,) = cli.json("tail", "orders")
    assert message["headers"] == {"source": "shop", "x": "1=2"} and message["producer_name"] == "billing"
    assert cli.ok("tail", "orders").rstrip().endswith("a  [source=shop x=1=2]")


def test_a_file_is_one_message_or_one_per_line(cli, tmp_path):
    cli.ok("create", "orders")
    (tmp_path / "text").write_bytes(b"one\ntwo\n\xff\n")
    cli.ok("publish", "orders", "--file", str(tmp_path / "text"))
    cli.ok("publish", "orders", "--file", str(tmp_path / "text"), "--lines")
    found = cli.json("replay", "orders")
    assert [m.get("payload", m.get("payload_base64")) for m in found] == ["b25lCnR3bwr/Cg==", "one", "two", "/w=="]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--header", "nothing", "x"], "not a header"),
        (["x", "--file", "y"], "exclude each other"),
        (["x", "--lines"], "--lines"),
        (["x", "--level", "safe"], "memory"),
        (["y" * 2000, "--set", "log.max_message_size=1000"], "over the limit of 1,000"),
    ],
)
def test_what_cannot_be_published_is_told(cli, args, says):
    cli.ok("create", "orders")
    cli.fails("publish", "orders", *args, code=2, says=[says])
    assert cli.json("show", "orders")["log"]["end"] == 0


def test_a_publication_that_breaks_off_says_what_is_in_the_log(cli, tmp_path):
    cli.ok("create", "orders")
    cli.ok("publish", "orders", "before")
    limit = ("--set", "log.max_message_size=1000")
    says = ["publishing failed part-way; 2 messages were acknowledged, at offsets 1 to 2", "the first 2 messages"]
    cli.fails("publish", "orders", "a", "b", "y" * 2000, "c", *limit, code=3, says=says)
    lines = tmp_path / "lines"
    lines.write_bytes(b"x\n" * 600_000 + b"y" * 2000 + b"\n")
    code, _, errors = cli("publish", "orders", "--lines", "--file", str(lines), *limit, "-o", "json")
    told = json.loads(errors.splitlines()[-1])
    assert code == 3 and told["error"] == "PartialError" and not told["retryable"]
    assert (told["first_offset"], told["unknown"]) == (3, 0)
    assert told["last_offset"] == told["acknowledged"] + 2
    assert cli.json("show", "orders")["log"]["end"] == told["last_offset"] + 1
    _, _, errors = cli("publish", "orders", "y" * 2000, *limit, "-o", "json")
    told = json.loads(errors.splitlines()[-1])
    assert (told["error"], told["acknowledged"], told["unknown"]) == ("UsageError", 0, 0)


def test_a_file_that_is_not_there(cli):
    cli.ok("create", "orders")
    cli.fails("publish", "orders", "--file", "/nowhere/at/all", code=10, says=["/nowhere/at/all"])


# -- tail, replay ------------------------------------------------------------------------------------------------------


def test_tail_shows_the_last_ones_and_replay_all(frozen):
    frozen.ok("publish", "orders", "sixty")
    assert [m["offset"] for m in frozen.json("tail", "orders", "-n", "3")] == [58, 59, 60]
    assert [m["offset"] for m in frozen.json("replay", "orders")] == list(range(61))
    assert [m["offset"] for m in frozen.json("replay", "orders", "--from", "58", "--to", "60")] == [58, 59]
    assert frozen.ok("replay", "orders", "--from", "60", "--format", "raw") == "sixty\n"
    lines = frozen.ok("replay", "orders", "--from", "59", "--format", "ndjson").splitlines()
    assert [json.loads(line)["offset"] for line in lines] == [59, 60]


def test_replay_from_a_time(frozen):
    time = frozen.json("replay", "orders", "--from", "30", "--to", "31")[0]["publish_time"]
    assert frozen.json("replay", "orders", "--from", time)[0]["offset"] == 30


def test_a_line_is_a_line_whatever_the_payload(cli):
    cli.ok("create", "orders")
    cli.ok("publish", "orders", "two\nlines")
    assert cli.ok("tail", "orders").count("\n") == 1


def test_a_subscription_goes_on_where_it_was(frozen):
    assert len(frozen.json("replay", "orders", "--subscription", "me", "--to", "10")) == 10
    assert frozen.json("replay", "orders", "--subscription", "me")[0]["offset"] == 10
    frozen.ok("publish", "orders", "new")
    assert [m["offset"] for m in frozen.json("replay", "orders", "--subscription", "me")] == [60]
    assert frozen.json("show", "orders")["subscriptions"] == [{"subscription": "me", "offset": 61, "lag": 0}]


def test_a_place_that_is_none_and_an_end_that_never_comes(frozen):
    frozen.fails("replay", "orders", "--from", "yesterday", code=2, says=["not a position"])
    frozen.fails("replay", "orders", "--follow", "--to", "5", code=2, says=["--to"])
    frozen.fails("replay", "orders", "--follow", "--format", "json", code=2, says=["ndjson"])


def test_a_range_that_retention_has_removed_says_where_it_can_be_read(cli):
    cli.ok("create", "orders", "--storage", "log")
    for _ in range(5):
        cli.ok("publish", "orders", *["x" * 400] * 10, "--batch")
    cli.ok("retain", "orders", "--older-than", "0s", "--yes")
    start = cli.json("show", "orders")["log"]["start"]
    cli.fails("replay", "orders", "--from", "0", code=10, says=[f"offset {start} on"])


# -- retain, delete ----------------------------------------------------------------------------------------------------


def test_nothing_is_removed_without_yes(frozen):
    frozen.fails("retain", "orders", "--older-than", "0s", code=2, says=["nothing was done", "--yes"])
    plan = frozen.json("retain", "orders", "--older-than", "0s", "--dry-run")
    assert plan["done"] is False and {r["where"] for r in plan["removed"]} == {"log", "table"}
    assert [m["offset"] for m in frozen.json("replay", "orders")] == list(range(60))


def test_only_the_log_or_only_the_table(frozen):
    done = frozen.json("retain", "orders", "--older-than", "0s", "--log", "--yes")
    assert done["done"] and [r["where"] for r in done["removed"]] == ["log"] and done["removed"][0]["files"] > 0
    assert [m["offset"] for m in frozen.json("replay", "orders")] == list(range(60)), "the table has it"
    (removed,) = frozen.json("retain", "orders", "--older-than", "0s", "--table", "--yes")["removed"]
    assert removed["rows"] == 60
    start = frozen.json("show", "orders")["log"]["start"]
    assert frozen.json("replay", "orders")[0]["offset"] == start > 0


def test_a_rule_can_be_kept(cli):
    cli.ok("create", "orders", "--storage", "log")
    cli.ok("retain", "orders", "--older-than", "7d", "--save", "--yes")
    assert cli.json("show", "orders")["log"]["retention_age_s"] == 604800


def test_the_log_keeps_what_the_table_does_not_have(frozen):
    frozen.ok("publish", "orders", *["y" * 400] * 20)
    frozen.ok("retain", "orders", "--older-than", "0s", "--log", "--yes")
    assert [m["offset"] for m in frozen.json("replay", "orders")] == list(range(80))


def test_a_topic_without_a_table_has_nothing_to_remove_there(cli):
    cli.ok("create", "orders", "--storage", "log")
    cli.fails("retain", "orders", "--table", "--dry-run", code=2, says=["no table"])


def test_a_rule_is_saved_as_it_was_given_and_never_an_empty_one(cli):
    cli.ok("create", "orders", "--keep", "7d", "--keep-size", "10GB")
    cli.fails("retain", "orders", "--save", "--yes", code=2, says=["--older-than"])
    cli.ok("retain", "orders", "--older-than", "1d", "--save", "--yes")
    log = cli.json("show", "orders")["log"]
    assert (log["retention_age_s"], log["retention_bytes"]) == (86400, 10_000_000_000)


def test_a_topic_is_deleted_by_what_the_chosen_catalog_knows_of_it(frozen, tmp_path):
    other = ["--set", "catalogs.other.kind=sql", "--set", f"catalogs.other.uri=sqlite:///{tmp_path}/other.db"]
    other += ["--set", f"catalogs.other.warehouse={tmp_path}/other", "--catalog", "other"]
    frozen.fails("delete", "orders", "--dry-run", *other, code=11, says=["not in its table yet"])
    frozen.ok("delete", "orders", "--dry-run")


def test_deleting_shows_a_plan_and_refuses_what_would_be_lost(frozen):
    assert "keep;" in frozen.ok("delete", "orders", "--dry-run")
    _, planned, refused = frozen("delete", "orders")
    assert "delete offsets" in planned and "deleted" not in planned, "nothing is deleted yet"
    assert "nothing was done" in refused and "--yes" in refused
    frozen.fails("delete", "orders", code=2, says=["nothing was done"])
    frozen.ok("publish", "orders", "not in the table yet")
    frozen.fails("delete", "orders", "--yes", code=11, says=["not in its table yet: offsets 60 to 61", "--force"])
    frozen.ok("delete", "orders", "--yes", "--force")
    assert frozen.json("list") == []


def test_the_table_goes_too_where_that_is_wanted(frozen, tmp_path):
    frozen.ok("delete", "orders", "--table", "--yes")
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))
    frozen.ok("create", "orders")
    assert "offset 0" in frozen.ok("publish", "orders", "anew")


def test_a_table_stays_whose_files_another_table_holds(frozen, tmp_path):
    care = care_of(tmp_path)
    with care.store:
        files = [task.file.file_path for task in care.load("topics.orders").scan().plan_files()]
        columns = care.load("topics.orders").schema()
        other = care.store.catalog.create_table("topics.copy", schema=columns)
        other.add_files(files)
    frozen.fails("delete", "orders", "--table", "--yes", code=12, says=["topics.copy"])
    assert len(frozen.json("replay", "orders")) == 60
    assert all(Path(local_path(file) or "").exists() for file in files)


def test_a_table_stays_that_another_catalog_shows_under_another_name(frozen, tmp_path):
    other = {"kind": "sql", "uri": f"sqlite:///{tmp_path}/other.db", "warehouse": f"{tmp_path}/other"}
    care = care_of(tmp_path)
    with care.store:
        pointer = care.load("topics.orders").metadata_location
    archive = SqlCatalog("other", uri=other["uri"], warehouse=other["warehouse"])
    archive.create_namespace("arch")
    registered = archive.register_table("arch.orders", pointer)
    flags = [text for key, value in other.items() for text in ("--set", f"catalogs.other.{key}={value}")]
    frozen.fails("delete", "orders", "--table", "--yes", *flags, code=12, says=["other.arch.orders", "same table"])
    assert len(frozen.json("replay", "orders")) == 60, "the log is there"
    assert registered.scan().to_arrow().num_rows == 60
    archive.drop_table("arch.orders")
    frozen.ok("delete", "orders", "--table", "--yes", *flags)
    assert not list((tmp_path / "warehouse").rglob("*.parquet"))


def test_files_of_a_table_that_says_they_are_not_its_own_are_left(frozen, tmp_path):
    care = care_of(tmp_path)
    with care.store:
        table = care.load("topics.orders")
        table.transaction().set_properties({"gc.enabled": "false"}).commit_transaction()
    before = set((tmp_path / "warehouse").rglob("*.*"))
    code, _, errors = frozen("delete", "orders", "--table", "--yes")
    assert code == 0 and "files are left" in errors and "gc.enabled" in errors, errors
    assert set((tmp_path / "warehouse").rglob("*.*")) >= before


def test_files_that_lie_outside_the_folders_of_a_table_are_left(frozen, tmp_path):
    care = care_of(tmp_path)
    with care.store:
        table = care.load("topics.orders")
        (file, *_) = [task.file.file_path for task in table.scan().plan_files()]
        imported = tmp_path / "inbox" / "imported.parquet"
        imported.parent.mkdir()
        shutil.copyfile(local_path(file) or "", imported)
        table.add_files([str(imported)], check_duplicate_files=False)
    code, _, errors = frozen("delete", "orders", "--table", "--yes", "--force")
    assert code == 0 and "files are left" in errors and str(imported) in errors, errors
    assert imported.exists()


@pytest.mark.parametrize("damage", [Path.unlink, lambda path: path.write_bytes(b"no manifest")])
def test_a_damaged_table_is_dropped_and_its_files_are_left(frozen, tmp_path, damage):
    care = care_of(tmp_path)
    with care.store:
        table = care.load("topics.orders")
        current = table.current_snapshot()
        assert current is not None
        manifest = current.manifests(table.io)[0].manifest_path
        location = Path(local_path(table.location()) or "")
    damage(Path(local_path(manifest) or ""))
    before = {path for path in location.rglob("*") if path.is_file()}
    assert str(location) in frozen.json("delete", "orders", "--table", "--dry-run")["table"]
    code, _, errors = frozen("delete", "orders", "--table", "--yes")
    assert code == 0, errors
    assert "files are left" in errors and str(location) in errors
    assert {path for path in location.rglob("*") if path.is_file()} == before
    assert not care.store.catalog.table_exists("topics.orders")


# -- adopt -------------------------------------------------------------------------------------------------------------


def test_a_new_log_is_refused_until_it_is_adopted(frozen):
    frozen.ok("delete", "orders", "--yes")
    frozen.ok("create", "orders")
    frozen.fails("publish", "orders", "x", code=13, says=["Try: frazil topic adopt orders"])
    plan = frozen.json("adopt", "orders", "--dry-run")
    assert (plan["problem"], plan["after"], plan["done"]) == ("new_log", 60, False)
    frozen.fails("adopt", "orders", code=2, says=["nothing was done"])
    frozen.ok("adopt", "orders", "--yes")
    assert "offset 60" in frozen.ok("publish", "orders", "goes on")
    assert [m["offset"] for m in frozen.json("replay", "orders")] == list(range(61))
    assert frozen.json("adopt", "orders")["problem"] == "none"


def test_after_a_rollback_a_person_decides(frozen, tmp_path):
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        table = kit.table("orders")
        first = table.current_snapshot().snapshot_id
        kit.publish("orders", b"after")
        kit.engine("orders").catch_up()
        table.refresh().manage_snapshots().rollback_to_snapshot(first).commit()
    frozen.fails("adopt", "orders", "--yes", code=2, says=["from offset 61 to 60", "--rewind", "--keep"])
    assert frozen.json("adopt", "orders", "--keep", "--dry-run")["after"] == 61
    frozen.ok("adopt", "orders", "--rewind", "--yes")
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.engine("orders").catch_up()
        assert [r["offset"] for r in kit.rows("orders")] == list(range(61))


def test_a_gap_that_nobody_has_any_more_is_left_out(frozen, tmp_path):
    """For a while the topic had its log alone, and retention took what the table had not seen."""
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.log.configure("orders", {"storage": "log"})
        for _ in range(40):
            kit.publish("orders", b"y" * 300)
        start = kit.log.retain("orders", age_s=0.0).start
        kit.log.configure("orders", {"storage": "iceberg"})
    assert start > 60
    code, out, _ = frozen("verify", "orders")
    assert code == 13 and f"offsets 60 to {start} are neither in the log nor in the table" in out
    frozen.fails("migrate", "orders", "--to", "iceberg", code=10, says=["frazil topic adopt orders"])
    assert frozen.json("adopt", "orders", "--yes") | {"message": ""} == {
        "topic": "orders", "problem": "gap", "message": "", "before": 60, "after": start, "done": True
    }  # fmt: skip
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.engine("orders").catch_up()
        assert [r["offset"] for r in kit.rows("orders")] == [*range(60), *range(start, 100)]


def test_other_messages_under_the_same_offsets_are_never_adopted(frozen):
    frozen.ok("delete", "orders", "--yes")
    frozen.ok("create", "orders", "--storage", "log")
    frozen.ok("publish", "orders", "another message 0")
    frozen.fails("adopt", "orders", "--yes", code=11, says=["others up to 60"])


def test_a_topic_without_a_table_has_nothing_to_adopt(cli):
    cli.ok("create", "orders")
    cli.fails("adopt", "orders", "--yes", code=10, says=["no table"])


# -- verify ------------------------------------------------------------------------------------------------------------


def test_a_sound_topic(frozen):
    found = frozen.json("verify", "orders")
    assert found["sound"] and found["findings"] == []
    assert (found["log"]["messages"], found["table"]["rows"], found["table"]["position"]) == (60, 60, 60)
    assert frozen.ok("verify", "orders").rstrip().endswith("sound")


def test_damage_in_the_log_is_told_and_the_table_still_has_it(frozen, tmp_path):
    path = sorted((tmp_path / "log/topics/orders").glob("*.seg"))[1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    code, out, _ = frozen("verify", "orders", "--output", "json")
    found = json.loads(out)
    assert code == 13 and not found["sound"]
    (damaged,) = [f for f in found["findings"] if f["severity"] == "error"]
    assert (damaged["what"], damaged["where"]) == ("damaged", path.name) and damaged["bytes"] and damaged["offsets"]
    start, end = damaged["offsets"]
    assert any(f["severity"] == "note" and f["offsets"] == [start, end] for f in found["findings"]), "the table has it"
    frozen.fails("verify", "orders", code=13, says=["1 fault", "--repair"])
    frozen.fails("verify", "orders", "--repair", code=2, says=["nothing was done"])
    assert frozen.json("verify", "orders", "--repair", "--dry-run")["lost"] == [{"start": start, "end": end}]
    frozen.ok("verify", "orders", "--repair", "--yes")
    assert [m["offset"] for m in frozen.json("replay", "orders")] == list(range(60))
    with sink_kit(tmp_path) as kit, open_reader(kit.client, kit.settings, "orders", first="log") as reader:
        assert [o for table in reader.read(0) for o in table["offset"].to_pylist()] == list(range(60))
    assert frozen.json("verify", "orders")["sound"]


def test_rows_that_are_missing_or_doubled_in_the_table_are_told(frozen, tmp_path):
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        table = kit.table("orders")
        again = table.scan(row_filter="offset = 7").to_arrow()
        table.delete("offset in (20, 21)")
        kit.table("orders").append(again)
    code, out, _ = frozen("verify", "orders", "--output", "json")
    errors = {(f["what"], *f["offsets"]) for f in json.loads(out)["findings"] if f["severity"] == "error"}
    assert code == 13 and errors == {("missing", 20, 22), ("doubled", 7, 8)}


def test_other_messages_in_the_table_than_in_the_log_are_told(frozen, tmp_path, monkeypatch):
    monkeypatch.setattr("frazil.topics.admin.compare.CHUNK_BYTES", 700)
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        table = kit.table("orders")
        rows = table.scan(row_filter="offset in (7, 20, 21)").to_arrow()
        at = rows.schema.get_field_index("payload")
        other = pa.array([b"another"] * 3, rows.schema.field("payload").type)
        table.delete("offset in (7, 20, 21)")
        kit.table("orders").append(rows.set_column(at, rows.schema.field("payload"), other))
        remote = verify_topic(kit.client, kit.settings, "orders", kit.tables)
    code, out, _ = frozen("verify", "orders", "--output", "json")
    errors = {(f["what"], *f["offsets"]) for f in json.loads(out)["findings"] if f["severity"] == "error"}
    assert code == 13 and errors == {("different", 7, 8), ("different", 20, 22)}
    assert {(f.what, f.offsets) for f in remote.findings} == {("different", (7, 8)), ("different", (20, 22))}


@pytest.mark.parametrize("column", ["payload", "publish_time"])
def test_a_table_whose_columns_have_other_names_is_not_compared_message_by_message(frozen, tmp_path, column):
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit, kit.table("orders").update_schema() as update:
        update.rename_column(column, "renamed")
    found = frozen.json("verify", "orders")
    assert found["sound"] and [(f["severity"], f["what"]) for f in found["findings"]] == [("note", "columns")]


def test_files_that_compaction_takes_away_meanwhile_are_no_fault(frozen, tmp_path, monkeypatch):
    real, gone = compare.scan_in_order, [FileNotFoundError("compacted")]

    def scan(*args: Any, **options: Any) -> Any:
        if gone:
            raise gone.pop()
        return real(*args, **options)

    monkeypatch.setattr("frazil.topics.admin.compare.scan_in_order", scan)
    assert frozen.json("verify", "orders")["findings"] == [] and not gone


def test_a_damaged_log_on_another_machine_is_not_sound(frozen, tmp_path):
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        path = sorted((tmp_path / "log/topics/orders").glob("*.seg"))[1]
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(bytes(data))
        elsewhere = kit.settings.model.log.model_copy(update={"directory": tmp_path / "elsewhere"})
        settings = Settings(kit.settings.model.model_copy(update={"log": elsewhere}))
        report = verify_topic(kit.client, settings, "orders", kit.tables)
    assert not report.sound
    assert [(f.severity, f.what) for f in report.findings] == [("note", "log"), ("error", "damaged")]


def test_dead_letters_of_another_log_do_not_stand_for_rows_that_are_missing(frozen, tmp_path):
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        put_dead_letters(kit, "orders", 20, 2, log_id="aa" * 16)
        kit.table("orders").delete("offset in (20, 21)")
    code, out, _ = frozen("verify", "orders", "--output", "json")
    errors = {(f["what"], *f["offsets"]) for f in json.loads(out)["findings"] if f["severity"] == "error"}
    assert code == 13 and errors == {("missing", 20, 22)}


def test_a_table_of_another_log_is_told(frozen):
    frozen.ok("delete", "orders", "--yes")
    frozen.ok("create", "orders")
    code, out, errors = frozen("verify", "orders")
    assert code == 13 and "was written from log" in out and "adopt" in errors


def test_a_rollback_is_told(frozen, tmp_path):
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        first = kit.table("orders").current_snapshot().snapshot_id
        kit.publish("orders", b"after")
        kit.engine("orders").catch_up()
        kit.table("orders").manage_snapshots().rollback_to_snapshot(first).commit()
    code, out, _ = frozen("verify", "orders", "--output", "json")
    assert code == 13 and [f["what"] for f in json.loads(out)["findings"]] == ["rolled_back"]


def test_an_older_copy_of_the_log_is_told_and_no_offset_is_given_out_twice(frozen, tmp_path):
    shutil.copytree(tmp_path / "log", tmp_path / "copy")
    with sink_kit(tmp_path, **{"log.max_file_size": "4096"}) as kit:
        kit.publish("orders", b"after", b"the copy")
        kit.engine("orders").catch_up()
    shutil.rmtree(tmp_path / "log")
    (tmp_path / "copy").rename(tmp_path / "log")
    assert "an older log was brought back" in frozen.ok("verify", "orders")
    assert "offset 62" in frozen.ok("publish", "orders", "next")
    assert [m["offset"] for m in frozen.json("replay", "orders")] == list(range(63))


def test_verify_changes_nothing_not_even_a_torn_tail(frozen, tmp_path):
    path = max((tmp_path / "log/topics/orders").glob("*.seg"))
    with path.open("ab") as file:
        file.write(b"torn")
    before = path.read_bytes()
    assert "never on disk for sure" in frozen.ok("verify", "orders")
    assert path.read_bytes() == before


def test_yes_belongs_to_repair(frozen):
    frozen.fails("verify", "orders", "--yes", code=2, says=["--repair"])


def test_a_damaged_topic_is_listed_with_its_problem(frozen, tmp_path):
    path = max((tmp_path / "log/topics/orders").glob("*.seg"))
    path.unlink()
    assert "has lost its segment" in frozen.ok("list")
    frozen.fails("show", "orders", code=13, says=["frazil topic verify orders"])
    frozen.fails("delete", "orders", "--yes", code=13, says=["--force"])


# -- migrate, dead letters ---------------------------------------------------------------------------------------------


def test_a_topic_moves_and_says_what_it_copied(frozen):
    frozen.ok("retain", "orders", "--older-than", "0s", "--log", "--yes")
    start = frozen.json("show", "orders")["log"]["start"]
    plan = frozen.json("migrate", "orders", "--to", "log", "--dry-run")
    assert (plan["start"], plan["end"], plan["done"]) == (0, start, False)
    assert f"offsets 0 to {start}" in frozen.ok("migrate", "orders", "--to", "log")
    shown = frozen.json("show", "orders")
    assert (shown["storage"], shown["log"]["start"]) == ("log", 0)
    assert "already" in frozen.ok("migrate", "orders", "--to", "log")
    frozen.fails("migrate", "orders", "--to", "kafka", code=2, says=["iceberg"])


def test_dead_letters_are_listed_shown_and_sent_again(cli, tmp_path):
    """Somebody has made numbers of a column that holds text: what is no number cannot go there."""
    with sink_kit(tmp_path) as kit:
        kit.create("orders")
        kit.publish("orders", b"good", amount=pa.array(["1"]))
        kit.engine("orders").catch_up()
        for change in (lambda c: c.delete_column("amount"), lambda c: c.add_column("amount", LongType())):
            with kit.table("orders").update_schema() as changes:
                change(changes)
        kit.publish("orders", b"bad", amount=pa.array(["many"]))
        kit.engine("orders").catch_up()
    (letter,) = cli.json("dead-letters", "list", "orders")
    assert (letter["offset"], letter["status"]) == (1, "dead")
    assert "bad" in cli.ok("dead-letters", "show", "orders", "1")
    cli.fails("dead-letters", "show", "orders", "5", code=10, says=["no dead letter"])
    cli.fails("dead-letters", "replay", "orders", code=2, says=["nothing was done"])
    cli.ok("dead-letters", "replay", "orders", "--yes")
    assert cli.json("dead-letters", "list", "orders", "--status", "dead") == []
    assert cli.json("tail", "orders", "-n", "1")[0]["headers"]["frazil-replayed-from"] == "orders/0/1"


def test_dead_letters_are_chosen_by_what_is_known_of_them(cli, tmp_path):
    with sink_kit(tmp_path) as kit:
        kit.create("orders")
        for reason, first in (("type", 0), ("null", 3)):
            put_dead_letters(kit, "orders", first, 3, reason=reason)
    listed = ["dead-letters", "list", "orders"]

    def offsets(*options: str) -> list[int]:
        return [letter["offset"] for letter in cli.json(*listed, *options)]

    assert offsets() == [5, 4, 3, 2, 1, 0]
    assert offsets("--oldest-first", "--limit", "2") == [0, 1]
    assert offsets("--reason", "null", "--from", "4") == [5, 4]
    assert offsets("--to", "2", "--sink", "archive", "--partition", "0") == [1, 0]
    assert offsets("--until", "2020-01-01") == offsets("--sink", "documents") == offsets("--partition", "1") == []
    assert offsets("--since", "2020-01-01T00:00:00+02:00", "--limit", "1") == [5]
    plan = cli.json("dead-letters", "replay", "orders", "--reason", "null", "--dry-run")
    assert (plan["messages"], plan["done"]) == (3, False)
    assert cli.json("dead-letters", "replay", "orders", "--reason", "null", "--to", "5", "--yes")["messages"] == 2
    assert offsets("--status", "dead") == [5, 2, 1, 0]
    cli.fails(*listed, "--from", "3", "--to", "3", code=2, says=["the range --from 3 --to 3 is empty"])
    cli.fails(*listed, "--since", "2026-01-02", "--until", "2026-01-01", code=2, says=["the range --since", "is empty"])
    cli.fails(*listed, "--since", "yesterday", code=2, says=["is not a time"])


def test_a_replay_names_the_dead_letters_that_the_log_refuses_and_publishes_the_others(cli, tmp_path):
    with sink_kit(tmp_path) as kit:
        kit.create("orders")
        put_dead_letters(kit, "orders", 1, 1)
        assert append_unchecked(kit, "orders", pa.record_batch({"payload": pa.array([b"odd"]), "_pos": pa.array([1])}))
        kit.engine("orders").catch_up()
    told = ["1 messages were published again", "remain dead letters: offsets 0", "_pos", "dead-letters show orders 0"]
    cli.fails("dead-letters", "replay", "orders", "--yes", code=3, says=told)
    assert {letter["offset"]: letter["status"] for letter in cli.json("dead-letters", "list", "orders")} == {
        0: "dead",
        1: "replayed",
    }


def test_no_dead_letters_is_no_error(cli):
    assert cli.json("dead-letters", "list") == []


@pytest.mark.parametrize(
    "words",
    [
        ["show", "orders"],
        ["replay", "orders", "--from", "start"],
        ["retain", "orders", "--older-than", "0s", "--dry-run"],
        ["verify", "orders"],
        ["adopt", "orders", "--dry-run"],
        ["migrate", "orders", "--to", "log", "--dry-run"],
        ["delete", "orders", "--dry-run"],
        ["dead-letters", "list"],
        ["dead-letters", "replay", "orders", "--dry-run"],
    ],
    ids=lambda words: words[0],
)
def test_a_command_closes_the_catalogs_that_it_opened(frozen, monkeypatch, words):
    opened: list[SqlCatalog] = []
    closed: list[SqlCatalog] = []
    begin, end = SqlCatalog.__init__, SqlCatalog.close

    def counted(self, *given, **more):
        opened.append(self)
        begin(self, *given, **more)

    def close(self):
        closed.append(self)
        end(self)

    monkeypatch.setattr(SqlCatalog, "__init__", counted)
    monkeypatch.setattr(SqlCatalog, "close", close)
    frozen.ok(*words)
    assert opened and {*map(id, opened)} == {*map(id, closed)}


def test_the_offset_and_lag_of_the_content_sink_are_those_of_its_last_table(tmp_path, cli):
    """Without a pipeline that runs; the journal is committed first, and may be further."""
    with Log.open(tmp_path / "log") as log:
        log_id = ensure_topic(log, "content_events").log_id
        log.append("content_events", Batch.of_messages([b"{}"] * 5))
    content = Content.at(tmp_path)
    for ensure, offset in ((ensure_journal, 4), (ensure_objects, 3)):
        reached = Position("content", "content_events", {0: offset}, log_id, 1, uuid.uuid4().hex)
        commit_append(content.store, ensure(content.store, content.settings), [], expected=None, reached=reached)
    assert cli.json("show", "content_events")["sinks"] == [{"sink": "content", "offset": 3, "lag": 2}]
