"""One catalog's settings, written in the words of PyIceberg and in the words of Spark. Pure functions."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from pydantic import SecretStr

from frazil.catalogs.locations import local_path
from frazil.settings import CatalogSettings, NetworkSettings, S3Settings

#: Seconds that a writer waits for another one's commit in the embedded database.
BUSY_SECONDS = 60
#: A server's first answer (its configuration, a token, its status) is small: one that needs longer is not well.
HELLO_SECONDS = 5.0

_CATALOG_TYPE = {"sql": "jdbc", "rest": "rest", "glue": "glue", "hive": "hive"}


def pyiceberg_properties(catalog: CatalogSettings, network: NetworkSettings | None = None) -> dict[str, str]:
    """Returns the properties for `pyiceberg.catalog.load_catalog(name, **properties)`."""
    kind = catalog.resolved_kind
    found: dict[str, str | None] = {"type": kind, "warehouse": _warehouse(catalog)}
    if kind == "sql":
        found["uri"] = _sqlalchemy_url(sqlite_file(catalog))
    else:
        found["uri"] = catalog.uri
    if kind == "rest":
        found |= _rest(catalog)
    if kind == "glue":
        found["glue.endpoint"] = catalog.endpoint
    found |= _pyiceberg_s3(catalog.s3 or S3Settings())
    if network is not None:
        found["s3.connect-timeout"] = str(network.connect_timeout)
    return {k: v for k, v in found.items() if v is not None} | catalog.properties


def spark_conf(catalog: CatalogSettings) -> dict[str, str]:
    """Returns the `spark.sql.catalog.<name>` settings with which Spark sees the same tables."""
    kind = catalog.resolved_kind
    found: dict[str, str | None] = {
        "type": _CATALOG_TYPE[kind],
        "warehouse": _warehouse(catalog),
        # With Spark's cache a table stays as it was first seen, and commits of others are missed.
        "cache-enabled": "false",
        # One class for file:, s3:, abfs:, gs: paths; it loads what a path's scheme asks for.
        "io-impl": "org.apache.iceberg.io.ResolvingFileIO",
    }
    if kind == "sql":
        found |= {
            "uri": _jdbc_url(sqlite_file(catalog)),
            "jdbc.schema-version": "V1",
            "jdbc.busy_timeout": str(BUSY_SECONDS * 1000),
        }
    elif kind != "glue":
        found["uri"] = catalog.uri
    if kind == "rest":
        found |= _rest(catalog)
        found |= _spark_signing(catalog) if catalog.sigv4 else {}
    if kind == "glue":
        found["glue.endpoint"] = catalog.endpoint
    found |= _spark_s3(catalog.s3 or S3Settings())
    properties = {k: v for k, v in found.items() if v is not None} | catalog.properties
    prefix = f"spark.sql.catalog.{catalog.name}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog"} | {f"{prefix}.{k}": v for k, v in properties.items()}


def sqlite_file(catalog: CatalogSettings) -> Path:
    return Path((catalog.uri or "").removeprefix("sqlite:///"))


def _sqlalchemy_url(file: Path) -> str:
    from sqlalchemy import URL

    return URL.create("sqlite", database=str(file), query={"timeout": str(BUSY_SECONDS)}).render_as_string()


def _jdbc_url(file: Path) -> str:
    """Builds a JDBC URL; a path with a '?' needs SQLite's URI form, because JDBC would parse options after it."""
    return f"jdbc:sqlite:file:{quote(str(file))}" if "?" in str(file) else f"jdbc:sqlite:{file}"


def _warehouse(catalog: CatalogSettings) -> str | None:
    """Returns the warehouse; a local folder as a file:// URI, so that both engines spell paths alike."""
    local = local_path(catalog.warehouse or "")
    return catalog.warehouse if local is None else f"file://{local}"


def _rest(catalog: CatalogSettings) -> dict[str, str | None]:
    return {
        "token": _revealed(catalog.token),
        "credential": _revealed(catalog.credential),
        "oauth2-server-uri": catalog.oauth2_uri,
        "scope": catalog.scope,
        "rest.sigv4-enabled": "true" if catalog.sigv4 else None,
        "rest.signing-name": catalog.signing_name if catalog.sigv4 else None,
        "rest.signing-region": (catalog.s3 or S3Settings()).region if catalog.sigv4 else None,
    }


def _spark_signing(catalog: CatalogSettings) -> dict[str, str | None]:
    s3 = catalog.s3 or S3Settings()
    return {
        "rest.access-key-id": s3.access_key,
        "rest.secret-access-key": _revealed(s3.secret_key),
        "rest.session-token": _revealed(s3.session_token),
    }


def _pyiceberg_s3(s3: S3Settings) -> dict[str, str | None]:
    keys = {
        "access-key-id": s3.access_key,
        "secret-access-key": _revealed(s3.secret_key),
        "session-token": _revealed(s3.session_token),
        "profile-name": s3.profile,
        "region": s3.region,
    }
    found: dict[str, str | None] = {f"{prefix}.{k}": v for prefix in ("s3", "client") for k, v in keys.items()}
    found["s3.endpoint"] = s3.endpoint
    found["s3.force-virtual-addressing"] = "false" if s3.uses_path_style else "true"
    return found


def _spark_s3(s3: S3Settings) -> dict[str, str | None]:
    return {
        "s3.endpoint": s3.endpoint,
        "s3.access-key-id": s3.access_key,
        "s3.secret-access-key": _revealed(s3.secret_key),
        "s3.session-token": _revealed(s3.session_token),
        "s3.path-style-access": "true" if s3.uses_path_style else "false",
        "client.region": s3.region,
    }


def _revealed(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret is not None else None
