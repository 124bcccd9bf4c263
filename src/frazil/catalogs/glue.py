"""AWS Glue: a client that has proved to answer, and a catalog whose pointers to metadata files can be set."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pyiceberg.catalog.glue import GlueCatalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError

from frazil.catalogs.hive_columns import list_columns
from frazil.catalogs.pointers import read_metadata_file
from frazil.catalogs.properties import HELLO_SECONDS
from frazil.errors import ConflictError
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


class GluePointers(GlueCatalog):
    """PyIceberg's Glue catalog, whose pointers can be set."""

    def pointer(self, identifier: tuple[str, ...]) -> str | None:
        try:
            return _pointer(self._entry(identifier))
        except NoSuchTableError:
            return None

    def insert_pointer(self, identifier: tuple[str, ...], location: str, metadata: Mapping[str, Any]) -> None:
        database, name = self.identifier_to_database_and_table(identifier)
        self._create_glue_table(database, name, _table_input(name, location, metadata, {}, {}))

    def move_pointer(
        self, identifier: tuple[str, ...], expected: str, location: str, metadata: Mapping[str, Any]
    ) -> None:
        database, name = self.identifier_to_database_and_table(identifier)
        replaced = read_metadata_file(self, expected).get("properties", {})
        entry = self._entry(identifier)
        if (found := _pointer(entry)) != expected:
            raise CommitFailedException(f"{database}.{name} was moved from {expected} to {found}")
        own = {k: v for k, v in entry["Parameters"].items() if k not in replaced}
        kept = {key: entry[key] for key in ("Owner", "Description") if key in entry}
        own["previous_metadata_location"] = expected
        table = _table_input(name, location, metadata, own, kept)
        self._update_glue_table(database, name, table, entry["VersionId"])

    def _entry(self, identifier: tuple[str, ...]) -> Any:
        database, name = self.identifier_to_database_and_table(identifier)
        return self._get_glue_table(database_name=database, table_name=name)


def _pointer(entry: Mapping[str, Any]) -> str | None:
    parameters = entry.get("Parameters", {})
    if parameters.get("table_type", "").lower() != "iceberg":
        raise ConflictError(
            f"{entry['DatabaseName']}.{entry['Name']} exists and is not an Iceberg table",
            hint="choose another name, or drop it first",
        )
    location: str | None = parameters.get("metadata_location")
    return location


def _table_input(
    name: str, location: str, metadata: Mapping[str, Any], parameters: Mapping[str, str], kept: Mapping[str, Any]
) -> dict[str, Any]:
    columns = [
        {
            "Name": column.name,
            "Type": column.type,
            "Parameters": {
                "iceberg.field.id": str(column.field_id),
                "iceberg.field.optional": str(not column.required).lower(),
                "iceberg.field.current": str(column.is_current).lower(),
            },
            **({"Comment": column.doc} if column.doc else {}),
        }
        for column in list_columns(metadata)
    ]
    own = {"table_type": "ICEBERG", "metadata_location": location}
    return {
        **kept,
        "Name": name,
        "TableType": "EXTERNAL_TABLE",
        "Parameters": {**parameters, **metadata.get("properties", {}), **own},
        "StorageDescriptor": {"Columns": columns, "Location": metadata["location"]},
    }


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
