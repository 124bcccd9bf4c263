"""The extractor `rekognition`: labels by Amazon Rekognition. Must be named: it costs money and sends pictures away."""

from __future__ import annotations

import io
from functools import lru_cache
from typing import Any, Final

from frazil.extract import Item, Unsupported, extractor
from frazil.extract.engine import context
from frazil.extract.images.decode import DECODED, picture_of
from frazil.settings import NetworkSettings, S3Settings

MAX_LABELS: Final = 50
MIN_CONFIDENCE: Final = 55.0

#: Types that Rekognition reads from a bucket by itself.
_READABLE: Final = ("image/jpeg", "image/png")
_MOST_IN_BUCKET: Final = 15 << 20
_MOST_SENT: Final = 5 << 20
#: Pixels of the shorter side of sent pictures; more does not improve labels.
_SIDE: Final = 1024
_QUALITIES: Final = (90, 75, 50)

#: Errors if Rekognition cannot read the object: another region, no permission, encrypted with another key.
_NOT_FROM_BUCKET: Final = {"InvalidS3ObjectException", "ImageTooLargeException"}


@extractor(
    "rekognition",
    version="1",
    types=DECODED,
    reads="whole",
    alone=True,
    default=False,
    fields={
        "Labels": "each with `Name`, `Confidence` in percent, and its broader names as `Parents`",
        "LabelModelVersion": "of Amazon's model",
    },
)
def REKOGNITION(item: Item) -> dict[str, Any]:  # noqa: N802 - becomes an Extractor
    """Labels of an image, by Amazon Rekognition (DetectLabels), in the region in the settings."""
    found = context.current_context()
    answer = _detected(client_of(found.s3, found.network), item, in_amazon=found.s3.endpoint is None)
    labels = [
        {"Name": label["Name"], "Confidence": round(label["Confidence"], 1)}
        | ({"Parents": [parent["Name"] for parent in label["Parents"]]} if label.get("Parents") else {})
        for label in answer.get("Labels", ())
    ]
    return {"Labels": labels, "LabelModelVersion": answer.get("LabelModelVersion")}


def _detected(client: Any, item: Item, *, in_amazon: bool) -> dict[str, Any]:
    from botocore.exceptions import ClientError

    place = object_reference(item) if in_amazon else None
    try:
        if place is not None:
            try:
                return _asked(client, {"S3Object": place})
            except ClientError as error:
                if _code(error) not in _NOT_FROM_BUCKET:
                    raise
        return _asked(client, {"Bytes": reduce_picture(item)})
    except ClientError as error:
        if _code(error) == "InvalidImageFormatException":
            raise Unsupported("Rekognition does not know this format") from error
        raise


def _asked(client: Any, image: dict[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = client.detect_labels(Image=image, MaxLabels=MAX_LABELS, MinConfidence=MIN_CONFIDENCE)
    return answer


def object_reference(item: Item) -> dict[str, str] | None:
    """Returns the reference by which Rekognition reads the object itself; None if it has to be sent.

    Only a version is sure to be the content that is meant: a key alone may have another one by now.
    """
    if "://" in item.bucket or not item.version_id or item.version_id == "null":
        return None
    if item.detected_type not in _READABLE or item.size > _MOST_IN_BUCKET:
        return None
    return {"Bucket": item.bucket, "Name": item.key, "Version": item.version_id}


def reduce_picture(item: Item) -> bytes:
    """Returns the picture as a small JPEG."""
    from PIL.Image import Resampling

    picture = picture_of(item, _SIDE).convert("RGB")
    scale = _SIDE / min(picture.size)
    if scale < 1:
        size = (max(1, round(picture.width * scale)), max(1, round(picture.height * scale)))
        picture = picture.resize(size, Resampling.BILINEAR, reducing_gap=2.0)
    for quality in _QUALITIES:
        held = io.BytesIO()
        picture.save(held, "JPEG", quality=quality)
        if held.tell() <= _MOST_SENT:
            return held.getvalue()
    raise Unsupported(f"even reduced it is larger than the {_MOST_SENT >> 20} MB that Rekognition takes")


@lru_cache(maxsize=2)
def client_of(s3: S3Settings, network: NetworkSettings) -> Any:
    """Returns a client of Rekognition that retries throttled requests.

    Keys of another server than Amazon's are not sent to Amazon: with `s3.endpoint`, the AWS chain has to have some.
    """
    import boto3
    from botocore.config import Config

    ours = s3.endpoint is None
    session = boto3.Session(
        region_name=s3.region,
        profile_name=s3.profile if s3.access_key is None else None,
        aws_access_key_id=s3.access_key if ours else None,
        aws_secret_access_key=s3.secret_key.get_secret_value() if ours and s3.secret_key else None,
        aws_session_token=s3.session_token.get_secret_value() if ours and s3.session_token else None,
    )
    return session.client(
        "rekognition",
        config=Config(
            connect_timeout=network.connect_timeout,
            read_timeout=network.read_timeout,
            retries={"total_max_attempts": network.retry_attempts, "mode": "standard"},
        ),
    )


def _code(error: Any) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))
