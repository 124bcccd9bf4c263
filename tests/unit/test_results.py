"""Rows of a query, as each form of output shows them and as `--out` leaves them on the disk."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import stat
import sys
import threading
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from frazil.cli.results import check_output, write_result
from frazil.cli.run import run_command
from frazil.errors import NotAllowedError, UnavailableError, UsageError
from frazil.query import Result

ROWS = pa.table({"x": [1]})
TWICE = pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"])
NO_COLUMNS = pa.table({})


def printed(table: pa.Table, output: str, folder: Path) -> str:
    write_result(table, output, folder / "printed")
    return (folder / "printed").read_text()


# What is written


@pytest.mark.parametrize(("output", "text"), [("text", "a  a\n1  2\n"), ("csv", "a,a\n1,2\n")])
def test_columns_of_the_same_name_are_all_shown(tmp_path, capsys, output, text):
    assert printed(TWICE, output, tmp_path) == text
    write_result(TWICE, output, None)
    assert capsys.readouterr().out == text


def test_json_refuses_columns_of_the_same_name_before_it_prints(capsys):
    with pytest.raises(UsageError, match=r"same name.*: a") as refused:
        write_result(TWICE, "json", None)
    assert refused.value.hint == "give the columns different names with AS"
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("output", "text"), [("text", ""), ("csv", ""), ("json", "[]\n")])
def test_a_statement_without_columns_shows_nothing(tmp_path, output, text):
    assert printed(NO_COLUMNS, output, tmp_path) == text


@pytest.mark.parametrize(("output", "text"), [("text", "x\n"), ("csv", "x\n"), ("json", "[]\n")])
def test_columns_without_rows_keep_their_head(tmp_path, output, text):
    assert printed(ROWS.slice(0, 0), output, tmp_path) == text


def test_booleans_are_true_and_false_in_csv(tmp_path):
    assert printed(pa.table({"x": [True, False, None]}), "csv", tmp_path) == 'x\ntrue\nfalse\n""\n'


def test_numbers_that_are_none_are_null_in_json(tmp_path):
    table = pa.table({"x": [float("nan"), 1.5], "y": [[float("inf")], [2.5]]})
    assert json.loads(printed(table, "json", tmp_path), parse_constant=pytest.fail) == [
        {"x": None, "y": [None]},
        {"x": 1.5, "y": [2.5]},
    ]


INTERVAL = "MonthDayNano(months=1, days=2, nanoseconds=3)"


@pytest.mark.parametrize(
    ("value", "type_", "in_json", "in_csv"),
    [
        ([("k", date(2020, 1, 2))], pa.map_(pa.string(), pa.date32()), [["k", "2020-01-02"]], '[["k", "2020-01-02"]]'),
        ([b"x", None], pa.list_(pa.binary()), ["eA==", None], '["eA==", null]'),
        ({"in": [Decimal("1.50")]}, None, {"in": ["1.50"]}, '{"in": ["1.50"]}'),
        (timedelta(seconds=90), None, 90.0, "0:01:30"),
        (pa.MonthDayNano([1, 2, 3]), None, INTERVAL, INTERVAL),
        ([pa.MonthDayNano([1, 2, 3])], None, [INTERVAL], f'["{INTERVAL}"]'),
    ],
    ids=["map", "list", "struct", "duration", "interval", "intervals"],
)
def test_every_type_has_a_form_in_json_and_csv(tmp_path, value, type_, in_json, in_csv):
    table = pa.table({"x": pa.array([value], type_)})
    assert json.loads(printed(table, "json", tmp_path)) == [{"x": in_json}]
    assert list(csv.reader(printed(table, "csv", tmp_path).splitlines())) == [["x"], [in_csv]]


@pytest.mark.parametrize("output", ["csv", "json"])
def test_what_programs_read_is_utf_8_on_every_terminal(monkeypatch, output):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="replace")
    monkeypatch.setattr(sys, "stdout", terminal)
    write_result(pa.table({"x": ["✓"]}), output, None)
    assert "✓" in terminal.buffer.getvalue().decode()  # type: ignore[attr-defined]


# Where it is written


def test_a_link_is_kept_and_its_target_replaced(tmp_path):
    target = tmp_path / "elsewhere" / "rows.csv"
    target.parent.mkdir()
    target.write_text("old")
    link = tmp_path / "link.csv"
    link.symlink_to(target)
    write_result(ROWS, "csv", link)
    assert link.is_symlink() and target.read_text() == "x\n1\n"
    assert list(target.parent.iterdir()) == [target]


def test_a_link_to_a_file_that_is_not_there_yet(tmp_path):
    link = tmp_path / "link.csv"
    link.symlink_to("rows.csv")
    write_result(ROWS, "csv", link)
    assert link.is_symlink() and (tmp_path / "rows.csv").read_text() == "x\n1\n"


def test_a_named_pipe_stays_one(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()), daemon=True)
    reader.start()
    check_output("csv", pipe)
    write_result(ROWS, "csv", pipe)
    reader.join(60)
    assert read == ["x\n1\n"] and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_device_stays_one(tmp_path):
    link = tmp_path / "null"
    link.symlink_to("/dev/null")
    for out in (link, Path("/dev/null")):
        check_output("csv", out)
        write_result(ROWS, "csv", out)
    assert link.is_symlink() and stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_an_open_file_is_written_where_it_stands(tmp_path):
    """As `--out /dev/stdout >> file` does: what was there stays."""
    file = tmp_path / "file"
    with file.open("w") as opened:
        opened.write("before\n")
        opened.flush()
        write_result(ROWS, "csv", Path(f"/dev/fd/{opened.fileno()}"))
    assert file.read_text() == "before\nx\n1\n"


def test_a_new_file_has_the_mode_that_the_umask_leaves(tmp_path):
    before = os.umask(0o027)
    try:
        write_result(ROWS, "csv", tmp_path / "new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o640


def test_an_existing_file_keeps_its_mode(tmp_path):
    file = tmp_path / "rows.parquet"
    file.touch()
    file.chmod(0o604)
    write_result(ROWS, "parquet", file)
    assert stat.S_IMODE(file.stat().st_mode) == 0o604
    assert pq.read_table(file).equals(ROWS)


def test_file_and_folder_are_synced_before_it_counts_as_written(tmp_path, monkeypatch):
    synced: list[Path] = []
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(Path(f"/proc/self/fd/{fd}").readlink()))
    write_result(ROWS, "csv", tmp_path / "rows.csv")
    assert synced[0].parent == tmp_path and synced[1:] == [tmp_path]


def fail_to_sync(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fail(_fd: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", fail)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_told_and_leaves_the_old_file(tmp_path, monkeypatch, number):
    file = tmp_path / "rows.csv"
    file.write_text("old")
    fail_to_sync(monkeypatch, number)
    with pytest.raises(UnavailableError, match=r"rows\.csv: the disk is full"):
        write_result(ROWS, "csv", file)
    assert file.read_text() == "old" and list(tmp_path.iterdir()) == [file]


def test_other_errors_say_why_it_cannot_be_written(tmp_path, monkeypatch):
    fail_to_sync(monkeypatch, errno.EACCES)
    with pytest.raises(NotAllowedError, match=r"cannot write .*rows\.csv") as refused:
        write_result(ROWS, "csv", tmp_path / "rows.csv")
    assert refused.value.cause == "Permission denied"


# Before the statement runs


@pytest.fixture
def statements(monkeypatch) -> list[str]:
    """The statements that were run."""
    ran: list[str] = []

    def run_sql(statement: str, *_args, **_kwargs) -> Result:
        ran.append(statement)
        return Result(NO_COLUMNS, "spark", 0.0)

    monkeypatch.setattr("frazil.query.run_sql", run_sql)
    return ran


@pytest.fixture
def places(tmp_path: Path) -> dict[str, Path]:
    """Where nothing can be written."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    return {
        "no folder": tmp_path / "no" / "rows",
        "a folder": tmp_path / "folder",
        "below a file": tmp_path / "file" / "rows",
        "a link to itself": tmp_path / "loop",
        "a folder that takes no files": Path("/proc/rows"),
    }


@pytest.mark.parametrize(
    "place", ["no folder", "a folder", "below a file", "a link to itself", "a folder that takes no files"]
)
def test_nothing_is_changed_where_the_output_cannot_be_written(statements, places, capsys, place):
    assert run_command("sql", "sql", ["INSERT INTO a.b VALUES (1)", "--out", str(places[place])]) == 12
    assert statements == []
    assert f"cannot write {places[place]}" in capsys.readouterr().err


def test_nothing_is_changed_where_a_file_may_not_be_written(statements, tmp_path, monkeypatch):
    (tmp_path / "rows").touch()
    monkeypatch.setattr(os, "access", lambda *_: False)  # tests may run as root, who may write all
    assert run_command("sql", "sql", ["DELETE FROM a.b", "--out", str(tmp_path / "rows")]) == 12
    assert statements == []


def test_nothing_is_changed_where_parquet_would_go_to_a_terminal(statements, monkeypatch, capsys):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert run_command("sql", "sql", ["INSERT INTO a.b VALUES (1)", "-o", "parquet"]) == 2
    assert statements == []
    assert "Parquet is binary" in capsys.readouterr().err


def test_a_statement_runs_where_the_output_can_be_written(statements, tmp_path):
    assert run_command("sql", "sql", ["DELETE FROM a.b", "-o", "csv", "--out", str(tmp_path / "rows")]) == 0
    assert statements == ["DELETE FROM a.b"]
    assert [path.name for path in tmp_path.iterdir()] == ["rows"]
