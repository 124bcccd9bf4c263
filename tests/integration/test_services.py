"""The kit's promises: each server answers a real client, and nothing is left of it afterwards."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlencode

import pyarrow as pa
import pytest
from botocore.exceptions import ClientError
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import OAuthError, UnauthorizedError

from frazil.settings.model import SettingsModel
from tests.services.kit import NAMES, Services
from tests.services.minio import start_minio
from tests.services.process import ServerError, port_answers, start
from tests.services.s3_access import S3Access
from tests.services.secured_rest import SecuredRest, start_secured_rest

CATALOGS = ("seaweedfs", "rest", "rest_on_s3", "secured_rest", "nessie", "hive", "glue")
QUICK = ("seaweedfs", "minio", "rest", "secured_rest", "glue", "mariadb", "postgres")
#: Clients find them by URI and environment, without settings.
BY_URI = ("azurite", "hdfs")
ROWS = pa.table({"id": [1, 2, 3]})
#: Building it takes minutes, so that `make test` does without.
MINIO = pytest.param("minio", marks=pytest.mark.slow)


@pytest.mark.parametrize("name", CATALOGS)
def test_a_table_made_through_the_catalog_reads_back(services: Services, name: str):
    catalog = open_catalog(services, name)
    namespace = f"ns_{uuid.uuid4().hex[:8]}"
    catalog.create_namespace(namespace)
    catalog.create_table(f"{namespace}.t", schema=ROWS.schema).append(ROWS)
    assert catalog.load_table(f"{namespace}.t").scan().to_arrow()["id"].to_pylist() == [1, 2, 3]


@pytest.mark.parametrize("name", ["seaweedfs", MINIO, "glue"])
def test_an_object_put_into_s3_reads_back(services: Services, name: str):
    client, bucket = new_bucket(getattr(services, name).access)
    client.put_object(Bucket=bucket, Key="a/b", Body=b"ice")
    assert client.get_object(Bucket=bucket, Key="a/b")["Body"].read() == b"ice"


@pytest.mark.parametrize("name", ["seaweedfs", MINIO])
def test_s3_refuses_a_wrong_secret(services: Services, name: str):
    right = getattr(services, name).access
    with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
        S3Access(right.endpoint, right.access_key, "wrong-secret").client().list_buckets()


@pytest.mark.slow
def test_minio_sends_events_to_its_webhook(services: Services):
    with event_receiver() as (url, events):
        minio = services.own(lambda folder: start_minio(folder, webhook=url))
        client, bucket = new_bucket(minio.access)
        minio.notify(bucket)
        client.put_object(Bucket=bucket, Key="a/b", Body=b"ice")
        record = next_record(events)
        minio.stop()
    assert (record["eventName"], unquote(record["s3"]["object"]["key"])) == ("s3:ObjectCreated:Put", "a/b")


@pytest.mark.parametrize("name", ["mariadb", "postgres"])
def test_the_database_keeps_a_row(services: Services, name: str):
    database = getattr(services, name)
    table = f"t_{uuid.uuid4().hex[:8]}"
    database.query(f"CREATE TABLE {table} (id INT)")
    database.query(f"INSERT INTO {table} VALUES (7)")
    assert database.query(f"SELECT id FROM {table}") == "7"


@pytest.mark.parametrize("token", [None, "wrong"])
def test_the_gateway_refuses_a_missing_or_wrong_token(services: Services, token: str | None):
    request = urllib.request.Request(f"{services.secured_rest.url}/v1/config")
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    status, body = refused(request)
    assert (status, body["error"]["type"], body["error"]["code"]) == (401, "NotAuthorizedException", 401)


def test_the_gateway_refuses_a_wrong_client_secret(services: Services):
    gateway = services.secured_rest
    status, body = refused(token_request(gateway, client_secret="wrong"))
    assert (status, body["error"]) == (401, "invalid_client")


def test_the_gateway_refuses_a_scope_it_does_not_know(services: Services):
    status, body = refused(token_request(services.secured_rest, scope="everything"))
    assert (status, body["error"]) == (400, "invalid_scope")


def test_pyiceberg_understands_the_gateways_refusals(services: Services):
    gateway = services.secured_rest
    with pytest.raises(UnauthorizedError):
        load_catalog("wrong_token", type="rest", uri=gateway.url, token="wrong")
    with pytest.raises(OAuthError):
        load_catalog("wrong_secret", **oauth2(gateway) | {"credential": f"{gateway.client_id}:wrong"})


def test_the_gateway_takes_its_fixed_token(services: Services):
    gateway = services.secured_rest
    load_catalog("fixed", type="rest", uri=gateway.url, token=gateway.token).list_namespaces()


def test_an_issued_token_ends(services: Services):
    gateway = services.own(lambda folder: start_secured_rest(folder, upstream=services.rest, token_uses=1))
    with urllib.request.urlopen(token_request(gateway)) as answer:
        token = json.load(answer)["access_token"]
    request = urllib.request.Request(f"{gateway.url}/v1/config", headers={"Authorization": f"Bearer {token}"})
    urllib.request.urlopen(request).close()
    assert refused(request)[0] == 401
    gateway.stop()


@pytest.mark.parametrize("name", [MINIO if name == "minio" else name for name in NAMES if name not in BY_URI])
def test_frazils_settings_accept_what_a_server_offers(services: Services, name: str, tmp_path: Path):
    offered = getattr(services, name).settings()
    assert offered
    SettingsModel(home=tmp_path, cache=tmp_path, **offered)


@pytest.mark.slow
def test_a_second_kit_runs_beside_the_first_and_leaves_nothing(services: Services):
    # Hive and Nessie are left out for their slow start: they are stopped the way REST is, which is a JVM too.
    first = {name: getattr(services, name) for name in QUICK}
    with Services() as second:
        handles = [getattr(second, name) for name in QUICK]
        assert all(port_answers(handle.process.port) for handle in handles)
        sockets = [path for path in second.seaweedfs.grpc_sockets if path.exists()]
        assert sockets
    for handle in handles:
        assert not pid_lives(handle.process.pid), handle.name
        assert not port_answers(handle.process.port), handle.name
    assert not any(path.exists() for path in sockets)
    assert not second.folder.exists()
    assert all(port_answers(handle.process.port) for handle in first.values())


@pytest.mark.slow
def test_a_server_that_cannot_start_raises_with_the_end_of_its_log(tmp_path: Path):
    (tmp_path / "data").write_text("a file where MinIO wants its folder")
    with pytest.raises(
        ServerError, match=r"minio ended with code 1\n--- the end of .*minio\.log:\n(?s:.*)Drives are not directories"
    ):
        start_minio(tmp_path)


def test_a_server_that_never_answers_is_stopped_and_raises_with_its_log(tmp_path: Path):
    process = start("mute", ["sh", "-c", "echo thinking; sleep 600"], folder=tmp_path, port=1)
    process.wait_ready(lambda: "thinking" in process.log.read_text())
    with pytest.raises(ServerError, match=r"mute did not answer within 1 s\n.*\nthinking"):
        process.wait_ready(lambda: False, seconds=1)
    assert not pid_lives(process.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_a_server_does_not_outlive_a_killed_test_run(tmp_path: Path):
    script = (
        "import pathlib, sys, time; from tests.services.process import start;"
        "print(start('s', ['sleep', '600'], folder=pathlib.Path(sys.argv[1]), port=1).pid, flush=True); time.sleep(600)"
    )
    root = Path(__file__).parents[2]
    parent = subprocess.Popen([sys.executable, "-c", script, tmp_path], cwd=root, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    server = int(parent.stdout.readline())
    assert pid_lives(server)
    parent.kill()
    parent.communicate()
    assert gone_soon(server)


def test_up_shows_the_servers_and_ctrl_c_stops_them():
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "tests.services", "up", "glue"]
    up = subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"})
    assert up.stdout is not None
    shown = []
    while not (shown and "Ctrl-C" in shown[-1]):
        shown.append(up.stdout.readline())
        assert shown[-1], "it ended early"
    port = int("".join(shown).split("endpoint: http://127.0.0.1:")[1].split()[0])
    assert port_answers(port)
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 130
    up.stdout.close()
    assert not port_answers(port)


def open_catalog(services: Services, name: str) -> Catalog:
    handle = getattr(services, name)
    if name == "seaweedfs":
        signing = {"rest.sigv4-enabled": "true", "rest.signing-name": "s3tables", "rest.signing-region": "us-east-1"}
        properties = {"uri": handle.iceberg_url, "warehouse": f"s3://{handle.table_bucket}", **signing}
        return load_catalog(name, type="rest", **properties, **client_keys(handle.access), **handle.access.pyiceberg())
    if name == "secured_rest":
        return load_catalog(name, **oauth2(handle))
    if name == "hive":
        return load_catalog(name, type="hive", uri=handle.url, warehouse=handle.warehouse)
    if name == "glue":
        keys = client_keys(handle.access)
        return load_catalog(
            name,
            type="glue",
            **{"glue.endpoint": handle.url},
            warehouse=handle.warehouse,
            **keys,
            **handle.access.pyiceberg(),
        )
    s3 = handle.access.pyiceberg() if handle.access else {}
    named = {"warehouse": handle.warehouse} if name == "nessie" else {}
    return load_catalog(name, type="rest", uri=handle.url, **named, **s3)


def client_keys(access: S3Access) -> dict[str, str]:
    keys = {"access-key-id": access.access_key, "secret-access-key": access.secret_key, "region": access.region}
    return {f"client.{key}": value for key, value in keys.items()}


def oauth2(gateway: SecuredRest) -> dict[str, str]:
    login = {"credential": gateway.credential, "oauth2-server-uri": gateway.oauth2_uri, "scope": gateway.scope}
    return {"type": "rest", "uri": gateway.url, **login}


def token_request(gateway: SecuredRest, **changed: str) -> urllib.request.Request:
    form = {
        "grant_type": "client_credentials",
        "client_id": gateway.client_id,
        "client_secret": gateway.client_secret,
        "scope": gateway.scope,
    }
    return urllib.request.Request(gateway.oauth2_uri, data=urlencode(form | changed).encode())


def refused(request: urllib.request.Request) -> tuple[int, Any]:
    with pytest.raises(urllib.error.HTTPError) as caught:
        urllib.request.urlopen(request)
    with caught.value as answer:
        return answer.code, json.load(answer)


def new_bucket(access: S3Access) -> tuple[Any, str]:
    client, bucket = access.client(), f"bucket-{uuid.uuid4().hex[:8]}"
    client.create_bucket(Bucket=bucket)
    return client, bucket


@contextmanager
def event_receiver() -> Iterator[tuple[str, queue.Queue[Any]]]:
    events: queue.Queue[Any] = queue.Queue()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            events.put(self.rfile.read(int(self.headers["Content-Length"] or 0)))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/events/s3", events
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def next_record(events: queue.Queue[Any]) -> dict[str, Any]:
    while not (body := events.get(timeout=20)):
        pass  # MinIO first asks with an empty body whether anyone listens
    return json.loads(body)["Records"][0]


def pid_lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        status = Path(f"/proc/{pid}/status").read_text()  # in a container nobody may collect an orphan that has ended
    except (FileNotFoundError, ProcessLookupError):
        return sys.platform != "linux"  # which alone has these files
    return "State:\tZ" not in status


def gone_soon(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while pid_lives(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not pid_lives(pid)
