"""Objects by URI: on a local folder, in S3, Azure or Google Cloud."""

from __future__ import annotations

from frazil.observe.resilience import breaker_for
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.storage.clients import connect, server_name
from frazil.storage.local import LocalStore
from frazil.storage.remote import RemoteStore
from frazil.storage.resilient import Breaker, Retrying
from frazil.storage.store import Data, ObjectInfo, ObjectStore
from frazil.storage.uri import Location, join, normalise, parse

__all__ = ["Data", "Location", "ObjectInfo", "ObjectStore", "join", "normalise", "open_object", "open_store", "parse"]


def open_store(uri: str, *, s3: S3Settings, network: NetworkSettings) -> ObjectStore:
    """Opens the store whose keys begin at `uri`. Sends no request and creates no folder before the first call."""
    return _open(parse(uri), s3, network)


def open_object(uri: str, *, s3: S3Settings, network: NetworkSettings) -> tuple[ObjectStore, str]:
    """Opens the store of an object's folder; returns it and the object's key there."""
    location = parse(uri)
    folder, _, name = location.key.rpartition("/")
    return _open(Location(location.scheme, location.authority, folder), s3, network), name


def _open(location: Location, s3: S3Settings, network: NetworkSettings) -> ObjectStore:
    if location.scheme == "file":
        return LocalStore(location)
    # AWS and Google promise key order. Servers behind an endpoint may not keep it, nor Azure with folders.
    in_order = location.scheme == "gs" or (location.scheme == "s3" and s3.endpoint is None)
    store = RemoteStore(location, connect(location, s3, network), lists_in_key_order=in_order)
    return Retrying(Breaker(store, breaker_for(server_name(location, s3), network)), network)
