"""The file system that PyIceberg opens for a location, and with whose credentials."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pyiceberg.io import load_file_io
from pyiceberg.io.fsspec import FsspecFileIO

from frazil.tables.file_io import TableFileIO, register_file_io

_HOST = "account.dfs.core.windows.net"
_VENDED = f"adls.sas-token.{_HOST}"
_LOAD = """
import json, sys
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from frazil.tables.writing.data_files import WriteTarget, load_target
parts = [part.model_dump_json() for part in (Schema(), UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER)]
for properties in json.loads(sys.argv[1]):
    target = WriteTarget("abfss://c@account.dfs.core.windows.net/t", *parts, "{}", json.dumps(properties))
    print(type(load_target(target).io).__name__)
"""


def test_workers_of_spark_open_azure_as_the_driver_does():
    cases = [{}, {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}]
    done = subprocess.run(
        [sys.executable, "-c", _LOAD, json.dumps(cases)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["TableFileIO", "PyArrowFileIO"], done.stderr


@pytest.mark.parametrize("scheme", ["abfs", "abfss", "wasb", "wasbs"])
def test_pyarrow_is_asked_for_the_short_form_of_every_scheme_of_azure(scheme):
    assert TableFileIO.parse_location(f"{scheme}://c@{_HOST}/t/x")[2] == "c/t/x"


@pytest.mark.parametrize("name", ["adls.connection-string", "adls.token", "adls.credential"])
def test_access_that_pyarrow_does_not_have_stays_with_fsspec(name):
    register_file_io()
    assert type(load_file_io({name: "x"}, f"abfss://c@{_HOST}/t")) is FsspecFileIO
    assert type(load_file_io({name: "x"}, "s3://bucket/t")) is TableFileIO


@pytest.mark.parametrize(
    ("properties", "asked"),
    [
        ({}, "sig=environment"),
        ({"adls.account-name": "account"}, "sig=environment"),
        ({"adls.sas-token-expires-at-ms.account": "1"}, "sig=environment"),
        ({"adls.sas-token": "sig=own"}, "sig=own"),
        ({"adls.sas-token": "?sig=own"}, "sig=own"),
        ({_VENDED: "sig=vended"}, "sig=vended"),
        ({"adls.account-key": "a2V5", _VENDED: "sig=vended"}, "SharedKey"),
    ],
)
def test_a_catalogs_credentials_come_before_those_of_the_environment(properties, asked, monkeypatch):
    for name in ("ACCOUNT_KEY", "ACCESS_KEY", "SAS_KEY"):
        monkeypatch.delenv(f"AZURE_STORAGE_{name}", raising=False)
    monkeypatch.setenv("AZURE_STORAGE_SAS_TOKEN", "sig=environment")
    with _azure() as (endpoint, requests):
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", endpoint)
        with pytest.raises(OSError, match="404"):
            TableFileIO(properties).new_input(f"abfss://c@{_HOST}/t/x").exists()
    assert requests
    assert all(asked in request.partition("?")[2] for request in requests)


@contextmanager
def _azure() -> Iterator[tuple[str, list[str]]]:
    """Serves an account without objects; yields its address and the requests that come, with their authorization."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            requests.append(f"{self.path} {self.headers.get('Authorization')}")
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_HEAD  # noqa: N815 - the name that the base class wants

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
