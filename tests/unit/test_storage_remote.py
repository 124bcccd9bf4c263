"""Remote stores where a real server would not misbehave on demand: a small HTTP server answers from a script."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from obstore import exceptions

from frazil.errors import (
    CircuitOpenError,
    ConfigError,
    ConflictError,
    CredentialsError,
    FrazilError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage import ObjectStore, open_store
from frazil.storage.clients import connect, s3_config, server_name
from frazil.storage.faults import from_obstore
from frazil.storage.uri import parse

ONE_TRY = NetworkSettings(retry_attempts=1, breaker_failures=1000)
HEADERS = {"ETag": '"etag"', "Last-Modified": "Mon, 01 Jan 2024 00:00:00 GMT"}


@dataclass
class Answer:
    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    sent: int | None = None
    """Break the connection after so many bytes of the body; -1: before any answer."""


def refusal(status: int, code: str) -> Answer:
    return Answer(status, f"<Error><Code>{code}</Code><Message>because</Message></Error>".encode())


@dataclass
class ScriptedServer:
    url: str
    answers: list[Answer] = field(default_factory=list)
    """What to answer, in turn, to what is not a greeting."""
    greeting: Answer = field(default_factory=lambda: listing())
    requests: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)

    def store(self, network: NetworkSettings = ONE_TRY) -> ObjectStore:
        s3 = S3Settings(endpoint=self.url, access_key="key", secret_key="secret")  # type: ignore[arg-type]
        return open_store("s3://bucket/root", s3=s3, network=network)


def listing(*keys: str) -> Answer:
    entries = "".join(
        f"<Contents><Key>{key}</Key><LastModified>2024-01-01T00:00:00Z</LastModified><ETag>x</ETag><Size>1</Size>"
        "</Contents>"
        for key in keys
    )
    body = f"<ListBucketResult><Name>b</Name><IsTruncated>false</IsTruncated>{entries}</ListBucketResult>"
    return Answer(200, body.encode())


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    script = ScriptedServer("")

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if "anybody-is-there" in self.path:
                answer = script.greeting
            else:
                script.requests.append((self.command, self.path, dict(self.headers)))
                answer = script.answers.pop(0)
            if answer.sent == -1:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, text in {**HEADERS, "Content-Length": str(len(answer.body)), **answer.headers}.items():
                self.send_header(name, text)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(answer.body[: answer.sent])
            self.close_connection = answer.sent is not None

        do_GET = do_PUT = do_HEAD = do_POST = answer  # noqa: N815 - the base class wants these names

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        script.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=[0.01])
        thread.start()
        yield script
        http.shutdown()
        thread.join()


# What servers say


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (refusal(503, "SlowDown"), UnavailableError),
        (refusal(500, "InternalError"), UnavailableError),
        (refusal(429, "TooManyRequests"), UnavailableError),
        (refusal(400, "RequestTimeout"), UnavailableError),
        (Answer(502, b"<html>bad gateway</html>"), UnavailableError),
        (Answer(sent=-1), UnavailableError),
        (refusal(404, "NoSuchKey"), NotFoundError),
        (refusal(403, "AccessDenied"), NotAllowedError),
        (refusal(403, "InvalidAccessKeyId"), CredentialsError),
        (refusal(400, "ExpiredToken"), CredentialsError),
        (refusal(401, "Unauthorized"), CredentialsError),
        (refusal(400, "KeyTooLongError"), UsageError),
        (refusal(501, "NotImplemented"), UnsupportedError),
        (refusal(301, "PermanentRedirect"), ConfigError),
        (refusal(418, "Teapot"), FrazilError),
    ],
)
def test_each_refusal_becomes_its_own_error(server: ScriptedServer, answer: Answer, kind: type[FrazilError]) -> None:
    server.answers = [answer]
    with pytest.raises(FrazilError) as caught:
        server.store().get("key")
    assert type(caught.value) is kind
    assert "s3://bucket" in caught.value.message
    assert caught.value.cause
    assert caught.value.hint
    assert "secret" not in str(caught.value.__cause__)


def test_a_missing_bucket_is_told_from_a_missing_key(server: ScriptedServer) -> None:
    server.answers = [refusal(404, "NoSuchBucket")]
    with pytest.raises(NotFoundError, match="bucket not found: s3://bucket"):
        server.store().get("key")


def test_who_may_not_list_may_still_read(server: ScriptedServer) -> None:
    server.greeting = refusal(403, "AccessDenied")
    server.answers = [Answer(body=b"content")]
    assert server.store().get("key") == b"content"


def test_if_match_on_what_is_gone_is_a_conflict_where_aws_says_not_found(server: ScriptedServer) -> None:
    server.answers = [refusal(404, "NoSuchKey")]
    with pytest.raises(ConflictError, match="key"):
        server.store().put_if_match("key", b"x", '"etag"')


def test_conditions_are_sent_as_conditions(server: ScriptedServer) -> None:
    server.answers = [Answer(), Answer()]
    server.store().put_if_absent("key", b"x")
    server.store().put_if_match("key", b"x", '"etag"')
    (_, _, absent), (_, _, match) = server.requests
    assert absent["if-none-match"] == "*"
    assert match["if-match"] == '"etag"'


def test_a_key_that_cannot_be_addressed_fails_its_listing_in_plain_words(server: ScriptedServer) -> None:
    server.answers = [listing("root/a//b")]
    with pytest.raises(UnsupportedError, match="empty name"):
        list(server.store().list())


# Trying again


PATIENT = NetworkSettings(retry_timeout=60, breaker_failures=1000)


def test_a_busy_server_is_asked_again(server: ScriptedServer) -> None:
    server.answers = [refusal(503, "SlowDown"), refusal(503, "SlowDown"), Answer(body=b"content")]
    assert server.store(PATIENT).get("key") == b"content"


def test_a_refused_request_is_not_repeated(server: ScriptedServer) -> None:
    server.answers = [refusal(403, "AccessDenied"), Answer(body=b"content")]
    with pytest.raises(NotAllowedError):
        server.store(PATIENT).get("key")


def test_a_lost_reply_is_not_a_conflict_with_oneself(server: ScriptedServer) -> None:
    stored = Answer(body=b"ours")
    server.answers = [Answer(sent=-1), refusal(412, "PreconditionFailed"), stored, stored]
    assert server.store(PATIENT).put_if_absent("key", b"ours") == '"etag"'
    server.answers = [Answer(sent=-1), refusal(412, "PreconditionFailed"), stored, stored]
    assert server.store(PATIENT).put_if_match("key", b"ours", '"older"') == '"etag"'


def test_after_a_lost_reply_another_winner_is_a_conflict(server: ScriptedServer) -> None:
    stored = Answer(body=b"theirs")
    server.answers = [Answer(sent=-1), refusal(412, "PreconditionFailed"), stored, stored]
    with pytest.raises(ConflictError):
        server.store(PATIENT).put_if_absent("key", b"ours")


def test_without_a_lost_reply_equal_content_is_still_a_conflict(server: ScriptedServer) -> None:
    server.answers = [refusal(412, "PreconditionFailed")]
    with pytest.raises(ConflictError):
        server.store(PATIENT).put_if_absent("key", b"ours")
    assert len(server.requests) == 1


def test_a_broken_stream_goes_on_where_it_broke(server: ScriptedServer) -> None:
    content = bytes(range(256)) * 100_000  # three chunks
    first = 20_000_000
    arrived = 8 * 1024 * 1024

    def rest(start: int) -> Answer:
        headers = {"Content-Range": f"bytes {start}-{len(content) - 1}/{len(content)}"}
        return Answer(206, content[start:], headers)

    server.answers = [Answer(body=content), Answer(body=content, sent=first)]
    chunks = server.store(PATIENT).get_stream("key")
    received = next(chunks)
    assert arrived <= len(received) < first
    # Where the break is noticed depends on how the bytes came in, so the answer is made from the request.
    server.answers = _FromRequest(server, rest)
    assert received + b"".join(chunks) == content
    assert server.requests[-1][2]["if-match"] == '"etag"'


class _FromRequest(list[Answer]):
    """An endless script that answers the range that was asked for."""

    def __init__(self, server: ScriptedServer, make: object) -> None:
        super().__init__()
        self._server = server
        self._make = make

    def pop(self, _: object = 0) -> Answer:
        asked = self._server.requests[-1][2]["range"]
        return self._make(int(asked.removeprefix("bytes=").removesuffix("-")))  # type: ignore[operator,no-any-return]


def test_a_stream_does_not_go_on_in_another_version(server: ScriptedServer) -> None:
    content = b"x" * 20_000_000
    server.answers = [Answer(body=content, sent=12_000_000), refusal(412, "PreconditionFailed")]
    with pytest.raises(ConflictError):
        list(server.store(PATIENT).get_stream("key", etag='"etag"'))


def test_a_part_of_an_upload_is_repeated_without_the_others(server: ScriptedServer) -> None:
    created = b"<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"
    completed = b"<CompleteMultipartUploadResult><ETag>&quot;whole&quot;</ETag></CompleteMultipartUploadResult>"
    server.answers = [Answer(body=created), refusal(503, "SlowDown"), Answer(), Answer(body=completed)]
    assert server.store(PATIENT).put("key", iter([b"x" * 8 * 1024 * 1024])) == '"whole"'
    assert [method for method, _, _ in server.requests] == ["POST", "PUT", "PUT", "POST"]


def test_a_server_that_is_away_too_often_is_not_asked_any_more(server: ScriptedServer) -> None:
    server.answers = [refusal(503, "SlowDown")] * 5
    network = NetworkSettings(retry_attempts=1, breaker_failures=5)
    store = server.store(network)
    for _ in range(5):
        with pytest.raises(UnavailableError):
            store.head("key")
    for another in (store, server.store(network)):
        with pytest.raises(CircuitOpenError):
            another.head("key")
        with pytest.raises(CircuitOpenError):
            list(another.list())
    assert len(server.requests) == 5


# From settings to clients


def test_an_endpoint_means_the_bucket_in_the_path_unless_told_otherwise() -> None:
    config = s3_config("b", S3Settings(endpoint="http://host:9000"))
    assert (config["aws_endpoint_url_s3"], config["virtual_hosted_style_request"]) == ("http://host:9000", False)
    config = s3_config("b", S3Settings(endpoint="https://host", path_style=False))
    assert (config["aws_endpoint_url_s3"], config["virtual_hosted_style_request"]) == ("https://b.host", True)
    config = s3_config("b", S3Settings(region="eu-central-1"))
    assert (config["region"], config["virtual_hosted_style_request"]) == ("eu-central-1", True)
    assert "aws_endpoint_url_s3" not in config


def test_settings_win_over_the_environment(server: ScriptedServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "of somebody else")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    server.answers = [Answer(body=b"x")]
    assert server.store().get("key") == b"x"
    ((_, _, headers),) = server.requests
    assert "Credential=key/" in headers["authorization"]
    assert "x-amz-security-token" not in headers


@pytest.fixture
def aws_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    return tmp_path


def test_keys_come_from_a_profile(server: ScriptedServer, aws_files: Path) -> None:
    text = "[work]\naws_access_key_id = worker\naws_secret_access_key = secret\nregion = eu-west-1\n"
    (aws_files / "credentials").write_text(text)
    server.answers = [Answer(body=b"x")]
    s3 = S3Settings(endpoint=server.url, profile="work", region="eu-central-1")
    assert open_store("s3://bucket", s3=s3, network=ONE_TRY).get("key") == b"x"
    assert "Credential=worker/" in server.requests[0][2]["authorization"]
    assert "/eu-central-1/s3/" in server.requests[0][2]["authorization"]


@pytest.mark.parametrize("s3", [S3Settings(), S3Settings(profile="nobody")])
def test_no_keys_anywhere_is_told_before_anything_is_sent(aws_files: Path, s3: S3Settings) -> None:
    with pytest.raises(CredentialsError, match="no credentials") as caught:
        open_store("s3://bucket", s3=s3, network=ONE_TRY)
    assert "s3.profile" in (caught.value.hint or "")


def test_azure_takes_container_and_account_from_the_uri(monkeypatch: pytest.MonkeyPatch) -> None:
    location = parse("abfss://box@account.dfs.core.windows.net/path")
    clients = connect(location, S3Settings(), NetworkSettings())
    assert clients.once.config == {"container_name": "box", "account_name": "account"}
    assert server_name(location, S3Settings()) == "account.blob.core.windows.net"
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
    with pytest.raises(ConfigError, match="az://box") as caught:
        connect(parse("az://box/path"), S3Settings(), NetworkSettings())
    assert caught.value.hint


def test_google_takes_the_bucket_from_the_uri() -> None:
    clients = connect(parse("gs://bucket/path"), S3Settings(), NetworkSettings())
    assert clients.once.config == {"bucket": "bucket"}
    assert clients.once.retry_config is not None
    assert clients.once.retry_config["max_retries"] == 0


def test_only_servers_known_to_keep_key_order_are_trusted_with_it() -> None:
    keys = {"access_key": "k", "secret_key": "s"}
    aws, other = S3Settings.model_validate(keys), S3Settings.model_validate({**keys, "endpoint": "http://host"})
    azure = "abfss://box@account.dfs.core.windows.net/p"
    in_order = {
        uri: open_store(uri, s3=s3, network=ONE_TRY).lists_in_key_order
        for uri, s3 in [("s3://aws", aws), ("s3://other", other), ("gs://b", aws), (azure, aws)]
    }
    assert in_order == {"s3://aws": True, "s3://other": False, "gs://b": True, azure: False}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (exceptions.AlreadyExistsError("x"), ConflictError),
        (exceptions.PreconditionError("x"), ConflictError),
        (exceptions.UnauthenticatedError("x"), CredentialsError),
        (exceptions.NotSupportedError("x"), UnsupportedError),
        (FileNotFoundError("x"), NotFoundError),
        (FileNotFoundError("status code: 404: <Code>ContainerNotFound</Code>"), NotFoundError),
        (exceptions.GenericError("status code: 403: <Code>AuthenticationFailed</Code>"), CredentialsError),
        (exceptions.GenericError("status code: 503: <Code>ServerBusy</Code>"), UnavailableError),
        (exceptions.GenericError("no status at all"), FrazilError),
    ],
)
def test_azure_and_google_errors_are_ours_too(error: Exception, kind: type[FrazilError]) -> None:
    found = from_obstore(error, "az://box/key", "az://box")
    assert type(found) is kind
    assert found.hint
