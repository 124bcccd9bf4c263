"""The commands of documents, in this process: what they print, what they refuse, and which exit codes they give."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import structlog
import typer

from frazil.cli import docs
from frazil.cli.docs_session import split_settings
from frazil.cli.invocation import Run
from frazil.cli.run import run_command
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import Write


class Cli:
    """Runs commands in a home folder of its own."""

    def __init__(self, home: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.home, self._capfd, self._monkeypatch = home, capfd, monkeypatch

    def __call__(self, *args: str, stdin: str = "") -> tuple[int, str, str]:
        self._capfd.readouterr()
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        code = run_command("docs", "docs", [*args, "--set", f"home={self.home}"])
        out, errors = self._capfd.readouterr()
        return code, out, errors

    def ok(self, *args: str, stdin: str = "") -> str:
        code, out, errors = self(*args, stdin=stdin)
        assert code == 0, errors
        return out

    def json(self, *args: str, stdin: str = "") -> Any:
        return json.loads(self.ok(*args, "--output", "json", stdin=stdin))

    def fails(self, *args: str, code: int, says: str, stdin: str = "") -> str:
        got, out, errors = self(*args, stdin=stdin)
        assert got == code, errors
        assert "error: " in errors and "Try: " in errors and "Traceback" not in errors
        assert says in errors, errors
        return out


@pytest.fixture
def cli(tmp_path, capfd, monkeypatch) -> Iterator[Cli]:
    monkeypatch.chdir(tmp_path)
    yield Cli(tmp_path / "home", capfd, monkeypatch)
    structlog.reset_defaults()  # a command has told it to write to what was standard error then


@pytest.fixture(scope="module")
def documents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with twelve documents."""
    file = tmp_path_factory.mktemp("documents") / "documents.db"
    with SqlDocumentStore(f"sqlite:///{file}") as store:
        store.add_column("pages", "long")
        store.write(
            [
                Write("put", f"d{n}", {
                    "filename": f"file {n}.pdf", "size_bytes": n * 1000, "created_at": 1_700_000_000 + n,
                    "provider": "aws" if n % 2 else None, "storage_tier": "archive" if n % 3 == 0 else "standard",
                    "tags": {"n": str(n)} if n % 4 == 0 else {"all": ""},
                })
                for n in range(1, 13)
            ]
        )  # fmt: skip
    return file


@pytest.fixture
def filled(cli: Cli, documents: Path) -> Cli:
    cli.home.mkdir()
    shutil.copy(documents, cli.home)
    return cli


def ids(found: Any) -> list[str]:
    return [document["document_id"] for document in found["documents"]]


# -- put, update, delete -----------------------------------------------------------------------------------------------


def test_a_document_is_put_from_options(cli):
    made = cli.json(
        "put", "--filename", "report.pdf", "--size", "2MB", "--type", "application/pdf", "--storage-tier", "archive",
        "--provider", "aws", "--bucket", "b", "--key", "k/report.pdf", "--created-at", "2024-01-31",
        "--tag", "project=apollo", "--tag", "empty=", "--set", "checksum=sha256:abcd",
        "--set", 'attributes={"pages": 12}',
    )  # fmt: skip
    assert made == {
        "document_id": made["document_id"], "filename": "report.pdf", "content_type": "application/pdf",
        "size_bytes": 2_000_000, "checksum": "sha256:abcd", "provider": "aws", "bucket": "b",
        "object_key": "k/report.pdf", "version_id": None, "storage_tier": "archive", "restore_status": "none",
        "restore_requested_at": None, "restore_expiry": None, "created_at": "2024-01-31T00:00:00.000000Z",
        "updated_at": made["updated_at"], "tags": {"project": "apollo", "empty": ""}, "attributes": {"pages": 12},
        "revision": 1,
    }  # fmt: skip
    assert cli.json("get", made["document_id"]) == made


def test_a_document_is_put_from_json_and_options_win(cli, tmp_path):
    (tmp_path / "a.json").write_text('{"document_id": "a", "filename": "a", "size_bytes": 1, "tags": {"x": "1"}}')
    made = cli.json("put", "--json", "a.json", "--size", "5", "--tag", "y=2")
    assert (made["document_id"], made["size_bytes"], made["tags"]) == ("a", 5, {"x": "1", "y": "2"})
    assert cli.json("put", "b", "--json", "-", stdin='{"filename": "b"}')["document_id"] == "b"


def test_put_replaces_all_and_update_changes_some(cli):
    cli.ok("put", "a", "--filename", "a", "--size", "5", "--tag", "x=1", "--tag", "y=2")
    updated = cli.json("update", "a", "--set", "filename=b", "--tag", "z=3", "--untag", "x")
    assert (updated["filename"], updated["size_bytes"], updated["tags"]) == ("b", 5, {"y": "2", "z": "3"})
    cleared = cli.json("update", "a", "--set", "size_bytes=", "--json", "-", stdin='{"attributes": {"p": 1}}')
    assert (cleared["size_bytes"], cleared["attributes"], cleared["revision"]) == (None, {"p": 1}, 3)
    replaced = cli.json("put", "a", "--filename", "c")
    assert (replaced["tags"], replaced["attributes"], replaced["revision"]) == ({}, {}, 4)


def test_the_restore_of_the_source_document_works_by_update(cli):
    cli.ok("put", "abc123", "--filename", "a", "--storage-tier", "archive")
    found = cli.json("update", "abc123", "--set", "restore_status=restored", "--set", "restore_expiry=4102444800000")
    assert (found["storage_tier"], found["restore_expiry"]) == ("archive", "2100-01-01T00:00:00.000000Z")


def test_a_revision_that_was_overtaken_is_refused(cli):
    cli.ok("put", "a", "--filename", "a", "--if-match", "0")
    cli.fails("put", "a", "--filename", "a", "--if-match", "0", code=11, says="expects that it does not exist")
    cli.ok("update", "a", "--tag", "x=1", "--if-match", "1")
    cli.fails("update", "a", "--tag", "x=2", "--if-match", "1", code=11, says="has revision 2")
    cli.fails("delete", "a", "--if-match", "1", code=11, says="has revision 2")
    assert cli.json("get", "a")["tags"] == {"x": "1"}


def test_a_repeated_request_with_its_key_is_applied_once(cli):
    first = cli.json("put", "--filename", "a", "--idempotency-key", "k1")
    assert cli.json("put", "--filename", "a", "--idempotency-key", "k1") == first
    cli.fails("put", "--filename", "b", "--idempotency-key", "k1", code=11, says="belongs to another request")
    assert cli.json("stats")["total_documents"] == 1


def test_deleted_documents_come_back_all_or_none(filled):
    assert filled.ok("delete", "d1", "d2") == "d1: deleted, revision 2\nd2: deleted, revision 2\n"
    filled.fails("get", "d1", code=10, says="frazil docs undelete d1")
    filled.fails("update", "d1", "--tag", "x=1", code=10, says="was deleted")
    filled.fails("delete", "d3", "d1", code=10, says="write 2 of 2, and none was applied")
    assert filled.json("get", "d3")["revision"] == 1
    undone = filled.json("undelete", "d1", "d2")
    assert undone == [{"document_id": i, "revision": 3, "operation": "undelete"} for i in ("d1", "d2")]
    assert filled.json("get", "d1")["filename"] == "file 1.pdf"


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["put"], "field 'filename' is missing"),
        (["put", "--filename", "a", "--storage-tier", "cold"], "one of: standard, infrequent, archive, deep_archive"),
        (["put", "--filename", "a", "--size", "much"], "is not a size"),
        (["put", "--filename", "a", "--tag", "x"], "--tag x has no value"),
        (["put", "--filename", "a", "--set", "x"], "--set x has no value"),
        (["put", "--filename", "a", "--set", "colour=red"], "field 'colour' does not exist"),
        (["put", "--filename", "a", "--set", "size_bytes=x"], "field 'size_bytes' is invalid: 'x'"),
        (["put", "--filename", "a", "--created-at", "soon"], "field 'created_at' is invalid"),
        (["put", "a b", "--filename", "a"], "field 'document_id' is invalid"),
        (["put", "--json", "-"], "standard input is no JSON"),
        (["update", "d1"], "no change is given"),
        (["update", "d1", "--set", "created_at=2020-01-01"], "cannot be changed"),
        (["update", "d1", "--set", "filename="], "cannot be cleared"),
        (["delete", "d1", "d2", "--if-match", "1"], "--if-match is for one document"),
        (["list", "--cursor", "forged"], "cursor"),
        (["list", "--all", "--cursor", "x"], "--all begins with the first page"),
        (["list", "--start-date", "someday"], "field 'start_date' is invalid"),
        (["list", "--storage-tier", "cold"], "is not one of"),
        (["list", "--via", "table"], "--via table is for the Iceberg store, and this is sqlite"),
        (["stats", "--explain"], "--explain is about reads of the tables"),
        (["export", "all.txt"], "does not tell the format"),
        (["export", "-"], "the format of standard input or output is not known"),
        (["export", "a.csv", "--history", "--provider", "aws"], "--history exports all revisions"),
        (["schema", "add-column", "Pages", "long"], "column name 'Pages' is invalid"),
        (["schema", "add-column", "filename", "string"], "is taken"),
    ],
)
def test_wrong_usage_is_told_and_changes_nothing(filled, args: list[str], says: str):
    before = filled.json("list", "--all")
    filled.fails(*args, code=2, says=says)
    assert filled.json("list", "--all") == before


def test_what_does_not_exist_is_told(filled):
    for args in (["get", "x"], ["history", "x"], ["update", "x", "--tag", "a=b"], ["get", "d1", "--as-of", "7d"]):
        filled.fails(*args, code=10, says="exist")
    filled.fails("put", "--json", "missing.json", code=10, says="file missing.json does not exist")
    filled.fails("import", "missing.csv", code=10, says="file missing.csv does not exist")


def test_an_error_as_json_has_its_fields(filled):
    code, out, errors = filled("get", "x", "--output", "json")
    assert (code, out) == (10, "")
    assert json.loads(errors)["error"] == "NotFoundError"


@pytest.mark.parametrize(
    ("given", "settings", "fields"),
    [
        (["filename=a", "database.url=sqlite:///x.db"], ("database.url=sqlite:///x.db",), {"filename": "a"}),
        (["home=/x", "log.level=1", "content=a"], ("home=/x", "log.level=1"), {"content": "a"}),
        (["attributes.pages=1"], (), {"attributes.pages": "1"}),
        (["tags={}", "checksum="], (), {"tags": "{}", "checksum": ""}),
    ],
)
def test_set_takes_fields_and_settings(given, settings, fields):
    run, found = split_settings(Run(), given)
    assert (run.set_, found) == (settings, fields)


# -- get, list, history, stats -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "found"),
    [
        (["--storage-tier", "archive"], "d12 d9 d6 d3"),
        (["--provider", "aws", "--max-size", "3KB"], "d3 d1"),
        (["--min-size", "11KB", "--max-size", "11000"], "d11"),
        (["--tag", "n"], "d12 d8 d4"),
        (["--tag", "n=8"], "d8"),
        (["--name-prefix", "file 1"], "d12 d11 d10 d1"),
        (["--words", "PDF 12"], "d12"),
        (["--start-date", "1700000011"], "d12 d11"),
        (["--end-date", "2023-11-14T22:13:22Z"], "d1"),
        (["--restore-status", "requested"], ""),
        (["--sort", "size_bytes", "--ascending", "--limit", "2"], "d1 d2"),
        (["--sort", "document_id", "--limit", "3"], "d1 d10 d11"),
        (["--sort", "filename", "--descending", "--limit", "1"], "d9"),
        (["--bucket", "b"], ""),
        (["--as-of", "7d"], ""),
    ],
)
def test_filters_and_orders(filled, options: list[str], found: str):
    assert ids(filled.json("list", *options)) == found.split()


def test_pages_follow_each_other(filled):
    first = filled.json("list", "--limit", "5")
    second = filled.json("list", "--limit", "5", "--cursor", first["next_cursor"])
    third = filled.json("list", "--limit", "5", "--cursor", second["next_cursor"])
    assert third["next_cursor"] is None
    assert ids(first) + ids(second) + ids(third) == ids(filled.json("list", "--all")) == [
        f"d{n}" for n in range(12, 0, -1)
    ]  # fmt: skip
    _, out, errors = filled("list", "--limit", "5")
    assert len(out.splitlines()) == 6
    assert "--cursor " in errors


def test_all_pages_are_one_json_object_and_one_table(filled, monkeypatch):
    monkeypatch.setattr("frazil.cli.docs_read._PAGE", 5)
    whole = filled.json("list", "--all", "--name-prefix", "file")
    assert (len(whole["documents"]), whole["next_cursor"]) == (12, None)
    assert filled.json("list", "--all", "--bucket", "x") == {"documents": [], "next_cursor": None}
    lines = filled.ok("list", "--all").splitlines()
    assert [line.split()[0] for line in lines] == ["document_id", *(f"d{n}" for n in range(12, 0, -1))]
    assert filled.ok("list", "--all", "--bucket", "x") == "(no documents)\n"


def test_the_past_is_shown_as_it_was(filled):
    moment = filled.json("history", "d1")[0]["valid_from"]
    filled.ok("update", "d1", "--set", "filename=renamed", "--tag", "x=1", "--set", "pages=7")
    filled.ok("delete", "d2")
    assert filled.json("get", "d1", "--as-of", moment)["filename"] == "file 1.pdf"
    assert filled.json("get", "d1")["pages"] == 7
    assert len(ids(filled.json("list", "--as-of", moment))) == 12
    assert filled.json("stats", "--as-of", moment)["total_documents"] == 12
    assert filled.json("stats")["total_documents"] == 11
    text = filled.ok("history", "d1")
    assert "filename: file 1.pdf → renamed" in text
    assert "pages: - → 7" in text
    assert [r["operation"] for r in filled.json("history", "d2")] == ["put", "delete"]


def test_statistics_for_people_and_programs(filled):
    found = filled.json("stats")
    assert found["by_tier"] == {"archive": 4, "standard": 8}
    assert found["by_provider"] == {"aws": 6, "unknown": 6}
    assert found["total_size_bytes"] == 78_000
    text = filled.ok("stats")
    assert "documents  12" in text and "78,000 bytes" in text


def test_names_of_strangers_cannot_move_the_cursor(cli):
    cli.ok("put", "a", "--filename", "x\u202egnp.exe", "--tag", "t=\u2028")
    assert "\\u202e" in cli.ok("list")
    assert "\\u202e" in cli.ok("get", "a")
    assert "\u202e" not in cli.ok("history", "a")


# -- import, export ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["csv", "ndjson", "parquet"])
def test_an_export_is_imported_into_another_store(filled, tmp_path, form: str):
    filled.ok("update", "d1", "--set", "pages=3")
    filled.ok("delete", "d2")
    other = ("--set", f"database.url=sqlite:///{tmp_path / 'other.db'}")
    filled.ok("schema", "add-column", "pages", "long", *other)
    report = filled.json("export", f"all.{form}", "--history")
    assert report == {"file": f"all.{form}", "format": form, "revisions": 14}
    assert filled.json("import", f"all.{form}", *other)["created"] == 12
    assert filled.json("list", "--all", *other) == filled.json("list", "--all")
    assert filled.json("history", "d2", *other) == filled.json("history", "d2")


def test_an_export_chooses_by_filters_and_goes_to_standard_output(filled):
    code, out, errors = filled("export", "-", "--format", "csv", "--storage-tier", "archive")
    assert (code, errors) == (0, "4 documents written\n")
    assert [row["document_id"] for row in csv.DictReader(io.StringIO(out))] == ["d3", "d6", "d9", "d12"]


def test_an_export_does_not_replace_a_file_unless_forced(filled, tmp_path):
    filled.ok("export", "a.parquet")
    before = (tmp_path / "a.parquet").read_bytes()
    filled.fails("export", "a.parquet", "--provider", "aws", code=2, says="exists already")
    assert (tmp_path / "a.parquet").read_bytes() == before
    filled.ok("export", "a.parquet", "--provider", "aws", "--force")
    assert pq.read_metadata(tmp_path / "a.parquet").num_rows == 6


def test_bad_rows_are_listed_and_nothing_is_imported(filled):
    rows = '{"filename": "good"}\n{"filename": ""}\n\n{"size": 1}\n'
    _, _, errors = filled("import", "-", "--format", "ndjson", stdin=rows)
    assert "2 of 3 rows are bad, and nothing was imported" in errors
    assert "line 2: field 'filename' is invalid" in errors
    assert "line 4: field 'size' does not exist" in errors
    code, _, errors = filled("import", "-", "--format", "ndjson", "--output", "json", stdin=rows)
    assert (code, [row["line"] for row in json.loads(errors)["bad"]]) == (2, [2, 4])
    assert filled.json("stats")["total_documents"] == 12


def test_bad_rows_go_to_a_file_on_request(filled, tmp_path):
    rows = 'filename,size_bytes\ngood,1\nbad,x\n"also good",\n'
    _, out, errors = filled("import", "-", "--format", "csv", "--skip-bad", "bad.ndjson", stdin=rows)
    assert out == "2 created, 0 replaced, 0 unchanged\n"
    assert "1 of 3 rows is bad, and in bad.ndjson" in errors
    (bad,) = map(json.loads, (tmp_path / "bad.ndjson").read_text().splitlines())
    assert bad["line"] == 3
    assert bad["row"] == {"filename": "bad", "size_bytes": "x"}
    filled.fails(
        "import", "-", "--format", "csv", "--skip-bad", "no/such/bad", code=12, says="cannot write no/such/bad"
    )


def test_parquet_comes_from_standard_input_too(filled, tmp_path, monkeypatch):
    filled.ok("export", "a.parquet")
    content = (tmp_path / "a.parquet").read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    code = run_command("docs", "docs", ["import", "-", "--format", "parquet", "--set", f"home={filled.home}"])
    assert code == 0


# -- migrate, verify, schema -------------------------------------------------------------------------------------------


def test_a_migration_shows_its_plan_first_and_is_verified(filled, tmp_path):
    target = f"sqlite:///{tmp_path / 'target.db'}"
    words = ["migrate", "--from", "sqlite", "--to", target]
    out = filled.fails(*words, code=2, says="a migration requires --yes")
    assert "12 (76.2 KiB), with their history" in out
    plan = filled.json(*words, "--dry-run")
    assert (plan["documents"], plan["add_columns"], plan["done"]) == (12, [{"name": "pages", "type": "long"}], False)
    assert not (tmp_path / "target.db").exists()
    text = filled.ok(*words, "--yes")
    assert "12 revisions were copied" in text and "verified: 12 documents, hash " in text
    done = filled.json(*words, "--yes")
    assert (done["revisions_loaded"], done["verified"]["revisions"]["count"], done["done"]) == (0, 12, True)
    assert filled.json("list", "--all", "--set", f"database.url={target}") == filled.json("list", "--all")
    assert "continues after" in filled.ok(*words, "--dry-run")


@pytest.mark.parametrize(
    ("source", "target", "code", "says"),
    [
        ("sqlite", "sqlite", 2, "the same store"),
        ("sqlite", "oracle", 2, "'oracle' is no store"),
        ("sqlite:///missing.db", "sqlite", 10, "missing.db does not exist"),
        ("mysql", "sqlite", 2, "the URL of the mysql store is not known"),
        ("sqlite", "mysql://someone:hidden@127.0.0.1:1/x", 1, "cannot reach the database"),
    ],
)
def test_a_migration_that_cannot_be_is_refused(filled, source: str, target: str, code: int, says: str):
    _, _, errors = filled("migrate", "--from", source, "--to", target, "--yes")
    assert "hidden" not in errors
    filled.fails("migrate", "--from", source, "--to", target, "--yes", code=code, says=says)


def test_a_target_of_somebody_else_is_refused(filled, tmp_path):
    target = f"sqlite:///{tmp_path / 'target.db'}"
    with SqlDocumentStore(target) as store:
        store.put_metadata({"document_id": "mine", "filename": "mine"})
    filled.fails("migrate", "--from", "sqlite", "--to", target, "--yes", code=11, says="document 'mine'")
    with SqlDocumentStore(target) as store:
        assert [d.document_id for d in store.list_metadata()] == ["mine"]


def test_verify_finds_what_does_not_agree(filled):
    filled.ok("update", "d1", "--tag", "x=1")
    assert filled.ok("verify") == "12 documents, 13 revisions\nsound\n"
    import sqlite3

    with sqlite3.connect(filled.home / "documents.db") as connection:
        connection.execute("UPDATE documents SET filename = 'other' WHERE document_id = 'd5'")
        connection.execute("UPDATE document_history SET revision = 3 WHERE document_id = 'd1' AND revision = 2")
    connection.close()
    code, out, _ = filled("verify", "--output", "json")
    found = json.loads(out)
    assert (code, found["sound"]) == (13, False)
    assert any("document 'd1' has gaps" in finding for finding in found["findings"])
    assert any("not the last revisions of the history" in finding for finding in found["findings"])
    filled.fails("verify", code=13, says="faults")


def test_columns_are_added_to_a_live_store(cli):
    cli.ok("put", "a", "--filename", "a")
    added = cli.json("schema", "add-column", "pages", "long")
    assert added == {"field": "pages", "type": "long", "added": True}
    assert cli.json("schema", "add-column", "pages", "long") == added
    cli.fails("schema", "add-column", "pages", "string", code=11, says="exists with type long")
    shown = {row["field"]: row for row in cli.json("schema", "show")}
    assert shown["pages"] == added
    assert shown["attributes"] == {"field": "attributes", "type": "json", "added": False}
    assert cli.json("update", "a", "--set", "pages=12")["pages"] == 12
    cli.fails("update", "a", "--set", "pages=twelve", code=2, says="field 'pages' is invalid")


def test_every_help_page_ends_with_an_example(capfd):
    def pages(command: Any, words: list[str]) -> Iterator[list[str]]:
        yield words
        for name, below in getattr(command, "commands", {}).items():
            yield from pages(below, [*words, name])

    found = list(pages(typer.main.get_command(docs.app), []))
    assert len(found) > 14
    for words in found:
        capfd.readouterr()
        assert run_command("docs", "docs", [*words, "--help"]) == 0
        assert "Example: frazil docs" in " ".join(capfd.readouterr().out.splitlines()[-3:]), words
