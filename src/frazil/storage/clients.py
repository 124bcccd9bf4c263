"""obstore clients from settings: one bucket, reached with three kinds of patience."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, TypeAlias

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, S3Store

from frazil.errors import ConfigError, CredentialsError, UsageError, first_line
from frazil.settings import environment
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage.uri import Location

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, RetryConfig, S3Config, S3Credential

Client: TypeAlias = S3Store | AzureStore | GCSStore

# obstore counts this from the first byte to the last, 30 s by default: too short for a large object.
# A silent server is noticed by the read timeout instead.
_WHOLE_REQUEST = timedelta(days=1)


@dataclass(frozen=True)
class Clients:
    """Three views of one bucket that differ in patience only."""

    once: Client
    """One try per request; trying again is the business of the wrapper."""
    bulk: Client
    """For uploads in parts and for listings: obstore repeats a single request, which nobody outside could."""
    greeting: Client
    """One try, and an answer within the time of a connection."""


def connect(location: Location, s3: S3Settings, network: NetworkSettings) -> Clients:
    """Creates the clients for the bucket of a location. Sends no request."""
    build = _builder(location, s3)
    connect_timeout = timedelta(seconds=network.connect_timeout)
    patient: ClientConfig = {
        "connect_timeout": connect_timeout,
        "read_timeout": timedelta(seconds=network.read_timeout),
        "timeout": _WHOLE_REQUEST,
    }
    brief: ClientConfig = {"connect_timeout": connect_timeout, "timeout": connect_timeout}
    repeat: RetryConfig = {
        "max_retries": network.retry_attempts - 1,
        "retry_timeout": timedelta(seconds=network.retry_timeout),
    }
    once: RetryConfig = {"max_retries": 0}
    try:
        return Clients(build(patient, once), build(patient, repeat), build(brief, once))
    except BaseError as error:
        raise ConfigError(
            f"cannot reach {location}",
            cause=first_line(error),
            hint="check account, endpoint and credentials in the settings",
        ) from error


def server_name(location: Location, s3: S3Settings) -> str:
    """Returns the name of the server behind a location, under which locations share a circuit breaker."""
    match location.scheme:
        case "s3":
            return s3.endpoint or f"s3.{s3.region}.amazonaws.com"
        case "gs":
            return "storage.googleapis.com"
        case _:
            return environment.azure_access().endpoint or f"{location.account or 'azure'}.blob.core.windows.net"


def _builder(location: Location, s3: S3Settings) -> Callable[[ClientConfig, RetryConfig], Client]:
    match location.scheme:
        case "s3":
            return _s3_builder(location.bucket, s3)
        case "abfss" | "az":
            config: AzureConfig = {"account_name": location.account} if location.account else {}
            allow_http = (environment.azure_access().endpoint or "").startswith("http://")
            return lambda options, retries: AzureStore(
                location.bucket,
                config=config,
                client_options={**options, "allow_http": allow_http},
                retry_config=retries,
            )
        case "gs":
            return lambda options, retries: GCSStore(location.bucket, client_options=options, retry_config=retries)
        case _:
            raise UsageError(f"{location} is not remote", hint="a location such as s3://bucket/key")


def _s3_builder(bucket: str, s3: S3Settings) -> Callable[[ClientConfig, RetryConfig], S3Store]:
    config = s3_config(bucket, s3)
    keys = _fixed_keys(s3) or _aws_keys(s3)
    allow_http = (s3.endpoint or "").startswith("http://")

    def build(options: ClientConfig, retries: RetryConfig) -> S3Store:
        return S3Store(
            bucket,
            config=config,
            client_options={**options, "allow_http": allow_http},
            retry_config=retries,
            credential_provider=keys,
        )

    return build


def s3_config(bucket: str, s3: S3Settings) -> S3Config:
    """Returns the settings that obstore must not take from the environment, which it reads itself."""
    config: S3Config = {
        "region": s3.region,
        "virtual_hosted_style_request": not s3.uses_path_style,
        "conditional_put": "etag",
        "skip_signature": False,
    }
    if s3.endpoint:
        endpoint = s3.endpoint
        if not s3.uses_path_style:
            endpoint = endpoint.replace("://", f"://{bucket}.", 1)
        # Under this name: as `endpoint`, an AWS_ENDPOINT_URL_S3 in the environment would win over our settings.
        config["aws_endpoint_url_s3"] = endpoint
    return config


def _fixed_keys(s3: S3Settings) -> Callable[[], S3Credential] | None:
    """Returns the keys of the settings as a provider: as configuration they would mix with AWS_SESSION_TOKEN."""
    if s3.access_key is None or s3.secret_key is None:
        return None
    credential: S3Credential = {
        "access_key_id": s3.access_key,
        "secret_access_key": s3.secret_key.get_secret_value(),
        "token": s3.session_token.get_secret_value() if s3.session_token else None,
        "expires_at": None,
    }
    return lambda: credential


def _aws_keys(s3: S3Settings) -> Callable[[], S3Credential]:
    """Keys from the AWS chain as boto3 knows it: environment, profile, SSO, web identity, instance role."""
    import boto3  # slow to import, and not needed with fixed keys
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    hint = "set s3.access_key and s3.secret_key, or s3.profile, or log in with the AWS tools"
    try:
        provider = Boto3CredentialProvider(boto3.Session(profile_name=s3.profile))
    except (BotoCoreError, ValueError) as error:
        raise CredentialsError("no credentials for S3 found", cause=first_line(error), hint=hint) from error
    provider.config = {}  # the region comes from our settings
    return provider
