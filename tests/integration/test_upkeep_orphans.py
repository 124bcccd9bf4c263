"""Deleting from S3: spellings, the server's clock, and a server that asks for patience."""

from __future__ import annotations

import http.client
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from frazil.settings import load_settings
from frazil.upkeep.care import Care
from frazil.upkeep.expiry import lists, orphans, reclaim
from frazil.upkeep.expiry.clock import storage_now
from frazil.upkeep.expiry.neighbours import SharedLocationError
from frazil.upkeep.expiry.places import Places, spelled
from frazil.upkeep.expiry.verify import verify
from tests.services.kit import Services
from tests.upkeep_files import care_of_settings, expired_by_hand, make, old_ids, replaced, sound, step


@dataclass
class Gateway:
    """Before a server: answers deletes with SlowDown as long as it is told to, and hands all else on."""

    url: str = ""
    refuse: int = 0
    refused: int = 0
    deletes: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def refuses(self, method: str, path: str) -> bool:
        if method != "DELETE" and not (method == "POST" and "delete" in path.partition("?")[2]):
            return False
        with self.lock:
            self.deletes += 1
            if self.refused >= self.refuse:
                return False
            self.refused += 1
            return True


@contextmanager
def gateway_to(server: str) -> Iterator[Gateway]:
    gateway = Gateway()
    target = urlsplit(server)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def hand_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if gateway.refuses(self.command, self.path):
                self.answer(503, b"<Error><Code>SlowDown</Code><Message>Please reduce your rate</Message></Error>", {})
                return
            connection = http.client.HTTPConnection(target.hostname or "", target.port, timeout=60)
            # With its own Host: that is what the request was signed with.
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            reply = connection.getresponse()
            data = reply.read()
            self.answer(reply.status, data, dict(reply.getheaders()))
            connection.close()

        def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
            self.send_response_only(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
            self.send_header("Content-Length", length)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = hand_on  # noqa: N815 - the library's names

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the library's name
            pass

    http_server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    gateway.url = f"http://127.0.0.1:{http_server.server_port}"
    thread = threading.Thread(target=http_server.serve_forever, daemon=True)
    thread.start()
    try:
        yield gateway
    finally:
        http_server.shutdown()
        http_server.server_close()
        thread.join()


@contextmanager
def care_on(services: Services, home: Path, endpoint: str | None = None, **network: float) -> Iterator[Care]:
    """The embedded catalog, with its tables in a bucket."""
    bucket = services.seaweedfs.make_bucket("upkeep")
    access = services.seaweedfs.access.settings() | ({"endpoint": endpoint} if endpoint else {})
    flags: dict[str, object] = {"home": str(home), "catalog.warehouse": f"{bucket}/{home.parent.name}"}
    flags |= {f"s3.{key}": value for key, value in access.items()}
    flags |= {f"network.{key}": value for key, value in network.items()}
    care = care_of_settings(load_settings(flags=flags, environ={}))
    with care.store:
        yield care


@pytest.fixture
def care(services, tmp_path) -> Iterator[Care]:
    with care_on(services, tmp_path / "home") as made:
        yield made


def litter(care: Care, table, *names: str) -> None:
    places = Places(care, table)
    for name in names:
        store, key = places.find(f"{table.location()}/{name}")
        store.put(key, b"lost")


def there(care: Care, table) -> set[str]:
    root = spelled(table.location()) + "/"
    return {uri.removeprefix(root) for uri, _ in Places(care, table).list(table.location())}


def test_orphans_in_a_bucket_by_the_servers_clock(care):
    table = make(care)
    before = there(care, table)
    litter(care, table, "data/a b%20c.parquet", "data/x=1/lost.parquet", "metadata/lost-m0.avro", "data/_SUCCESS")
    assert orphans.find(care, table, 3600).young == 3
    assert orphans.run(care, table, step("orphans", age_s=-60.0)).files_removed == 3
    assert there(care, table) == before | {"data/_SUCCESS"}, "and no probe of the clock is left"
    sound(care, table, [1, 2, 3])


def test_the_clock_is_the_servers(care):
    table = make(care, commits=1)
    places = Places(care, table)
    now = storage_now(places, lists.folder_of(table))
    written = max(info.last_modified for _, info in places.list(table.location()))
    assert abs((now - written).total_seconds()) < 60
    assert not any("frazil-clock" in name for name in there(care, table))


def test_a_table_that_is_spelled_otherwise_is_still_the_same_place(care):
    table = make(care)
    make(care, "other.t", location=table.location().replace("s3://", "s3a://") + "/inner")
    with pytest.raises(SharedLocationError, match=r"other\.t"):
        orphans.find(care, table, 0)


def test_files_of_a_table_with_an_s3a_location_are_known_by_either_spelling(care):
    location = f"{care.catalog.warehouse}/other-{uuid.uuid4().hex}".replace("s3://", "s3a://")
    table = make(care, location=location)
    plain = {"write.data.path": location.replace("s3a://", "s3://") + "/data"}
    table.transaction().set_properties(plain).commit_transaction()
    replaced(table)
    assert orphans.find(care, table, -60.0).orphans == ()
    assert verify(care, care.load("ns.t")).sound
    expired = expired_by_hand(care, table, *old_ids(table))
    assert reclaim.run(care, table, step("reclaim", grace_s=0.0)).files_removed == len(expired.files)
    sound(care, table, [1, 2, 3])


def test_a_missing_object_is_found(care):
    table = make(care)
    assert verify(care, table).sound
    path = next(iter(table.scan().plan_files())).file.file_path
    store, key = Places(care, table).find(path)
    store.delete(key)
    (finding,) = verify(care, table).findings
    assert finding.uri == path


def test_a_server_that_asks_for_patience_gets_it(services, tmp_path, care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    with (
        gateway_to(services.seaweedfs.url) as gateway,
        care_on(services, tmp_path / "home", gateway.url) as throttled,
    ):
        gateway.refuse = 2
        outcome = reclaim.run(throttled, table, step("reclaim", grace_s=0.0))
    assert (outcome.result, outcome.files_removed, outcome.reason) == ("done", len(expired.files), None)
    assert gateway.refused == 2
    sound(care, table, [1, 2, 3])


def test_a_server_without_end_of_patience_leaves_the_list_for_later(services, tmp_path, care):
    table = replaced(make(care))
    expired = expired_by_hand(care, table, *old_ids(table))
    with (
        gateway_to(services.seaweedfs.url) as gateway,
        care_on(services, tmp_path / "home", gateway.url, retry_attempts=2, breaker_failures=1000) as throttled,
    ):
        gateway.refuse = 10_000
        outcome = reclaim.run(throttled, table, step("reclaim", grace_s=0.0))
    assert (outcome.result, outcome.files_removed) == ("failed", 0)
    assert "left for later" in (outcome.reason or "")
    assert 0 < gateway.deletes < 20, "it is not asked again and again"
    sound(care, table, [1, 2, 3])
    (left,) = lists.waiting(Places(care, table), table)
    assert left.files == expired.files
    assert reclaim.run(care, table, step("reclaim", grace_s=0.0)).files_removed == len(expired.files)
    assert lists.waiting(Places(care, table), table) == []
    names = {spelled(file.uri).removeprefix(spelled(table.location()) + "/") for file in expired.files}
    assert not names & there(care, table)
    sound(care, table, [1, 2, 3])
