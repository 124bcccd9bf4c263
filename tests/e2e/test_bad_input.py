"""Bad input: a clear error with what, where, why and what to try; the right exit code; and nothing changed."""

from __future__ import annotations

import shutil
import socket
import time

import pytest
import yaml

from frazil.cli.run import run_command
from frazil.spark import java
from frazil.spark.jars import read_lock
from tests.e2e.conftest import Shell, fingerprint
from tests.machine import machine

pytestmark = pytest.mark.timeout(600)  # the first test that needs the demo runs it


def fails(
    shell: Shell, *args: str, code: int, says: list[str], env: dict[str, str] | None = None, within: float | None = None
) -> str:
    """Runs a command that must fail, and checks all that a failure owes to a user."""
    before = fingerprint(shell.folder.parent)
    for _ in range(3):  # the machine may stand still for a while; a command that waits too long does so each time
        began = time.monotonic()
        done = shell.run(*args, env=env)
        took = time.monotonic() - began
        if within is None or took < within:
            break
    assert done.returncode == code, f"exit {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.stdout == ""
    assert "error: " in done.stderr and "Try: " in done.stderr
    assert "Traceback" not in done.stderr and "\tat " not in done.stderr
    for words in says:
        assert words in done.stderr
    assert within is None or took < within, f"it took {took:.1f} s"
    assert fingerprint(shell.folder.parent) == before, "something was changed"
    return done.stderr


def test_broken_yaml_is_named_by_line_and_column(shell):
    shell.write("frazil.yaml", "catalog:\n  uri: [unclosed\nhome: x\n")
    fails(shell, "table", "list", code=2, says=["frazil.yaml:3:", "invalid YAML"])


def test_an_unknown_setting_names_the_nearest(shell):
    shell.write("frazil.yaml", "catalog:\n  warehose: /data\n")
    fails(shell, "table", "list", code=2, says=["frazil.yaml:2", "catalog.warehose", "Try: catalog.warehouse"])


def test_a_wrong_value_lists_the_valid_ones(shell):
    shell.write("frazil.yaml", "log:\n  sync_mode: sometimes\n")
    fails(shell, "config", "check", code=2, says=["frazil.yaml:2", "always", "periodic", "none"])


@pytest.mark.parametrize("uri", ["http://127.0.0.1:{port}", "thrift://127.0.0.1:{port}"])
def test_a_catalog_where_nobody_listens(shell, uri):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = uri.format(port=closed.getsockname()[1])
        fails(
            shell, "table", "list", env={"ICEBERG_CATALOG_URI": address}, code=1, says=["cannot connect to"], within=10
        )


def test_a_catalog_that_accepts_and_is_silent(shell):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        fails(
            shell, "table", "list", env={"ICEBERG_CATALOG_URI": address}, code=1, says=["does not respond"], within=10
        )


def test_a_query_does_not_wait_for_an_unreachable_catalog_either(shell):
    env = {"ICEBERG_CATALOG_URI": "http://127.0.0.1:9"}
    fails(shell, "sql", "SELECT * FROM a.b", env=env, code=1, says=["cannot connect to"], within=10)


@pytest.fixture
def table_on_s3(shell, services) -> str:
    server = services.rest_on_s3
    shell.write("frazil.yaml", yaml.safe_dump(server.settings()))
    return make_table(shell)


def test_a_table_on_an_s3_server_that_is_away(shell, table_on_s3):
    away = ["--set", "s3.endpoint=http://127.0.0.1:9"]
    query = f"SELECT * FROM {table_on_s3}"
    for engine in ("duckdb", "spark"):
        fails(shell, "sql", query, "--engine", engine, *away, code=1, says=["127.0.0.1:9"], within=10)
    fails(shell, "table", "files", table_on_s3, *away, code=1, says=["127.0.0.1:9"], within=10)


def make_table(shell: Shell) -> str:
    from frazil.catalogs import open_catalog
    from frazil.settings import load_settings
    from tests.lane import people

    settings = load_settings(config=shell.folder / "frazil.yaml", environ={})
    catalog = open_catalog(settings.catalog())
    catalog.create_namespace_if_not_exists("bad_input")
    table = catalog.create_table_if_not_exists("bad_input.people", schema=people().schema)
    table.append(people(1))
    return "bad_input.people"


@pytest.mark.slow
def test_a_wrong_s3_secret(shell, table_on_s3, services):
    wrong = ["--set", f"s3.access_key={services.rest_on_s3.access.access_key}", "--set", "s3.secret_key=hush-hush"]
    said = fails(
        shell, "table", "files", table_on_s3, *wrong, code=12, says=["rejects our credentials", "s3.secret_key"]
    )
    for engine in ("duckdb", "spark"):
        said += fails(
            shell, "sql", f"SELECT * FROM {table_on_s3}", "--engine", engine, *wrong, code=12, says=["refuses"]
        )
    assert "hush-hush" not in said


@pytest.mark.parametrize("setting", ["catalog.token=hush-hush", "catalog.credential=frazil-client:hush-hush"])
def test_a_wrong_catalog_credential(shell, services, setting):
    server = services.secured_rest
    args = ["--set", f"catalog.uri={server.url}", "--set", setting, "--set", f"catalog.oauth2_uri={server.oauth2_uri}"]
    said = fails(shell, "table", "list", *args, code=12, says=["rejects our credentials", "catalog.token"])
    assert "hush-hush" not in said


def test_wrong_keys_for_a_signed_catalog(shell, services):
    settings = services.seaweedfs.settings()
    settings["s3"]["secret_key"] = "hush-hush"
    shell.write("frazil.yaml", yaml.safe_dump(settings))
    said = fails(shell, "table", "list", code=12, says=["rejects our credentials"])
    assert "hush-hush" not in said


def test_a_java_home_without_java(shell, tmp_path):
    empty = tmp_path / "no-java"
    empty.mkdir()
    fails(
        shell,
        "sql",
        "SELECT 1",
        "--engine",
        "spark",
        "--set",
        f"spark.java_home={empty}",
        code=1,
        says=["spark.java_home"],
    )


def test_missing_java_says_what_to_install(shell, monkeypatch, capsys, tmp_path):
    """No Java in JAVA_HOME, in the path, or where packages put it. In this process: machines of tests have one."""
    monkeypatch.setattr(java, "_WHERE_JDKS_LIE", ())
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    code = run_command("sql", "sql", ["SELECT 1", "--engine", "spark", "--set", f"home={shell.folder}/lake"])
    said = capsys.readouterr().err
    assert code == 1
    assert "needs Java 17 or 21" in said
    assert f"Try: {java.install_hint()}" in said
    assert not (shell.folder / "lake").exists()


def test_a_warehouse_that_cannot_be_written(shell):
    (shell.folder / "file").write_text("in the way")
    where = f"{shell.folder}/file/warehouse"
    fails(shell, "table", "list", "--set", f"catalog.warehouse={where}", code=12, says=[where, "cannot create"])


def test_a_jar_with_a_wrong_checksum_is_not_run(shell, tmp_path):
    jars = tmp_path / "work" / "cache" / "jars"
    jars.mkdir(parents=True)
    for jar in read_lock():
        shutil.copy(machine().cache / "jars" / jar.file_name, jars)
    spoiled = jars / read_lock()[-1].file_name
    with spoiled.open("r+b") as file:
        file.seek(1000)
        file.write(b"spoiled")
    said = fails(
        shell, "sql", "SELECT 1", "--engine", "spark", env={"FRAZIL_CACHE": str(jars.parent)}, code=13, says=["SHA-256"]
    )
    assert spoiled.name in said


def test_a_table_that_is_not_there(demo_shell):
    fails(demo_shell, "table", "show", "demo.photo", code=10, says=["no table 'demo.photo'", "Try: demo.photos"])


def test_a_catalog_file_that_is_no_database(shell):
    shell.write("catalog.db", "this is no SQLite file, but long enough to look like something " * 20)
    fails(
        shell, "table", "list", "--set", f"catalog.uri=sqlite:///{shell.folder}/catalog.db", code=13, says=["damaged"]
    )


def test_sql_that_nobody_understands(demo_shell):
    fails(demo_shell, "sql", "SELEC 1", "--engine", "duckdb", code=2, says=["cannot read this SQL"])
    fails(demo_shell, "sql", "SELECT nix FROM demo.photos", code=2, says=["nix"])


def test_spark_errors_come_without_the_stack_of_the_jvm(demo_shell):
    fails(demo_shell, "sql", "SELECT * FROM demo.nix", "--engine", "spark", code=10, says=["demo", "nix"])


def test_an_output_file_in_a_folder_that_is_not_there(demo_shell, tmp_path):
    out = str(tmp_path / "no" / "rows.csv")
    fails(demo_shell, "sql", "SELECT 1", "-o", "csv", "--out", out, code=12, says=[out])


def test_a_foreign_variable_is_announced_when_it_is_used(shell):
    env = {"S3_ENDPOINT": "http://127.0.0.1:9000", "DATABASE_URL": "mysql://me:hush-hush@db/other"}
    done = shell.run("config", "show", env=env)
    assert "note: s3.endpoint is 'http://127.0.0.1:9000'" in done.stderr and "S3_ENDPOINT" in done.stderr
    assert "note: database.url" in done.stderr and "DATABASE_URL" in done.stderr
    assert "hush-hush" not in done.stderr + done.stdout
    assert "S3_ENDPOINT" in shell.run("table", "list", env=env).stderr
