"""Frazil: the metadata of objects and documents, frozen into Apache Iceberg.

    with frazil.connect() as lake:
        lake.topic("orders").publish(b"…")

docs/python.md describes the Python API. Names that it does not mention may change. Each name is imported when it is
first used, so that `import frazil` takes milliseconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from frazil.version import __version__

if TYPE_CHECKING:
    from frazil import errors, extract
    from frazil.backup.retention import RetentionPolicy
    from frazil.errors import (
        CircuitOpenError,
        ConfigError,
        ConflictError,
        CredentialsError,
        DifferencesError,
        FrazilError,
        IntegrityError,
        InterruptedByUser,
        LockedError,
        NotAllowedError,
        NotFoundError,
        PartialError,
        SetupError,
        UnavailableError,
        UnsupportedError,
        UsageError,
    )
    from frazil.lake.backup import Backups
    from frazil.lake.content import Content, EditReport, Page
    from frazil.lake.lake import Lake, connect
    from frazil.lake.replica import Replicas
    from frazil.lake.table import Table
    from frazil.lake.topic import Subscription, Topic
    from frazil.log.protocol import Ack, Level, OffsetGoneError, TopicInfo

__all__ = [
    "Ack",
    "Backups",
    "CircuitOpenError",
    "ConfigError",
    "ConflictError",
    "Content",
    "CredentialsError",
    "DifferencesError",
    "EditReport",
    "FrazilError",
    "IntegrityError",
    "InterruptedByUser",
    "Lake",
    "Level",
    "LockedError",
    "NotAllowedError",
    "NotFoundError",
    "OffsetGoneError",
    "Page",
    "PartialError",
    "Replicas",
    "RetentionPolicy",
    "SetupError",
    "Subscription",
    "Table",
    "Topic",
    "TopicInfo",
    "UnavailableError",
    "UnsupportedError",
    "UsageError",
    "__version__",
    "connect",
    "errors",
    "extract",
]

_MODULES = {
    "frazil.lake.lake": ("Lake", "connect"),
    "frazil.lake.topic": ("Subscription", "Topic"),
    "frazil.lake.table": ("Table",),
    "frazil.lake.backup": ("Backups",),
    "frazil.lake.replica": ("Replicas",),
    "frazil.backup.retention": ("RetentionPolicy",),
    "frazil.lake.content": ("Content", "EditReport", "Page"),
    "frazil.log.protocol": ("Ack", "Level", "OffsetGoneError", "TopicInfo"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'frazil' has no attribute '{name}'")
    if name in ("errors", "extract"):
        return importlib.import_module(f"frazil.{name}")
    found = getattr(importlib.import_module(_MODULE_OF.get(name, "frazil.errors")), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
