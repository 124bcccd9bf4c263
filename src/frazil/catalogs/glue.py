"""A client of AWS Glue, or of a server that speaks its protocol, that has proved to answer."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from frazil.catalogs.properties import HELLO_SECONDS
from frazil.settings import CatalogSettings, NetworkSettings


def glue_client(settings: CatalogSettings, network: NetworkSettings) -> Any:
    """Asks one small question first, once and with little patience: what is tried again takes too long to fail."""
    from botocore.config import Config
    from botocore.exceptions import ClientError

    hello = Config(
        connect_timeout=network.connect_timeout,
        read_timeout=min(network.read_timeout, HELLO_SECONDS),
        retries={"total_max_attempts": 1},
    )
    with suppress(ClientError):  # a refusal is an answer too; it is told when something is really asked
        _client(settings, hello).get_databases(MaxResults=1)
    patient = Config(
        connect_timeout=network.connect_timeout,
        read_timeout=network.read_timeout,
        retries={"max_attempts": 2, "mode": "standard"},
    )
    return _client(settings, patient)


def _client(settings: CatalogSettings, config: Any) -> Any:
    import boto3

    s3 = settings.s3
    assert s3 is not None  # Settings.catalog() completes it
    session = boto3.Session(
        region_name=s3.region,
        aws_access_key_id=s3.access_key,
        aws_secret_access_key=s3.secret_key.get_secret_value() if s3.secret_key else None,
        aws_session_token=s3.session_token.get_secret_value() if s3.session_token else None,
    )
    return session.client("glue", endpoint_url=settings.endpoint, config=config)
