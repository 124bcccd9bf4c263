"""Names under which other systems know our settings. They keep working, so nobody configures anything twice."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from frazil.settings.keys import Path


def _bucket_uri(text: str) -> str:
    return text if "://" in text or text.startswith(("/", ".", "~")) else f"s3://{text}/"


def _metastore_uri(text: str) -> str:
    return text if "://" in text else f"thrift://{text}"


@dataclass(frozen=True)
class Name:
    """A name of another system for one of our settings.

    Attributes:
        path: our setting.
        convert: from their way of writing a value to ours.
        announce: the name is used by many programs, so its use is said aloud.
        weak: only a fallback within its own source (a bucket where no warehouse is named).
    """

    path: Path
    convert: Callable[[str], str] = str
    announce: bool = False
    weak: bool = False


#: In the environment, strongest first: of two that disagree the earlier is used, and the other reported.
ENVIRONMENT_NAMES: dict[str, Name] = {
    "ICEBERG_CATALOG_URI": Name(("catalog", "uri")),
    "ICEBERG_S3_ENDPOINT": Name(("s3", "endpoint")),
    "ICEBERG_WAREHOUSE_PATH": Name(("catalog", "warehouse")),
    "DATABASE_URL": Name(("database", "url"), announce=True),
    "S3_ENDPOINT": Name(("s3", "endpoint"), announce=True),
    "S3_ACCESS_KEY": Name(("s3", "access_key"), announce=True),
    "S3_SECRET_KEY": Name(("s3", "secret_key"), announce=True),
    "HIVE_METASTORE_URI": Name(("catalog", "uri"), _metastore_uri, announce=True),
    "BACKUP_BUCKET": Name(("backup", "bucket"), announce=True),
    "WAREHOUSE_BUCKET": Name(("catalog", "warehouse"), _bucket_uri, announce=True),
    "AWS_ENDPOINT_URL_S3": Name(("s3", "endpoint"), announce=True),
    "AWS_ENDPOINT_URL": Name(("s3", "endpoint"), announce=True),
    "AWS_REGION": Name(("s3", "region")),
    "AWS_DEFAULT_REGION": Name(("s3", "region")),
    "AWS_ACCESS_KEY_ID": Name(("s3", "access_key")),
    "AWS_SECRET_ACCESS_KEY": Name(("s3", "secret_key")),
    "AWS_SESSION_TOKEN": Name(("s3", "session_token")),
    "AWS_PROFILE": Name(("s3", "profile")),
}

_CATALOG = "storage.iceberg_config.catalog."
_OBJECTS = "storage.iceberg_config.object_store."
_WAL = "storage.iceberg_config.wal."

#: In a settings file, dotted.
FILE_NAMES: dict[str, Name] = {
    "iceberg.catalog_uri": Name(("catalog", "uri")),
    "iceberg.s3_endpoint": Name(("s3", "endpoint")),
    "iceberg.warehouse_path": Name(("catalog", "warehouse")),
    _CATALOG + "type": Name(("catalog", "kind")),
    _CATALOG + "uri": Name(("catalog", "uri")),
    _CATALOG + "warehouse": Name(("catalog", "warehouse")),
    _CATALOG + "token": Name(("catalog", "token")),
    _CATALOG + "database": Name(("topics", "namespace")),
    _OBJECTS + "bucket": Name(("catalog", "warehouse"), _bucket_uri, weak=True),
    _OBJECTS + "path": Name(("catalog", "warehouse"), weak=True),
    _OBJECTS + "region": Name(("s3", "region")),
    _OBJECTS + "endpoint": Name(("s3", "endpoint")),
    _OBJECTS + "path_style": Name(("s3", "path_style")),
    _WAL + "base_path": Name(("log", "directory")),
    _WAL + "max_file_size": Name(("log", "max_file_size")),
    _WAL + "sync_mode": Name(("log", "sync_mode")),
    _WAL + "sync_interval_ms": Name(("log", "sync_interval_ms")),
    "storage.iceberg_config.warehouse": Name(("catalog", "warehouse")),
}

#: Keys of the source systems that choose what Frazil always is; any other value is refused.
FIXED_KEYS: dict[str, tuple[str, ...]] = {
    "storage.type": ("iceberg",),
    _OBJECTS + "type": ("s3", "local"),
}

#: PyIceberg's catalog properties that are settings of ours; the rest goes to `properties` as it is. Strongest first:
#: as in PyIceberg, `s3.…` goes before `client.…`, which is for all of AWS.
PYICEBERG_NAMES: dict[str, Path] = {
    "type": ("kind",),
    "uri": ("uri",),
    "warehouse": ("warehouse",),
    "token": ("token",),
    "credential": ("credential",),
    "oauth2-server-uri": ("oauth2_uri",),
    "scope": ("scope",),
    "rest.sigv4-enabled": ("sigv4",),
    "rest.signing-name": ("signing_name",),
    "glue.endpoint": ("endpoint",),
    "s3.endpoint": ("s3", "endpoint"),
    "s3.force-virtual-addressing": ("s3", "path_style"),
    "s3.region": ("s3", "region"),
    "s3.access-key-id": ("s3", "access_key"),
    "s3.secret-access-key": ("s3", "secret_key"),
    "s3.session-token": ("s3", "session_token"),
    "s3.profile-name": ("s3", "profile"),
    "client.region": ("s3", "region"),
    "client.access-key-id": ("s3", "access_key"),
    "client.secret-access-key": ("s3", "secret_key"),
    "client.session-token": ("s3", "session_token"),
    "client.profile-name": ("s3", "profile"),
    "glue.region": ("s3", "region"),
    "glue.access-key-id": ("s3", "access_key"),
    "glue.secret-access-key": ("s3", "secret_key"),
    "glue.session-token": ("s3", "session_token"),
    "glue.profile-name": ("s3", "profile"),
}
