"""PyIceberg's REST catalog with time limits, which it lacks: a server that is silent would hang it for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyiceberg.catalog.rest import RestCatalog

from frazil.catalogs.properties import HELLO_SECONDS
from frazil.settings import NetworkSettings

if TYPE_CHECKING:
    from requests import Session


class TimedRestCatalog(RestCatalog):
    def __init__(self, name: str, network: NetworkSettings, **properties: str) -> None:
        self._network = network
        super().__init__(name, **properties)

    def _create_session(self) -> Session:
        session = super()._create_session()
        send = session.send
        network = self._network

        def send_in_time(request: Any, **kwargs: Any) -> Any:
            hello = request.path_url.split("?")[0].endswith(("/config", "/tokens", "/token"))
            read = min(network.read_timeout, HELLO_SECONDS) if hello else network.read_timeout
            return send(request, **kwargs | {"timeout": (network.connect_timeout, read)})

        session.send = send_in_time  # type: ignore[method-assign]
        return session
