"""PyIceberg's REST catalog with time limits, which it lacks: a server that is silent would hang it for ever."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pyiceberg.catalog.rest import RestCatalog

from frazil.catalogs.properties import HELLO_SECONDS
from frazil.observe.logs import get_logger
from frazil.settings import CatalogSettings, NetworkSettings

if TYPE_CHECKING:
    from requests import Session


#: Where Nessie answers as an Iceberg REST catalog; at its root it does not.
_NESSIE_PATH = "/iceberg"

log = get_logger(__name__)


def with_endpoint(catalog: CatalogSettings, network: NetworkSettings) -> CatalogSettings:
    """Returns a REST catalog with the URI at which it answers: of Nessie, http://host:19120 is enough.

    Raises:
        requests.RequestException: the server does not answer.
    """
    uri = (catalog.uri or "").rstrip("/")
    if catalog.resolved_kind != "rest" or urlsplit(uri).path:
        return catalog
    found = _endpoint(uri, network.connect_timeout, min(network.read_timeout, HELLO_SECONDS))
    return catalog if found == uri else catalog.model_copy(update={"uri": found})


@lru_cache(maxsize=32)
def _endpoint(uri: str, connect_timeout: float, read_timeout: float) -> str:
    import requests

    def status(root: str) -> int:
        # Without credentials: a server that wants some says 401, which is an answer too.
        with requests.get(f"{root}/v1/config", timeout=(connect_timeout, read_timeout), stream=True) as answer:
            return answer.status_code

    if status(uri) != requests.codes.not_found or status(uri + _NESSIE_PATH) == requests.codes.not_found:
        return uri
    log.info("the catalog answers below its address", uri=uri, used=uri + _NESSIE_PATH)
    return uri + _NESSIE_PATH


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
