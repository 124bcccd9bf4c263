"""The registry of sinks: what other rooms know of each sink without importing it.

The list itself is `frazil.sinks.SINKS`, above all rooms that have a sink. It is loaded by name on first use, so that no
process can run with only some of them: a log that does not ask the tables of a sink would assign their offsets again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.settings import Settings
    from frazil.tables import TableStore
    from frazil.topics.sinks.sink import Sink

    #: Makes a sink for the tables, the settings, the address of the log, and the session that works for it.
    SinkMaker = Callable[[TableStore, Settings, str, SparkSession | None], Sink]

_LIST = "frazil.sinks"


class SinkSection(Protocol):
    """What the section of the settings that a sink has must contain."""

    @property
    def namespace(self) -> str:
        """The namespace of the sink's tables."""
        ...

    @property
    def keep_snapshots(self) -> int:
        """How many snapshots the sink leaves in its tables."""
        ...


@dataclass(frozen=True)
class SinkDefinition:
    """A sink that a topic may name.

    Attributes:
        name: the name, in the settings of topics and in the positions of tables.
        section: the sink's section of the settings, see `SinkSection`.
        tables: returns the tables that may know offsets of a topic, in the order of their commits: the last one carries
            the sink's position. None if the sink does not take this topic.
        make: makes the sink; imports what it needs only then.
    """

    name: str
    section: str
    tables: Callable[[Settings, str], Sequence[str]]
    make: SinkMaker

    def settings(self, settings: Settings) -> SinkSection:
        return cast("SinkSection", getattr(settings.model, self.section))


@cache
def sink_definitions() -> Mapping[str, SinkDefinition]:
    """Returns all sinks by name, the archive first."""
    sinks: Sequence[SinkDefinition] = import_module(_LIST).SINKS
    return MappingProxyType({sink.name: sink for sink in sinks})


def sink_tables(settings: Settings, topic: str) -> list[tuple[str, str]]:
    """Returns the tables that may know offsets of a topic, each with its sink; of a sink the main table comes last."""
    return [(sink.name, table) for sink in sink_definitions().values() for table in sink.tables(settings, topic)]
