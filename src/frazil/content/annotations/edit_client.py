"""Sends edits to a running server, so that the command loads neither Arrow nor a catalog."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import urlsplit

from frazil.content.annotations.edits import STAYS, Edit
from frazil.errors import NotFoundError, UnavailableError, first_line
from frazil.settings import Settings

PATH: Final = "/content/edits"
#: Maximum objects of one request.
MAX_OBJECTS: Final = 1000


def send_edits(settings: Settings, bucket: str, edits: Sequence[Edit]) -> dict[str, Any] | None:
    """Sends edits to the server that holds the log of the settings.

    Returns:
        The server's answer; None if no server runs on this machine, if it does not know an object, or if there are too
        many edits for one request. Nothing was changed then.

    Raises:
        FrazilError: the server refused the edits.
        UnavailableError: the server did not answer; the edits may be applied or not.
    """
    from frazil.log.owner import read_owner
    from frazil.topics.connection import log_folder

    if settings.model.log.broker is not None or len(edits) > MAX_OBJECTS:
        return None
    owner = read_owner(log_folder(settings))
    address = None if owner is None else owner.addresses.get("http")
    if address is None:
        return None
    body = json.dumps({"bucket": bucket, "edits": [_to_json(edit) for edit in edits]}).encode()
    headers = {"Content-Type": "application/json"}
    if settings.model.content.token is not None:
        headers["Authorization"] = f"Bearer {settings.model.content.token.get_secret_value()}"
    answer = _post(address, body, headers, settings.model.network.read_timeout)
    if answer is None:
        return None
    status, content = answer
    if status < 400:
        accepted: dict[str, Any] = json.loads(content)
        return accepted
    from frazil.log.remote.wire import unpack_error

    error = unpack_error(content)
    if isinstance(error, NotFoundError):
        return None  # the caller looks again, and names the nearest key
    raise error


def _post(address: str, body: bytes, headers: dict[str, str], timeout: float) -> tuple[int, bytes] | None:
    place = urlsplit(address)
    connection = http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port, timeout=timeout)
    try:
        try:
            connection.connect()
        except OSError:
            return None
        connection.request("POST", PATH, body, headers)
        response = connection.getresponse()
        return response.status, response.read()
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(
            f"the server at {address} did not answer: the edits may be applied or not",
            cause=first_line(error),
            hint="repeat the command: applying the same edit twice changes nothing",
        ) from error
    finally:
        connection.close()


def _to_json(edit: Edit) -> dict[str, Any]:
    made: dict[str, Any] = {"key": edit.key, "add": list(edit.add), "remove": list(edit.remove)}
    if edit.version_id is not None:
        made["version_id"] = edit.version_id
    if edit.only is not None:
        made["set"] = list(edit.only)
    return made | {name: value for name in ("note", "rating") if (value := getattr(edit, name)) is not STAYS}
