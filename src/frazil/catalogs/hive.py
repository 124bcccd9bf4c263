"""PyIceberg's Hive catalog with what it lacks: time limits, and pointers to metadata files that can be set.

Without a limit, a server that is silent would hang it for ever.
"""

from __future__ import annotations

import getpass
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from hive_metastore import ttypes as metastore  # type: ignore[import-untyped]
from pyiceberg.catalog.hive import (
    DO_NOT_UPDATE_STATS,
    DO_NOT_UPDATE_STATS_DEFAULT,
    HIVE2_COMPATIBLE,
    HIVE2_COMPATIBLE_DEFAULT,
    HiveCatalog,
    _construct_parameters,
    _HiveClient,
)
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError, WaitingForLockException
from pyiceberg.utils.properties import property_as_bool
from thrift.Thrift import TApplicationException
from thrift.transport import TSocket, TTransport

from frazil.catalogs.hive_columns import list_columns
from frazil.catalogs.pointers import read_metadata_file
from frazil.catalogs.properties import HELLO_SECONDS
from frazil.errors import ConflictError
from frazil.settings import NetworkSettings


class TimedHiveCatalog(HiveCatalog):
    """Says hello when it is opened, with little patience; all later calls may take `network.read_timeout`."""

    def __init__(self, name: str, network: NetworkSettings, **properties: str) -> None:
        super().__init__(name, **properties)
        self._client = client = _TimedClient(self._client, min(network.read_timeout, HELLO_SECONDS))
        # That it does not know the question is an answer too.
        with client as opened, suppress(TApplicationException):
            opened.getStatus()
        client.seconds = network.read_timeout

    def pointer(self, identifier: tuple[str, ...]) -> str | None:
        with self._client as client:
            return self._pointer(client, identifier)

    def insert_pointer(self, identifier: tuple[str, ...], location: str, metadata: Mapping[str, Any]) -> None:
        database, name = self.identifier_to_database_and_table(identifier)
        properties = metadata.get("properties", {})
        table = metastore.Table(
            dbName=database,
            tableName=name,
            owner=properties.get("owner", getpass.getuser()),
            createTime=int(time.time()),
            lastAccessTime=int(time.time()),
            sd=self._storage(metadata),
            tableType="EXTERNAL_TABLE",
            parameters=_parameters(location, None, metadata),
        )
        with self._client as client:
            self._create_hive_table(client, table)

    def move_pointer(
        self, identifier: tuple[str, ...], expected: str, location: str, metadata: Mapping[str, Any]
    ) -> None:
        database, name = self.identifier_to_database_and_table(identifier)
        replaced = read_metadata_file(self, expected).get("properties", {})
        with self._client as client, self._locked(client, database, name):
            if (found := self._pointer(client, identifier)) != expected:
                raise CommitFailedException(f"{database}.{name} was moved from {expected} to {found}")
            table = self._get_hive_table(client, database, name)
            own = {k: v for k, v in table.parameters.items() if k not in replaced and k not in _STATE}
            table.parameters = own | _parameters(location, expected, metadata)
            table.sd = self._storage(metadata)
            # Newer metastores compare too, for writers that take no lock.
            compare = {"expected_parameter_key": "metadata_location", "expected_parameter_value": expected}
            context = metastore.EnvironmentContext(
                properties={DO_NOT_UPDATE_STATS: DO_NOT_UPDATE_STATS_DEFAULT, **compare}
            )
            client.alter_table_with_environment_context(
                dbname=database, tbl_name=name, new_tbl=table, environment_context=context
            )

    def _pointer(self, client: Any, identifier: tuple[str, ...]) -> str | None:
        database, name = self.identifier_to_database_and_table(identifier)
        try:
            parameters = self._get_hive_table(client, database, name).parameters or {}
        except NoSuchTableError:
            return None
        if parameters.get("table_type", "").lower() != "iceberg":
            raise ConflictError(
                f"{database}.{name} exists and is not an Iceberg table", hint="choose another name, or drop it first"
            )
        location: str | None = parameters.get("metadata_location")
        return location

    @contextmanager
    def _locked(self, client: Any, database: str, name: str) -> Iterator[None]:
        lock = client.lock(self._create_lock_request(database, name))
        try:
            if lock.state == metastore.LockState.WAITING:
                self._wait_for_lock(database, name, lock.lockid, client)
            elif lock.state != metastore.LockState.ACQUIRED:
                raise CommitFailedException(f"the metastore rejected a lock on {database}.{name}")
            yield
        except WaitingForLockException as error:
            raise CommitFailedException(f"{database}.{name} is locked by another writer") from error
        finally:
            client.unlock(metastore.UnlockRequest(lockid=lock.lockid))

    def _storage(self, metadata: Mapping[str, Any]) -> Any:
        for_hive2 = property_as_bool(self.properties, HIVE2_COMPATIBLE, HIVE2_COMPATIBLE_DEFAULT)
        zoned = "timestamp" if for_hive2 else "timestamp with local time zone"
        columns = [c for c in list_columns(metadata, zoned=zoned) if c.is_current]
        return metastore.StorageDescriptor(
            [metastore.FieldSchema(column.name, column.type, column.doc) for column in columns],
            metadata["location"],
            "org.apache.hadoop.mapred.FileInputFormat",
            "org.apache.hadoop.mapred.FileOutputFormat",
            serdeInfo=metastore.SerDeInfo(serializationLib="org.apache.hadoop.hive.serde2.lazy.LazySimpleSerDe"),
        )


#: What Iceberg for Java repeats of a table's state in the metastore, and sets with each of its commits.
_STATE = (
    "current-schema",
    "current-snapshot-id",
    "current-snapshot-summary",
    "current-snapshot-timestamp-ms",
    "default-partition-spec",
    "default-sort-order",
    "numFiles",
    "numRows",
    "snapshot-count",
    "totalSize",
)


def _parameters(location: str, previous: str | None, metadata: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = _construct_parameters(location, previous, metadata.get("properties", {}))
    return found | {"uuid": metadata["table-uuid"]}


class _TimedClient(_HiveClient):
    def __init__(self, untimed: _HiveClient, seconds: float) -> None:
        self.seconds = seconds
        user = ":".join(untimed._ugi) if untimed._ugi else None
        super().__init__(untimed._uri, user, untimed._kerberos_auth, untimed._kerberos_service_name)

    def _init_thrift_transport(self) -> TTransport.TTransportBase:
        """As PyIceberg makes it, but for the time limit."""
        parts = urlsplit(self._uri)
        socket = TSocket.TSocket(parts.hostname, parts.port or 9083)
        socket.setTimeout(self.seconds * 1000)
        if not self._kerberos_auth:
            return TTransport.TBufferedTransport(socket)
        return TTransport.TSaslClientTransport(socket, host=parts.hostname, service=self._kerberos_service_name)
