"""Opening a catalog: where its files lie, and an error within ten seconds where a server is silent or away."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from frazil.catalogs import list_tables, local_path, open_catalog, prepare_embedded, pyiceberg_properties, spark_conf
from frazil.catalogs.tables import list_namespaces
from frazil.errors import ConfigError, UnavailableError
from frazil.settings import CatalogSettings, load_settings
from frazil.spark.session import session_conf

KEYS = {"s3.access_key": "k", "s3.secret_key": "s"}


def catalog(home: Path, **flags: str) -> CatalogSettings:
    return load_settings(flags={"home": str(home), **flags}, environ={}).catalog()


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def away() -> Iterator[str]:
    """An address where nobody listens, and nobody else can begin to."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def takes(seconds: float, act: Callable[[], None]) -> bool:
    """Whether it takes less; asked again where it took more, since the machine may have stood still."""
    for _ in range(3):
        began = time.monotonic()
        act()
        if time.monotonic() - began < seconds:
            return True
    return False


@pytest.mark.parametrize("kind", ["thrift", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("glue", "http"))])
def test_a_silent_server_is_an_error_within_ten_seconds(tmp_path, silent, kind):
    where = (
        {"catalog.uri": "glue", "catalog.endpoint": f"http://{silent}", **KEYS}
        if kind == "glue"
        else {"catalog.uri": f"{kind}://{silent}"}
    )

    def ask() -> None:
        with pytest.raises(UnavailableError, match=r"does not respond"):
            list(list_namespaces(open_catalog(catalog(tmp_path, **where))))

    assert takes(10, ask)


def test_a_metastore_that_does_not_know_the_first_question_has_answered(monkeypatch, silent):
    from hive_metastore.ThriftHiveMetastore import Client
    from thrift.Thrift import TApplicationException

    from frazil.catalogs.hive import TimedHiveCatalog
    from frazil.settings import NetworkSettings

    def unknown(_: Client) -> None:
        raise TApplicationException(TApplicationException.UNKNOWN_METHOD, "Invalid method name: 'getStatus'")

    monkeypatch.setattr(Client, "getStatus", unknown)
    opened = TimedHiveCatalog("x", NetworkSettings(read_timeout=40), uri=f"thrift://{silent}")
    assert opened._client.seconds == 40, "only the first answer must come quickly"


@pytest.mark.parametrize(
    "where",
    [
        {"catalog.uri": "glue", **KEYS},
        {"catalog.warehouse": "s3://bucket/lake", **KEYS},
        {"catalog.uri": "http://{silent}", **KEYS},
    ],
)
def test_storage_that_is_away_is_told_at_once(tmp_path, silent, away, where):
    flags = {key: value.format(silent=silent) for key, value in where.items()}

    def ask() -> None:
        with pytest.raises(UnavailableError, match=f"cannot connect to {away}") as error:
            open_catalog(catalog(tmp_path, **flags, **{"s3.endpoint": f"http://{away}"}))
        assert "frazil config show s3.endpoint" in (error.value.hint or "")

    assert takes(5, ask)


def test_storage_that_the_catalog_does_not_use_may_be_away(tmp_path, away):
    mine = catalog(tmp_path, **{"s3.endpoint": f"http://{away}"})
    assert list_tables(open_catalog(mine), mine) == []


@pytest.mark.parametrize("uri", ["/data/wh", "file:/data/wh", "file:///data/wh", "file://localhost/data/wh"])
def test_one_local_place_has_several_spellings(uri):
    assert local_path(uri) == "/data/wh"


@pytest.mark.parametrize("uri", ["", "lake", "s3://bucket/x", "file:relative", "file://host/x", "~/x"])
def test_what_is_no_local_place(uri):
    assert local_path(uri) is None


def test_a_path_is_not_decoded():
    assert local_path("file:///a%20b?c#d") == "/a%20b?c#d"


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_warehouse_is_one_folder_however_it_is_written(tmp_path, monkeypatch, prefix):
    monkeypatch.chdir(tmp_path)
    mine = catalog(tmp_path / "home", **{"catalog.warehouse": f"{prefix}{tmp_path}/wh"})
    prepare_embedded(mine)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "wh"]
    assert pyiceberg_properties(mine)["warehouse"] == f"file://{tmp_path}/wh"


def test_a_catalog_may_lie_in_a_folder_with_any_name(tmp_path):
    home = tmp_path / "what? 100%41"
    mine = catalog(home, **{"catalog.warehouse": f"{tmp_path}/wh"})
    open_catalog(mine).create_namespace("kept")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wh", "what? 100%41"]
    assert (home / "catalog.db").is_file()
    assert ("kept",) in list(list_namespaces(open_catalog(mine)))
    assert spark_conf(mine)["spark.sql.catalog.frazil.uri"].endswith("what%3F%20100%2541/catalog.db")


@pytest.mark.parametrize("name", ["what?", "c#"])
def test_a_warehouse_that_pyiceberg_would_write_elsewhere_is_refused(tmp_path, name):
    with pytest.raises(ConfigError, match="a warehouse cannot be located in"):
        open_catalog(catalog(tmp_path / name))
    assert not list(tmp_path.iterdir())


def test_options_that_a_user_wrote_behind_the_file_are_not_its_name(tmp_path):
    mine = catalog(tmp_path, **{"catalog.uri": f"sqlite:///{tmp_path}/my.db?check_same_thread=false"})
    prepare_embedded(mine)
    assert (tmp_path / "my.db").is_file()


class Answers(BaseHTTPRequestHandler):
    """A catalog below some path, as Nessie is below /iceberg; 404 elsewhere."""

    path_of_catalog = "/iceberg"

    def do_GET(self):
        is_config = self.path.split("?")[0] == f"{self.path_of_catalog}/v1/config"
        body = b'{"defaults": {}, "overrides": {}}' if is_config else b""
        self.send_response(200 if is_config else 404)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args):
        pass


@contextmanager
def answering(path: str) -> Iterator[str]:
    handler = type("Handler", (Answers,), {"path_of_catalog": path})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize("slash", ["", "/"])
def test_the_address_of_nessie_is_enough_for_both_engines(tmp_path, slash):
    with answering("/iceberg") as root:
        settings = load_settings(flags={"home": str(tmp_path), "catalog.uri": root + slash}, environ={})
        assert open_catalog(settings.catalog()).properties["uri"] == f"{root}/iceberg"
        assert session_conf(settings, [], tmp_path, "")["spark.sql.catalog.frazil.uri"] == f"{root}/iceberg"


@pytest.mark.parametrize("path", ["", "/iceberg", "/api/catalog"])
def test_a_catalog_stays_where_it_answers(tmp_path, path):
    with answering(path) as root:
        assert open_catalog(catalog(tmp_path, **{"catalog.uri": root + path})).properties["uri"] == root + path


def test_a_server_without_a_catalog_is_told_with_the_paths_of_known_ones(tmp_path):
    with answering("/elsewhere") as root, pytest.raises(ConfigError, match="no Iceberg REST catalog") as told:
        open_catalog(catalog(tmp_path, **{"catalog.uri": root}))
    assert "19120/iceberg (Nessie)" in (told.value.hint or "")
