"""PyIceberg's REST catalog with time limits, which it lacks: a server that is silent would hang it for ever."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from pyiceberg.catalog import TOKEN
from pyiceberg.catalog.rest import Endpoints, RestCatalog
from pyiceberg.catalog.rest.response import _handle_non_200_response
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
    UnauthorizedError,
)
from pyiceberg.table import CommitTableResponse
from pyiceberg.table.update import AddSchemaUpdate

from frazil.catalogs.properties import HELLO_SECONDS
from frazil.observe.logs import get_logger
from frazil.settings import CatalogSettings, NetworkSettings

if TYPE_CHECKING:
    from pyiceberg.table import Table
    from pyiceberg.table.update import TableRequirement, TableUpdate
    from requests import Response, Session


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

    def commit_table(
        self, table: Table, requirements: tuple[TableRequirement, ...], updates: tuple[TableUpdate, ...]
    ) -> CommitTableResponse:
        """Sends the last column id with new schemas, which PyIceberg leaves out and Nessie requires."""
        if table.config.get(TOKEN) or not any(isinstance(update, AddSchemaUpdate) for update in updates):
            plain: CommitTableResponse = super().commit_table(table, requirements, updates)
            return plain
        bodies = [update.model_dump(mode="json") for update in updates]
        for update, body in zip(updates, bodies, strict=True):
            if isinstance(update, AddSchemaUpdate):
                body["last-column-id"] = max(table.metadata.last_column_id, update.schema_.highest_field_id)
        asserted = [requirement.model_dump(mode="json") for requirement in requirements]
        return CommitTableResponse.model_validate(commit_raw_updates(self, table.name(), asserted, bodies))


#: What a server's status means for requests that change a table.
_COMMIT_ERRORS: dict[int, type[Exception]] = {
    404: NoSuchTableError,
    409: CommitFailedException,
    500: CommitStateUnknownException,
    502: CommitStateUnknownException,
    504: CommitStateUnknownException,
}


def load_raw_table(catalog: RestCatalog, identifier: tuple[str, ...]) -> tuple[str, dict[str, Any]] | None:
    """Returns where the metadata of a table lies, and the metadata as JSON; None if there is no such table."""
    try:
        found = _request(catalog, "get", Endpoints.load_table, identifier, None, {404: NoSuchTableError})
    except NoSuchTableError:
        return None
    return str(found["metadata-location"]), dict(found["metadata"])


def register_raw_table(catalog: RestCatalog, identifier: tuple[str, ...], location: str) -> None:
    """Gives a metadata file a new name. Unlike `RestCatalog.register_table`, it does not parse the metadata.

    Raises:
        TableAlreadyExistsError: the name is taken.
    """
    body = {"name": identifier[-1], "metadata-location": location}
    errors = {404: NoSuchNamespaceError, 409: TableAlreadyExistsError}
    _request(catalog, "post", Endpoints.register_table, identifier, body, errors)


def create_raw_table(catalog: RestCatalog, identifier: tuple[str, ...], body: dict[str, Any]) -> None:
    """Creates an empty table as the body says (`CreateTableRequest`), where the server places it.

    Raises:
        TableAlreadyExistsError: the name is taken.
    """
    errors = {404: NoSuchNamespaceError, 409: TableAlreadyExistsError}
    _request(catalog, "post", Endpoints.create_table, identifier, {"name": identifier[-1], **body}, errors)


def commit_raw_updates(
    catalog: RestCatalog, identifier: tuple[str, ...], requirements: list[dict[str, Any]], updates: list[dict[str, Any]]
) -> dict[str, Any]:
    """Changes a table in one commit, in the JSON of the REST specification, and returns the answer.

    Raises:
        CommitFailedException: a requirement is not met.
        CommitStateUnknownException: the server does not know whether it happened.
    """
    body = {
        "identifier": {"namespace": list(identifier[:-1]), "name": identifier[-1]},
        "requirements": requirements,
        "updates": updates,
    }
    return _request(catalog, "post", Endpoints.update_table, identifier, body, _COMMIT_ERRORS)


def _request(
    catalog: RestCatalog,
    method: Literal["get", "post"],
    endpoint: str,
    identifier: tuple[str, ...],
    body: dict[str, Any] | None,
    errors: dict[int, type[Exception]],
) -> dict[str, Any]:
    try:
        return _request_once(catalog, method, endpoint, identifier, body, errors)
    except (AuthorizationExpiredError, UnauthorizedError):
        catalog._refresh_token()
        return _request_once(catalog, method, endpoint, identifier, body, errors)


def _request_once(
    catalog: RestCatalog,
    method: Literal["get", "post"],
    endpoint: str,
    identifier: tuple[str, ...],
    body: dict[str, Any] | None,
    errors: dict[int, type[Exception]],
) -> dict[str, Any]:
    from requests import HTTPError

    url = catalog.url(endpoint, prefixed=True, **catalog._split_identifier_for_path(identifier))
    response: Response = catalog._session.request(method, url, json=body)
    try:
        response.raise_for_status()
    except HTTPError as error:
        _handle_non_200_response(error, errors)
    found: dict[str, Any] = response.json()
    return found
