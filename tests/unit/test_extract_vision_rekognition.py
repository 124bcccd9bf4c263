"""Labels by Rekognition, which moto plays: what is sent, with whose keys, and what becomes of its errors."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.awsrequest import AWSResponse
from botocore.exceptions import ClientError
from moto import mock_aws
from PIL import Image

from frazil.extract import Unsupported
from frazil.extract.engine import context
from frazil.extract.engine.context import ExtractorContext
from frazil.extract.vision import rekognition
from frazil.extract.vision.rekognition import REKOGNITION, client_of
from frazil.settings import NetworkSettings, S3Settings
from tests.extract_kit import MemoryItem

KEYS = {"access_key": "AKIAOURS", "secret_key": "ours", "region": "eu-central-1"}


@pytest.fixture(autouse=True)
def _no_keys_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    yield
    client_of.cache_clear()


def use(monkeypatch: pytest.MonkeyPatch, **s3: Any) -> Any:
    """Takes these settings; gives the client that is made of them."""
    chosen = ExtractorContext(Path("unused"), S3Settings(**(KEYS | s3)), NetworkSettings(retry_attempts=3))
    monkeypatch.setattr(context, "_used", [chosen])
    return client_of(chosen.s3, chosen.network)


def picture(side: int = 1500) -> bytes:
    held = io.BytesIO()
    Image.effect_noise((side, side), 80).convert("RGB").save(held, "JPEG", quality=95)
    return held.getvalue()


def item(data: bytes | None = None, *, version_id: str = "", bucket: str = "photos") -> MemoryItem:
    made = MemoryItem(picture(64) if data is None else data, "a.jpg", detected_type="image/jpeg")
    made.version_id, made.bucket = version_id, bucket
    return made


Answer = tuple[int, dict[str, Any]]


def answering(client: Any, answers: list[Answer]) -> list[dict[str, Any]]:
    """Lets the client hear these, one after the other, in place of a server; gives what it asked."""
    asked: list[dict[str, Any]] = []

    def answer(request: Any, **_: Any) -> AWSResponse:
        asked.append(json.loads(request.body) | {"authorization": request.headers["Authorization"].decode()})
        status, body = answers[min(len(asked), len(answers)) - 1]
        text = json.dumps(body).encode()
        made = AWSResponse(request.url, status, {"Content-Type": "application/x-amz-json-1.1"}, io.BytesIO(text))
        made._content = text
        return made

    client.meta.events.register("before-send.rekognition", answer)
    return asked


OK: Answer = (
    200,
    {"Labels": [{"Name": "Cat", "Confidence": 98.76, "Parents": [{"Name": "Pet"}]}], "LabelModelVersion": "3.0"},
)


def failing(code: str) -> Answer:
    return 400, {"__type": code, "message": "…"}


@mock_aws
def test_labels_come_back_in_the_shape_of_the_other_ones(monkeypatch: pytest.MonkeyPatch):
    use(monkeypatch)
    told = REKOGNITION.look(item(picture()))
    assert {"Name", "Confidence", "Parents"} == set(told["Labels"][0])
    assert told["Labels"][0]["Name"] == "Mobile Phone"
    assert told["LabelModelVersion"] == "3.0"
    assert all(isinstance(p, str) for p in told["Labels"][0]["Parents"])


def test_a_version_in_a_bucket_of_amazon_is_read_by_rekognition_itself(monkeypatch: pytest.MonkeyPatch):
    asked = answering(use(monkeypatch), [OK])
    wanted = item(version_id="v7")
    told = REKOGNITION.look(wanted)
    assert told == {"Labels": [{"Name": "Cat", "Confidence": 98.8, "Parents": ["Pet"]}], "LabelModelVersion": "3.0"}
    assert asked[0]["Image"] == {"S3Object": {"Bucket": "photos", "Name": "a.jpg", "Version": "v7"}}
    assert asked[0]["MaxLabels"] == rekognition.MAX_LABELS
    assert asked[0]["MinConfidence"] == rekognition.MIN_CONFIDENCE
    assert wanted.bytes_read == 0


@pytest.mark.parametrize(
    "more",
    [
        {},  # without a version the key may have another content by now
        {"version_id": "null"},
        {"version_id": "v7", "bucket": "file:///photos"},
    ],
)
def test_what_rekognition_cannot_read_is_sent(monkeypatch: pytest.MonkeyPatch, more: dict[str, str]):
    asked = answering(use(monkeypatch), [OK])
    REKOGNITION.look(item(**more))
    assert set(asked[0]["Image"]) == {"Bytes"}


def test_a_large_picture_is_sent_as_a_small_one(monkeypatch: pytest.MonkeyPatch):
    use(monkeypatch)
    data = picture(3000)
    assert len(data) > 5 << 20
    sent = rekognition.reduce_picture(item(data))
    assert len(sent) < 5 << 20
    assert Image.open(io.BytesIO(sent)).size == (1024, 1024)


def test_an_object_that_rekognition_may_not_read_is_sent(monkeypatch: pytest.MonkeyPatch):
    asked = answering(use(monkeypatch), [failing("InvalidS3ObjectException"), OK])
    assert REKOGNITION.look(item(version_id="v7"))["Labels"][0]["Name"] == "Cat"
    assert [set(a["Image"]) for a in asked] == [{"S3Object"}, {"Bytes"}]


@pytest.mark.parametrize("code", ["ThrottlingException", "ProvisionedThroughputExceededException"])
def test_what_was_throttled_is_tried_again(monkeypatch: pytest.MonkeyPatch, no_waiting: None, code: str):
    asked = answering(use(monkeypatch), [failing(code), failing(code), OK])
    assert REKOGNITION.look(item())["Labels"]
    assert len(asked) == 3


def test_being_throttled_has_an_end(monkeypatch: pytest.MonkeyPatch, no_waiting: None):
    asked = answering(use(monkeypatch), [failing("ThrottlingException")])
    with pytest.raises(ClientError, match="ThrottlingException"):
        REKOGNITION.look(item())
    assert len(asked) == 3


def test_access_denied_is_a_failure_with_its_reason_and_not_tried_again(monkeypatch: pytest.MonkeyPatch):
    asked = answering(use(monkeypatch), [failing("AccessDeniedException")])
    with pytest.raises(ClientError, match="AccessDeniedException"):
        REKOGNITION.look(item())
    assert len(asked) == 1


def test_a_format_that_rekognition_does_not_know_is_unsupported(monkeypatch: pytest.MonkeyPatch):
    answering(use(monkeypatch), [failing("InvalidImageFormatException")])
    with pytest.raises(Unsupported, match="format"):
        REKOGNITION.look(item())


def test_keys_of_another_server_are_not_sent_to_amazon(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAAMAZON")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "amazon")
    client = use(monkeypatch, endpoint="http://127.0.0.1:9000")
    asked = answering(client, [OK])
    REKOGNITION.look(item(version_id="v7"))
    assert "AKIAAMAZON" in asked[0]["authorization"]
    assert "AKIAOURS" not in asked[0]["authorization"]
    assert set(asked[0]["Image"]) == {"Bytes"}  # the bucket is none of Amazon's
    assert client.meta.endpoint_url == "https://rekognition.eu-central-1.amazonaws.com"


def test_it_runs_only_where_it_is_named():
    assert not REKOGNITION.default


@pytest.fixture
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
