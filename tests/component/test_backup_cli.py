"""`frazil backup` in this process, without a JVM: what it prints, what it refuses, and which exit codes it gives."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import structlog
from pyiceberg.table import Table

from frazil.backup.format import BlobRef
from frazil.backup.metrics import read_metrics
from frazil.backup.repair import Repair, plan_repair, run_repair
from frazil.backup.repository import Repository, data_key
from frazil.catalogs import local_path
from frazil.cli.run import run_command
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.upkeep.context import UpkeepContext
from tests.e2e.conftest import fingerprint
from tests.upkeep_files import care_of, folder, grow, make, rows


class Cli:
    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str]) -> None:
        self.home, self._capfd = home, capfd
        self.settings: dict[str, str] = {}

    @property
    def repository(self) -> Path:
        return self.home / "backups"

    def __call__(self, *args: str) -> tuple[int, str, str]:
        self._capfd.readouterr()
        given = {"home": str(self.home), **self.settings}
        flags = [part for name, value in given.items() for part in ("--set", f"{name}={value}")]
        code = run_command("backup", "backup", [*args, *flags])
        out, errors = self._capfd.readouterr()
        return code, out, errors

    def json(self, *args: str) -> Any:
        code, out, errors = self(*args, "--output", "json")
        assert code == 0, errors
        return json.loads(out)

    def prints(self, *args: str, code: int = 0) -> str:
        got, out, errors = self(*args)
        assert got == code, errors
        return out

    def refuses(self, *args: str, code: int, says: str) -> str:
        """It fails, says why and what to try, and has changed nothing: neither tables nor repository."""
        before = fingerprint(self.home)
        got, _, errors = self(*args)
        assert got == code, errors
        assert "error: " in errors and "Try: " in errors and "Traceback" not in errors
        assert "report it" not in errors
        assert says in errors, errors
        assert fingerprint(self.home) == before
        return errors

    def blob(self) -> Path:
        """A file of data in the repository."""
        return next(file for file in sorted((self.repository / "data").rglob("*")) if file.is_file())


@pytest.fixture
def care(tmp_path: Path) -> UpkeepContext:
    return care_of(tmp_path)


@pytest.fixture
def photos(care: UpkeepContext) -> Table:
    """Three commits of one row each; beside it a table of one commit."""
    make(care, "demo.videos", commits=1)
    return make(care, "demo.photos")


@pytest.fixture
def cli(tmp_path: Path, photos: Table, capfd: pytest.CaptureFixture[str]) -> Iterator[Cli]:
    yield Cli(tmp_path, capfd)
    structlog.reset_defaults()


@pytest.fixture
def backed_up(cli: Cli) -> Cli:
    """With the backup `monday` of demo.photos."""
    assert cli("create", "demo.photos", "--name", "monday")[0] == 0
    return cli


def restored(care: UpkeepContext, name: str) -> list[int]:
    return rows(care.load(name))


# -- create ------------------------------------------------------------------------------------------------------------


def test_a_backup_says_what_it_copied(cli: Cli):
    out = cli.prints("create", "demo.photos", "--name", "monday")
    assert out.splitlines()[1].split()[:3] == ["demo.photos", "3", "3"]
    assert "backup monday: 1 table, " in out and f"in {cli.repository}" in out


def test_a_second_backup_copies_only_what_is_new(backed_up: Cli, photos: Table):
    grow(photos)
    record = backed_up.json("create", "demo.photos", "--name", "tuesday")
    assert (record["files"], record["new_files"]) == (4, 1)
    assert backed_up.json("create", "demo.photos")["new_bytes"] == 0


def test_a_namespace_or_a_catalog_is_one_backup(cli: Cli, care: UpkeepContext):
    make(care, "other.things", commits=1)
    assert [t["table"] for t in cli.json("create", "--namespace", "demo")["tables"]] == ["demo.photos", "demo.videos"]
    assert len(cli.json("create", "--catalog", "frazil")["tables"]) == 3


def test_a_dry_run_makes_no_repository(cli: Cli):
    assert cli.json("create", "demo.photos", "--dry-run")["tables"] == ["demo.photos"]
    assert not cli.repository.exists()


def test_data_that_is_only_referenced_is_said_loudly(cli: Cli):
    errors = cli("create", "demo.photos", "--name", "light", "--data", "reference")[2]
    assert "warning: data files were not copied" in errors
    assert "referenced" in cli.prints("list") and "needs the original files" in cli.prints("show", "light")
    assert cli.json("list")[0]["data"] == "referenced"


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        (("demo.fotos",), 10, "Try: demo.photos"),
        (("demo.photos", "demo.nothing_like_it"), 10, "has no table 'demo.nothing_like_it'"),
        (("--namespace", "dmo"), 10, "no namespace 'dmo'"),
        (("--namespace", "demo", "demo.photos"), 2, "tables and a namespace are named"),
        ((), 2, "no tables are named"),
        (("photos",), 2, "'photos' is not a table name"),
        (("--table", "photos"), 2, "needs --database"),
        (("demo.photos", "--catalog", "prod"), 10, "unknown catalog 'prod'"),
        (("demo.photos", "--data", "link"), 2, "'link'"),
    ],
)
def test_a_wrong_call_of_create_changes_nothing(cli: Cli, args: tuple[str, ...], code: int, says: str):
    cli.refuses("create", *args, code=code, says=says)
    assert not cli.repository.exists()


@pytest.mark.parametrize("name", ["..", "a/b", "", " x", ".hidden"])
def test_a_name_that_would_leave_its_folder_is_refused(backed_up: Cli, name: str):
    backed_up.refuses("create", "demo.photos", f"--name={name}" if name else "--name=.", code=2, says="is invalid")


def test_a_name_that_is_taken_is_refused(backed_up: Cli):
    backed_up.refuses("create", "demo.photos", "--name", "monday", code=11, says="monday")


def test_a_ref_that_does_not_exist_is_refused(backed_up: Cli):
    code, _, errors = backed_up("create", "demo.photos", "--ref", "mian")
    assert code == 10 and "mian" in errors
    assert len(backed_up.json("list")) == 1


def test_a_missing_data_file_fails_the_backup_and_leaves_none(cli: Cli, photos: Table):
    file = next((folder(photos) / "data").glob("*.parquet"))
    file.unlink()
    code, _, errors = cli("create", "demo.photos", "--name", "monday")
    assert code == 10 and file.name in errors and "Try: " in errors
    assert cli.json("list") == []


# -- list, show, diff --------------------------------------------------------------------------------------------------


def test_list_and_show_say_what_is_in_a_backup(backed_up: Cli, care: UpkeepContext):
    backed_up.prints("create", "--namespace", "demo", "--name", "both")
    assert [line.split()[0] for line in backed_up.prints("list").splitlines()] == ["backup", "monday", "both"]
    assert [one["name"] for one in backed_up.json("list", "videos")] == ["both"]
    assert [one["name"] for one in backed_up.json("list", "demo.photos")] == ["monday", "both"]
    shown = backed_up.prints("show", "monday")
    assert "copied" in shown and "append" in shown and "main" in shown and " id " in shown
    assert shown == backed_up.prints("show", "monday", "--table", "photos")
    assert "demo.videos" in backed_up.prints("show", "latest")
    (table,) = backed_up.json("show", "monday")["tables"]
    assert [column["name"] for column in table["columns"]] == list(care.load("demo.photos").schema().column_names)
    assert len(table["snapshots"]) == 3 and table["files"] == 3


def test_diff_shows_what_only_one_backup_has(backed_up: Cli, photos: Table):
    grow(photos)
    with photos.update_schema() as schema:
        schema.add_column("note", schema_type())
    backed_up.prints("create", "--namespace", "demo", "--name", "tuesday")
    found = {one["table"]: one for one in backed_up.json("diff", "monday", "tuesday")}
    assert found["demo.videos"]["change"] == "added"
    assert (found["demo.photos"]["added_files"], found["demo.photos"]["removed_files"]) == (1, 0)
    assert found["demo.photos"]["added_columns"] == ["note"]
    text = backed_up.prints("diff", "monday", "latest")
    assert "+1 -0" in text and "+note" in text


def schema_type() -> Any:
    from pyiceberg.types import StringType

    return StringType()


def test_an_unknown_backup_is_refused_with_near_names(backed_up: Cli):
    for args in (("show", "mondy"), ("diff", "monday", "mondy"), ("restore", "mondy"), ("verify", "mondy")):
        assert "monday" in backed_up.refuses(*args, code=10, says="there is no backup 'mondy'").split("Try:")[1]
    backed_up.refuses("delete", "mondy", "--yes", code=10, says="there is no backup 'mondy'")
    backed_up.refuses("show", "../monday", code=2, says="invalid")
    backed_up.refuses("list", "demo.fotos", code=10, says="Try: demo.photos")


def test_without_a_repository_commands_say_how_to_make_one(cli: Cli):
    for args in (("list",), ("show",), ("verify",), ("prune",), ("restore", "latest")):
        cli.refuses(*args, code=10, says="frazil backup create")


# -- restore -----------------------------------------------------------------------------------------------------------


def test_a_restore_brings_the_table_back_under_another_name(backed_up: Cli, care: UpkeepContext, photos: Table):
    shutil.move(folder(photos), folder(photos).with_name("moved-away"))
    out = backed_up.prints("restore", "monday", "--to", "demo.again")
    assert "demo.again is restored" in out and "3 snapshots, 3 files" in out and "a new UUID" in out
    assert restored(care, "demo.again") == [1, 2, 3]
    assert care.load("demo.again").metadata.table_uuid != photos.metadata.table_uuid


def test_a_dry_run_shows_the_plan_and_changes_nothing(backed_up: Cli):
    before = fingerprint(backed_up.home)
    text = backed_up.prints("restore", "monday", "--to", "demo.again", "--dry-run")
    (plan,) = backed_up.json("restore", "monday", "--to", "demo.again", "--dry-run")
    assert fingerprint(backed_up.home) == before
    assert plan["done"] is False and plan["target"] == "demo.again" and plan["files"] == 3 and plan["uuid"] == "new"
    for word in ("restored as", "demo.again", plan["location"], "register", "→"):
        assert word in text


def test_all_tables_of_a_backup_are_restored_into_another_namespace(cli: Cli, care: UpkeepContext):
    cli.prints("create", "--namespace", "demo", "--name", "both")
    found = cli.json("restore", "both", "--target-namespace", "copy")
    assert [one["name"] for one in found] == ["copy.photos", "copy.videos"]
    assert restored(care, "copy.photos") == [1, 2, 3]


def test_two_tables_are_not_restored_under_one_name(cli: Cli, care: UpkeepContext):
    care.store.catalog.create_namespace("other")
    care.store.catalog.create_table("other.photos", schema=care.load("demo.photos").schema())
    cli.prints("create", "demo.photos", "other.photos", "--name", "both")
    cli.refuses("restore", "both", "--target-namespace", "copy", code=2, says="copy.photos")
    assert not care.store.catalog.table_exists("copy.photos")


def test_where_one_table_is_refused_none_is_restored(cli: Cli, care: UpkeepContext):
    cli.prints("create", "--namespace", "demo", "--name", "both")
    care.store.catalog.drop_table("demo.photos")
    cli.refuses("restore", "both", code=11, says="demo.videos exists")


def test_an_earlier_state_comes_back_by_snapshot_or_time(backed_up: Cli, care: UpkeepContext, photos: Table):
    first = photos.metadata.snapshots[0]
    backed_up.prints("restore", "monday", "--to", "demo.first", "--snapshot", str(first.snapshot_id))
    time = datetime.fromtimestamp(first.timestamp_ms / 1000, UTC) + timedelta(milliseconds=1)
    backed_up.prints("restore", "monday", "--to", "demo.then", "--as-of", time.isoformat())
    assert restored(care, "demo.first") == restored(care, "demo.then") == [1]
    backed_up.refuses("restore", "monday", "--to", "demo.x", "--snapshot", "17", code=10, says="17")
    backed_up.refuses("restore", "monday", "--to", "demo.x", "--as-of", "1999-01-01", code=10, says="1999")
    backed_up.refuses("restore", "monday", "--to", "demo.x", "--as-of", "soon", code=2, says="soon")


def test_replace_exchanges_the_table_and_rollback_brings_it_back(backed_up: Cli, care: UpkeepContext, photos: Table):
    grow(photos)
    uuid = photos.metadata.table_uuid
    out = backed_up.prints("restore", "monday", "--replace")
    assert "undo: frazil backup rollback demo.photos" in out
    assert restored(care, "demo.photos") == [1, 2, 3] and care.load("demo.photos").metadata.table_uuid == uuid
    before = fingerprint(backed_up.home)
    assert backed_up.json("rollback", "demo.photos", "--dry-run")["done"] is False
    assert fingerprint(backed_up.home) == before
    backed_up.prints("rollback", "demo.photos")
    assert restored(care, "demo.photos") == [1, 2, 3, 4]
    backed_up.refuses("rollback", "demo.photos", code=10, says="nothing to roll back")


def test_rollback_loses_no_commits_unless_it_is_told_to(backed_up: Cli, care: UpkeepContext):
    backed_up.prints("restore", "monday", "--replace")
    grow(care.load("demo.photos"))
    backed_up.refuses("rollback", "demo.photos", code=11, says="--discard-newer")
    backed_up.prints("rollback", "demo.photos", "--discard-newer")
    assert restored(care, "demo.photos") == [1, 2, 3]


def test_a_target_that_exists_is_refused_or_left_alone(backed_up: Cli):
    backed_up.refuses("restore", "monday", code=11, says="exists")
    before = fingerprint(backed_up.home)
    assert "left alone" in backed_up.prints("restore", "monday", "--if-not-exists")
    assert fingerprint(backed_up.home) == before


def test_what_there_is_to_replace_must_exist(backed_up: Cli):
    backed_up.refuses("restore", "monday", "--to", "demo.nothing", "--replace", code=10, says="demo.nothing")


@pytest.mark.parametrize(
    ("location", "code"),
    [
        ("{videos}", 12), ("{videos}/data/x", 12), ("{warehouse}", 12), ("{photos}", 12), ("{photos}/inside", 12),
        ("{warehouse}/demo/../demo/videos", 12), ("s3://", 2), ("ftp://x/y", 2), ("relative/path", 2),
    ],
)  # fmt: skip
def test_a_location_in_the_way_of_a_table_is_refused(backed_up: Cli, care: UpkeepContext, location: str, code: int):
    places = {name: str(folder(care.load(f"demo.{name}"))) for name in ("photos", "videos")}
    places["warehouse"] = str(Path(places["photos"]).parents[1])
    where = location.format(**places)
    backed_up.refuses("restore", "monday", "--to", "demo.x", "--target-location", where, code=code, says="Try: ")


def test_a_location_with_files_of_others_is_refused(backed_up: Cli):
    place = backed_up.home / "elsewhere"
    place.mkdir()
    (place / "notes.txt").write_text("mine")
    args = ("restore", "monday", "--to", "demo.x", "--target-location", str(place))
    backed_up.refuses(*args, code=11, says="holds files")


@pytest.mark.parametrize(
    ("args", "code", "says"),
    [
        ((), 2, "no backup is named"),
        (("monday", "--backup-name", "tuesday"), 2, "given twice"),
        (("monday", "--to", "demo.a", "--target-table", "b"), 2, "given twice"),
        (("monday", "--to", "a.b", "--target-database", "c"), 2, "name the namespace once"),
        (("monday", "--table", "demo.fotos"), 10, "Try: demo.photos"),
        (("monday", "--catalog-type", "hive"), 10, "HIVE_METASTORE_URI"),
        (("monday", "--target-catalog", "prod"), 10, "unknown catalog 'prod'"),
        (("monday", "--replace", "--if-not-exists"), 2, "Try: "),
        (("monday", "--to", "demo.x", "--snapshot", "1", "--as-of", "1d"), 2, "one of the two"),
    ],
)
def test_a_wrong_call_of_restore_changes_nothing(backed_up: Cli, args: tuple[str, ...], code: int, says: str):
    backed_up.refuses("restore", *args, code=code, says=says)


def test_options_for_one_table_are_refused_for_several(cli: Cli):
    cli.prints("create", "--namespace", "demo", "--name", "both")
    cli.refuses("restore", "both", "--to", "demo.x", code=2, says="Try: --table demo.photos")


# -- damage ------------------------------------------------------------------------------------------------------------


def test_damage_is_found_and_named_and_does_not_come_back(backed_up: Cli, care: UpkeepContext):
    blob = backed_up.blob()
    content = bytearray(blob.read_bytes())
    content[len(content) // 2] ^= 1
    blob.chmod(0o644)
    blob.write_bytes(content)
    assert backed_up.prints("verify").splitlines()[1].split() == ["monday", "sound"], "a listing does not read"
    code, out, errors = backed_up("verify", "--level", "checksums")
    assert code == 13 and blob.name in out and "monday" in out and "damaged" in out
    code, out, errors = backed_up("verify", "monday", "--level", "checksums", "-o", "json")
    (finding,) = json.loads(out)["findings"]
    assert code == 13 and finding["backups"] == ["monday"] and finding["object"].endswith(blob.name)
    code, _, errors = backed_up("restore", "monday", "--to", "demo.again")
    assert code == 13 and blob.name in errors
    assert not care.store.catalog.table_exists("demo.again")


def test_a_missing_object_is_found_by_the_listing(backed_up: Cli):
    backed_up.blob().unlink()
    code, out, _ = backed_up("verify", "latest")
    assert code == 13 and "missing" in out


def test_a_table_that_lacks_a_data_file_cannot_be_restored_and_others_can(backed_up: Cli):
    backed_up.blob().unlink()
    backed_up.prints("create", "demo.videos", "--name", "tuesday")
    code, out, _ = backed_up("verify", "--level", "restore")
    assert code == 13 and "monday, demo.photos: data/" in out
    assert [line.split()[-1] for line in out.splitlines()[1:3]] == ["no", "yes"]
    backed_up.prints("verify", "tuesday", "--level", "restore")


def test_a_table_that_only_another_backup_has_is_pointed_out(backed_up: Cli):
    backed_up.prints("create", "demo.videos", "--name", "tuesday")
    code, _, errors = backed_up("restore", "latest", "--table", "demo.photos", "--to", "demo.again")
    assert code == 10 and "backup 'monday' has it" in errors
    code, _, errors = backed_up("list", "demo.photo")
    assert code == 10 and "Try: demo.photos" in errors


def test_no_backup_is_named_latest(cli: Cli):
    code, _, errors = cli("create", "demo.photos", "--name", "latest")
    assert code == 2 and "latest" in errors


def test_erasing_can_be_repeated(backed_up: Cli, photos: Table):
    path = photos.inspect.files()["file_path"][0].as_py()
    erase = ("erase", "monday", path, "--reason", "request 7", "--yes")
    assert "1 file erased" in backed_up.prints(*erase)
    assert "1 file had been erased before" in backed_up.prints(*erase)


@pytest.mark.parametrize("level", ["listing", "checksums", "restore"])
def test_a_sound_backup_is_sound_on_every_level(backed_up: Cli, level: str):
    assert "monday" in backed_up.prints("verify", "monday", "--level", level)
    assert backed_up.json("verify", "--level", level)


def test_the_parts_of_a_sample_are_all_of_it(backed_up: Cli):
    whole = backed_up.json("verify", "--level", "checksums")["checked"]["blobs"]
    parts = [backed_up.json("verify", "--sample", f"{n}/3")["checked"]["blobs"] for n in (1, 2, 3)]
    assert sum(parts) == whole
    backed_up.refuses("verify", "--sample", "4/3", code=2, says="4/3")
    backed_up.refuses("verify", "--sample", "third", code=2, says="third")
    backed_up.refuses("verify", "--sample", "1/2", "--level", "checksums", code=2, says="one of the two")


def test_a_damaged_record_is_shown_and_stops_nothing_but_prune(backed_up: Cli, care: UpkeepContext):
    backed_up.prints("create", "demo.photos", "--name", "tuesday")
    record = backed_up.repository / "backups" / "monday.json"
    record.write_text(record.read_text().replace('"copied"', '"CopieD"'))
    code, out, errors = backed_up("list")
    assert code == 0 and "tuesday" in out and "backup 'monday' cannot be used" in errors
    assert backed_up.json("list")[-1]["damaged"] is True
    for args in (("show", "monday"), ("restore", "monday", "--to", "demo.x"), ("prune", "--keep-last", "1", "--yes")):
        backed_up.refuses(*args, code=13, says="monday")
    assert backed_up("verify")[0] == 13
    backed_up.prints("restore", "tuesday", "--to", "demo.again")
    assert restored(care, "demo.again") == [1, 2, 3]
    backed_up.prints("delete", "monday", "--yes")
    backed_up.prints("prune", "--keep-last", "1")


@pytest.mark.parametrize("change", [("format", 2), ("features", ["chunks"])])
def test_a_newer_record_is_refused(backed_up: Cli, change: tuple[str, Any]):
    from frazil.backup.format import seal

    record = backed_up.repository / "backups" / "monday.json"
    found = {k: v for k, v in json.loads(record.read_text()).items() if k not in ("format", "features", "sha256")}
    record.write_bytes(seal({**found, change[0]: change[1]}))
    errors = backed_up.refuses("show", "monday", code=1, says="newer" if change[0] == "format" else "chunks")
    assert "version of Frazil" in errors


def test_what_is_no_repository_is_refused(backed_up: Cli):
    (backed_up.repository / "repository.json").write_text("{}")
    backed_up.refuses("list", code=13, says="repository.json")


# -- prune, delete, erase ----------------------------------------------------------------------------------------------


def test_prune_only_shows_its_plan_unless_it_is_confirmed(backed_up: Cli, photos: Table):
    grow(photos)
    backed_up.prints("create", "demo.photos", "--name", "tuesday")
    before = fingerprint(backed_up.home)
    plan = backed_up.json("prune", "--keep-last", "1")
    assert plan["drop"] == ["monday"] and plan["keep"] == {"tuesday": ["last"]} and plan["done"] is False
    code, out, errors = backed_up("prune", "--keep-last", "1")
    assert code == 0 and "drop" in out and "nothing was deleted" in errors
    backed_up.json("prune", "--keep-last", "1", "--dry-run")
    assert fingerprint(backed_up.home) == before
    assert "dropped  monday" in backed_up.prints("prune", "--keep-last", "1", "--yes")
    assert [one["name"] for one in backed_up.json("list")] == ["tuesday"]


def test_what_no_backup_needs_is_marked_and_deleted_by_a_later_run(backed_up: Cli, care: UpkeepContext):
    backed_up.prints("create", "demo.videos", "--name", "tuesday")
    backed_up.settings["backup.prune_wait_s"] = "0.001"
    backed_up.prints("delete", "monday", "--yes")
    assert backed_up.json("prune", "--yes")["marked"]["blobs"] > 0
    assert backed_up.json("prune", "--yes")["deleted"]["blobs"] > 0
    report = backed_up.json("verify")
    assert report["sound"] and report["unreferenced"]["blobs"] == 0
    backed_up.prints("restore", "tuesday", "--to", "demo.again")
    assert restored(care, "demo.again") == [1]


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (("prune", "--keep-last", "0"), "--keep-last"),
        (("prune", "--keep-within", "soon"), "soon"),
        (("prune", "--keep-last", "1", "--yes", "--dry-run"), "one of them"),
        (("delete", "monday"), "requires --yes"),
    ],
)
def test_a_wrong_call_of_prune_changes_nothing(backed_up: Cli, args: tuple[str, ...], says: str):
    backed_up.refuses(*args, code=2, says=says)


def test_erased_content_is_told_from_damage_and_is_left_out_of_a_restore(
    backed_up: Cli, care: UpkeepContext, photos: Table
):
    path = str(photos.inspect.files()["file_path"][0])
    backed_up.refuses("erase", "monday", path, "--reason", "request 7", code=2, says="requires --yes")
    backed_up.refuses("erase", "monday", f"{path}x", "--reason", "r", "--yes", code=10, says="has no file")
    assert backed_up.json("erase", "monday", path.removeprefix("file://"), "--reason", "request 7", "--yes")["done"]
    code, out, _ = backed_up("verify", "--level", "checksums")
    assert code == 0 and "erased" in out and "request 7" in out
    backed_up.refuses("restore", "monday", "--to", "demo.x", code=12, says="erased")
    backed_up.prints("restore", "monday", "--to", "demo.x", "--allow-erased")
    assert len(restored(care, "demo.x")) == 2


# -- policies ----------------------------------------------------------------------------------------------------------


def policies(cli: Cli, **more: str) -> None:
    cli.settings |= {
        "backup.metrics_file": str(cli.home / "frazil.prom"),
        **{f"backup.policies.{name.replace('__', '.')}": value for name, value in more.items()},
    }


def test_policies_back_up_what_is_due_and_then_nothing(cli: Cli):
    policies(cli, photos__tables="demo.ph*", videos__tables="demo.videos", videos__every_s="3600")
    assert [one["due"] for one in cli.json("run", "--dry-run")] == [True, True]
    assert not cli.repository.exists()
    ran = cli.json("run")
    assert [(one["policy"], one["tables"]) for one in ran] == [("photos", 1), ("videos", 1)]
    assert [one["due"] for one in cli.json("run")] == [False, False]
    assert [one["name"].split("-")[0] for one in cli.json("list")] == ["photos", "videos"]
    assert "not due" in cli.prints("run")
    found = read_metrics(cli.home / "frazil.prom")
    assert found["photos"].tables == 1 and found["photos"].failures == 0 and found["videos"].interval_seconds == 3600


def test_a_policy_prunes_its_own_backups_and_no_others(backed_up: Cli, monkeypatch: pytest.MonkeyPatch):
    policies(backed_up, photos__tables="demo.photos", photos__keep_last="1")
    names = iter(f"photos-2026010{n}T000000Z" for n in (1, 2, 3))
    monkeypatch.setattr("frazil.backup.policies.backup_name", lambda policy, now: next(names))
    for _ in range(3):
        (ran,) = backed_up.json("run", "photos", "--force")
    assert ran["dropped"] == ["photos-20260102T000000Z"]
    assert [one["name"] for one in backed_up.json("list")] == ["monday", "photos-20260103T000000Z"]


def test_a_policy_that_fails_does_not_stop_the_others_and_is_counted(cli: Cli):
    policies(cli, photos__tables="demo.photos, demo.gone", sales__tables="sales.*", videos__tables="demo.videos")
    code, _, errors = cli("run")
    assert code == 3 and "2 of 3 policies failed" in errors and "'demo.gone'" in errors and "sales.*" in errors
    assert len(cli.json("list")) == 2
    code, _, errors = cli("run")
    assert code == 10, "the only one that is due now has its own exit code"
    found = read_metrics(cli.home / "frazil.prom")
    assert (found["sales"].failures, found["photos"].failures, found["videos"].failures) == (2, 1, 0)
    assert found["sales"].last_success_timestamp_seconds == 0


def test_a_repository_that_cannot_be_read_is_a_failure_too(cli: Cli):
    policies(cli, videos__tables="demo.videos")
    cli.json("run")
    (cli.repository / "repository.json").write_text("{}")
    assert cli("run")[0] == 13
    found = read_metrics(cli.home / "frazil.prom")["videos"]
    assert found.failures == 1 and found.bytes > 0, "what was known stays"


def test_policies_that_do_not_exist_are_refused(cli: Cli):
    cli.refuses("run", code=10, says="no policies")
    policies(cli, videos__tables="demo.videos")
    cli.refuses("run", "vidoes", code=10, says="one of: videos")


# -- what earlier backups list, and the repository lost ----------------------------------------------------------------


@pytest.mark.parametrize("loss", ["deleted", "truncated"])
def test_a_new_backup_copies_again_what_the_repository_has_lost(backed_up: Cli, care: UpkeepContext, loss: str):
    """It would lack the file as the earlier one does, which it trusts, and would be listed all the same."""
    blob = backed_up.blob()
    if loss == "deleted":
        blob.unlink()
    else:
        blob.chmod(0o644)
        blob.write_bytes(blob.read_bytes()[:-1])
    assert backed_up("verify")[0] == 13
    backed_up.prints("create", "demo.photos", "--name", "tuesday")
    assert backed_up.json("verify", "--level", "checksums")["sound"], "which mends the earlier backup too"
    backed_up.prints("restore", "tuesday", "--to", "demo.again")
    assert restored(care, "demo.again") == [1, 2, 3]


def test_a_new_backup_stores_lost_metadata_again(backed_up: Cli):
    for file in sorted((backed_up.repository / "meta").rglob("*.zst")):
        file.unlink()
        code, _, errors = backed_up("create", "demo.photos")
        assert code == 0, errors
    assert backed_up.json("verify", "latest", "--level", "checksums")["sound"]


# -- repair ------------------------------------------------------------------------------------------------------------


def flip(file: Path) -> None:
    """Flips a bit in the middle of a file."""
    file.chmod(0o644)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_damaged_and_missing_objects_come_back_from_the_files_of_the_table(backed_up: Cli, care: UpkeepContext):
    one, other, *_ = (file for file in sorted((backed_up.repository / "data").rglob("*")) if file.is_file())
    one.unlink()
    flip(other)
    metadata = folder(care.load("demo.photos")) / "metadata"
    for path in metadata.glob("*-m0.avro"):
        name = str(BlobRef.of(path.read_bytes()))
        (backed_up.repository / "meta" / name.partition("-")[2][:2] / f"{name}.zst").unlink()
    verify = ("verify", "--repair", "--level", "checksums")
    backed_up.refuses(*verify, code=2, says="requires --yes")
    out = backed_up.prints(*verify, "--yes")
    assert str(folder(care.load("demo.photos"))) in out and "sound" in out
    assert backed_up.json("verify", "--level", "checksums")["sound"]
    backed_up.prints("restore", "monday", "--to", "demo.again")
    assert restored(care, "demo.again") == [1, 2, 3]


def test_a_file_with_other_bytes_repairs_nothing(backed_up: Cli, care: UpkeepContext):
    blob = backed_up.blob()
    size, digest = blob.name.split("-")
    (source,) = (f for f in folder(care.load("demo.photos")).rglob("*.parquet") if blob_name(f) == f"{size}-{digest}")
    flip(source)
    blob.unlink()
    out = backed_up.prints("verify", "--repair", "--yes", code=13)
    assert "1 object cannot be brought back" in out
    assert not blob.exists()
    source.unlink()
    assert "1 object cannot be brought back" in backed_up.prints("verify", "--repair", "--yes", code=13)


def test_erased_content_does_not_come_back_where_its_tombstone_is_damaged(
    backed_up: Cli, photos: Table, tmp_path: Path
):
    older, newer = tmp_path / "older", tmp_path / "newer"
    path = str(photos.inspect.files()["file_path"][0])
    blob = next(f for f in (backed_up.repository / "data").rglob("*") if f.name == blob_name(Path(local_path(path))))
    shutil.copytree(backed_up.repository, older)
    backed_up.prints("erase", "monday", path, "--reason", "request 7", "--yes")
    shutil.copytree(backed_up.repository, newer)
    tombstone = blob.with_name(f"{blob.name}.erased")
    repair = ("verify", "--repair", "--level", "checksums", "--yes")
    flip(tombstone)
    for more in ((), ("--from", str(older))):
        assert "erased on purpose" in backed_up.prints(*repair, *more, code=13)
        assert not blob.exists() and Path(local_path(path)).exists()
    backed_up.prints(*repair, "--from", str(newer))
    assert not blob.exists()
    assert "request 7" in backed_up.prints("verify", "--level", "checksums")


@pytest.mark.parametrize("step", ["before", "while"])
def test_content_that_is_erased_after_the_plan_of_a_repair_stays_erased(backed_up: Cli, step: str):
    repository = Repository.open(str(backed_up.repository), s3=S3Settings(), network=NetworkSettings())
    blob = backed_up.blob()
    flip(blob)
    ref = BlobRef.parse(blob.name)
    key = data_key(ref)
    (repair,) = plan_repair(repository, [key], None, lambda table: S3Settings())
    if step == "before":
        repository.erase(ref, "request 7")
        run_repair(repository, [repair])
    else:

        def run() -> None:
            repository.erase(ref, "request 7")
            repair.run()

        run_repair(repository, [Repair(key, repair.source, run)])
    assert not blob.exists()


@pytest.mark.deep
def test_all_that_a_restore_needs_comes_back_from_a_copy_of_the_repository(
    backed_up: Cli, care: UpkeepContext, tmp_path: Path
):
    copy = tmp_path / "copy"
    shutil.copytree(backed_up.repository, copy)
    table = folder(care.load("demo.photos"))
    table.rename(table.with_name("away"))
    for part in ("meta", "data"):
        for number, file in enumerate(sorted(f for f in (backed_up.repository / part).rglob("*") if f.is_file())):
            if number % 2:
                file.unlink()
            else:
                flip(file)
    flip(backed_up.repository / "backups" / "monday.json")
    for _ in range(3):  # lists that are missing hide what they list
        code, _, errors = backed_up("verify", "--repair", "--from", str(copy), "--level", "checksums", "--yes")
    assert code == 0, errors
    backed_up.prints("restore", "monday", "--to", "demo.again")
    assert restored(care, "demo.again") == [1, 2, 3]
    backed_up.refuses("verify", "--from", str(copy), code=2, says="--repair")


def blob_name(file: Path) -> str:
    return str(BlobRef.of(file.read_bytes()))
