"""boto3 clients of S3 from settings, for what obstore cannot say, and the errors of servers as ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from frazil.errors import (
    ConfigError,
    CredentialsError,
    FrazilError,
    IntegrityError,
    NotAllowedError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    first_line,
)
from frazil.settings.model import NetworkSettings, S3Settings

#: Connections that one client keeps: as many as a task asks through at once.
_CONNECTIONS = 32

_WRONG_KEYS = {
    "SignatureDoesNotMatch",
    "InvalidAccessKeyId",
    "ExpiredToken",
    "InvalidToken",
    "TokenRefreshRequired",
    "RequestTimeTooSkewed",
}
_MISSING = {"404", "NoSuchKey", "NotFound", "NoSuchVersion"}
_ALTERED = {"BadDigest", "XAmzContentChecksumMismatch", "XAmzContentSHA256Mismatch"}
_REDIRECTED = {"PermanentRedirect", "AuthorizationHeaderMalformed", "301", "307"}


@lru_cache(maxsize=8)
def client_of(s3: S3Settings, network: NetworkSettings) -> Any:
    """Returns a boto3 client of S3. It is made once per process for the same settings, and safe for threads.

    Raises:
        CredentialsError: the profile of the settings is not there.
    """
    import boto3
    from botocore.config import Config
    from botocore.exceptions import BotoCoreError

    config = Config(
        connect_timeout=network.connect_timeout,
        read_timeout=network.read_timeout,
        retries={"total_max_attempts": network.retry_attempts, "mode": "standard"},
        s3={"addressing_style": "path" if s3.uses_path_style else "auto"},
        max_pool_connections=_CONNECTIONS,
        # Servers other than AWS do not know the checksums that boto3 sends by itself.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
    )
    try:
        session = boto3.Session(
            region_name=s3.region,
            profile_name=s3.profile if s3.access_key is None else None,
            aws_access_key_id=s3.access_key,
            aws_secret_access_key=s3.secret_key.get_secret_value() if s3.secret_key else None,
            aws_session_token=s3.session_token.get_secret_value() if s3.session_token else None,
        )
        # botocore reads times by guessing their format, which is more than half of the work of a listing.
        session._session.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
        return session.client("s3", endpoint_url=s3.endpoint, config=config)
    except (BotoCoreError, ValueError) as error:
        raise CredentialsError(
            "cannot create an S3 client", cause=first_line(error), hint="check s3.profile: frazil config show s3"
        ) from error


def _moment(text: Any) -> datetime:
    """Parses a time in the format of listings or in another format of AWS."""
    from botocore.utils import parse_timestamp

    try:
        found = datetime.fromisoformat(text)
    except (TypeError, ValueError):
        return parse_timestamp(text)  # type: ignore[no-any-return]
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


@contextmanager
def translated(bucket: str, key: str | None = None) -> Iterator[None]:
    """Raises the errors of boto3 within this block as ours."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (ClientError, BotoCoreError) as error:
        raise from_boto(error, bucket, key) from error


def from_boto(error: Exception, bucket: str, key: str | None = None) -> FrazilError:
    """Translates an error of boto3 for this bucket or key."""
    where = f"s3://{bucket}" if key is None else f"s3://{bucket}/{key}"
    answer: dict[str, Any] = getattr(error, "response", {})
    if not answer:
        return _without_answer(error, where)
    code = str(answer.get("Error", {}).get("Code", ""))
    status = int(answer.get("ResponseMetadata", {}).get("HTTPStatusCode", 0))
    cause = f"{code}: {answer.get('Error', {}).get('Message', '')}".strip(": ")
    if code == "NoSuchBucket":
        return NotFoundError(f"bucket not found: s3://{bucket}", cause=cause, hint="check its name, or create it")
    if code in _WRONG_KEYS or status == 401:
        return CredentialsError(
            f"the credentials were rejected for {where}",
            cause=cause,
            hint="check s3.access_key and s3.secret_key, or s3.profile",
        )
    if code in _REDIRECTED or status in (301, 307):
        return ConfigError(f"{where} is in another region", cause=cause, hint="set s3.region to the bucket's region")
    if code in _MISSING or status == 404:
        return NotFoundError(f"nothing found at {where}", cause=cause, hint="check the name and the bucket")
    if status == 403:
        return NotAllowedError(f"not allowed: {where}", cause=cause, hint="check the policy of user and bucket")
    if code in _ALTERED:
        return IntegrityError(
            f"the server received different bytes for {where} than were sent",
            cause=cause,
            hint="run the command again; check the network",
        )
    if status == 501 or code == "NotImplemented":
        return UnsupportedError(
            f"the server does not support this operation: {where}", cause=cause, hint="use another store"
        )
    if status in (408, 429) or status >= 500 or code == "SlowDown":
        return UnavailableError(f"the server is overloaded or failing: {where}", cause=cause, hint="try again later")
    if status == 400:
        return UsageError(f"the server rejects this: {where}", cause=cause, hint="check bucket and prefix")
    return FrazilError(
        f"the store rejected the request for {where}", cause=cause, hint="check the cause, the endpoint and the names"
    )


def _without_answer(error: Exception, where: str) -> FrazilError:
    name = type(error).__name__
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError", "TokenRetrievalError"):
        return CredentialsError(
            f"no credentials found for {where}",
            cause=first_line(error),
            hint="set s3.access_key and s3.secret_key, or s3.profile, or log in with the AWS tools",
        )
    if name == "ParamValidationError":
        return UsageError(f"{where} is not a bucket name", cause=first_line(error), hint="s3://bucket, or a folder")
    if name == "ResponseParserError":
        return FrazilError(f"the server of {where} does not respond like an S3 server", cause=first_line(error))
    return UnavailableError(
        f"no response from the server of {where}",
        cause=first_line(error),
        hint="check s3.endpoint, that it is up, and the network",
    )
