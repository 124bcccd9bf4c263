"""PyIceberg's Hive catalog with time limits, which it lacks: a server that is silent would hang it for ever."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import urlsplit

from pyiceberg.catalog.hive import HiveCatalog, _HiveClient
from thrift.Thrift import TApplicationException
from thrift.transport import TSocket, TTransport

from frazil.catalogs.properties import HELLO_SECONDS
from frazil.settings import NetworkSettings


class TimedHiveCatalog(HiveCatalog):
    """Says hello when it is opened, with little patience; all later calls may take `network.read_timeout`."""

    def __init__(self, name: str, network: NetworkSettings, **properties: str) -> None:
        super().__init__(name, **properties)
        self._client = client = _TimedClient(self._client, min(network.read_timeout, HELLO_SECONDS))
        # That it does not know the question is an answer too.
        with client as metastore, suppress(TApplicationException):
            metastore.getStatus()
        client.seconds = network.read_timeout


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
