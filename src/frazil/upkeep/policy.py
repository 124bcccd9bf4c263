"""What is wanted of a table: the settings for all, for the patterns that name it, and what the table itself says.

From weak to strong: what is built in, `upkeep.policy`, the patterns of `upkeep.tables` that match (a longer one over a
shorter), and the table's own properties where they are about its history: they are kept by every other engine too.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pyiceberg.types import DateType, TimestampNanoType, TimestampType, TimestamptzNanoType, TimestamptzType

from frazil.errors import ConfigError
from frazil.settings import Settings
from frazil.settings.keys import dotted
from frazil.settings.policies import policies_for
from frazil.tables.position import PREFIX
from frazil.tables.snapshot_retention import AGE_PROPERTY, KEEP_PROPERTY
from frazil.topics.sinks.registry import sink_definitions

if TYPE_CHECKING:
    from pyiceberg.table import Table

_DAY = 86400.0
DEFAULT = "default"
#: Why orphans of a table are not looked for unless somebody asks for it.
NOT_OURS = "not one of Frazil's own tables"
#: How long upkeep's own history is kept, unless a setting says otherwise.
_HISTORY_AGE_S = 90 * _DAY

#: What holds where nothing else is said.
BUILT_IN: Mapping[str, Any] = MappingProxyType(
    {
        "compact": True,
        "strategy": "auto",
        "sort_by": (),
        "target_file_size": 128 * 1024 * 1024,
        "min_input_files": 10,
        "delete_ratio": 0.3,
        "delete_files": 10,
        "manifests": 64,
        "max_snapshot_age_s": 5 * _DAY,
        "max_snapshots": 100,
        "min_snapshots": 1,
        "file_grace_s": 3600.0,
        "metadata_versions": 50,
        "orphans": True,
        "orphan_age_s": 3 * _DAY,
        "orphan_every_s": _DAY,
        "statistics": False,
        "statistics_every_s": _DAY,
        "retention_column": None,
        "retention_age_s": None,
    }
)

TARGET_PROPERTY = "write.target-file-size-bytes"
VERSIONS_PROPERTY = "write.metadata.previous-versions-max"
GC_PROPERTY = "gc.enabled"


@dataclass(frozen=True)
class Policy:
    """How one table is cared for, nothing left open. The fields are those of `PolicySettings`, and two more.

    Attributes:
        max_snapshots: None where the table's own history property decides alone.
        gc: whether files of this table may be removed at all (`gc.enabled`).
        sources: where each value came from, in words.
    """

    compact: bool
    strategy: str
    sort_by: tuple[str, ...]
    target_file_size: int
    min_input_files: int
    delete_ratio: float
    delete_files: int
    manifests: int
    max_snapshot_age_s: float
    max_snapshots: int | None
    min_snapshots: int
    file_grace_s: float
    metadata_versions: int
    orphans: bool
    orphan_age_s: float
    orphan_every_s: float
    statistics: bool
    statistics_every_s: float
    retention_column: str | None
    retention_age_s: float | None
    gc: bool = True
    sources: Mapping[str, str] = field(default_factory=dict, compare=False)

    def source(self, name: str) -> str:
        return self.sources.get(name, DEFAULT)

    @property
    def orphans_on_request(self) -> bool:
        """Whether nobody has said that orphans of this table may be removed, nor that they may not."""
        return not self.orphans and self.source("orphans") == NOT_OURS


@dataclass
class _Draft:
    """Values and their sources while they are put together."""

    values: dict[str, Any]
    sources: dict[str, str]

    def take(self, name: str, value: Any, source: str) -> None:
        self.values[name], self.sources[name] = value, source

    def is_default(self, name: str) -> bool:
        return self.sources.get(name, DEFAULT).endswith(DEFAULT)

    def said(self, name: str) -> str:
        """A setting with its value and source, as an error tells it."""
        value = self.values[name]
        return f"{name} {','.join(value) if isinstance(value, tuple) else value} ({self.sources.get(name, DEFAULT)})"


def policy_for(settings: Settings, table: Table) -> Policy:
    """The policy of a table.

    Raises:
        ConfigError: it contradicts itself, or names a column that the table does not have.
    """
    name = ".".join(table.name())
    draft = _from_settings(settings, name)
    if draft.is_default("max_snapshots"):
        _take_sink(draft, settings, ".".join(table.name()[:-1]))
    if name == settings.model.upkeep.history and draft.is_default("retention_column"):
        draft.take("retention_column", "started_at", "upkeep.history")
        if draft.is_default("retention_age_s"):
            draft.take("retention_age_s", _HISTORY_AGE_S, "upkeep.history")
    if draft.is_default("orphans") and not is_own_commit(settings, table):
        draft.take("orphans", False, NOT_OURS)
    _settle(draft, name)
    _take_properties(draft, table.metadata.properties, name)
    _take_main_branch(draft, table, name)
    _check_columns(draft, table, name)
    gc = table.metadata.properties.get(GC_PROPERTY, "true").lower() == "true"
    if not gc:
        draft.sources["gc"] = f"table property {GC_PROPERTY}"
    return Policy(**draft.values, gc=gc, sources=MappingProxyType(draft.sources))


def is_own_commit(settings: Settings, table: Table) -> bool:
    """Whether it is a table of Frazil's: a sink's, which carries its position wherever it lies, or upkeep's history."""
    carries = any(key.startswith(PREFIX) for key in table.metadata.properties)
    return carries or ".".join(table.name()) == settings.model.upkeep.history


def check_policies(settings: Settings) -> None:
    """Looks for contradictions within the settings, before any table is touched.

    Raises:
        ConfigError: there is one; it names both sides and where they stand.
    """
    for name in ("upkeep.policy", *settings.model.upkeep.tables):
        _settle(_from_settings(settings, name), name)


def _from_settings(settings: Settings, name: str) -> _Draft:
    draft = _Draft(dict(BUILT_IN), {})
    for path, chosen in policies_for(settings, name):
        for key in type(chosen).model_fields:
            value = getattr(chosen, key)
            if value is not None:
                origin = settings.origin((*path, key))
                draft.take(key, tuple(value) if isinstance(value, list) else value, f"{dotted(path)}, {origin}")
    return draft


def _take_sink(draft: _Draft, settings: Settings, namespace: str) -> None:
    """Takes as many snapshots as the sink of this namespace leaves."""
    for sink in sink_definitions().values():
        section = sink.settings(settings)
        if section.namespace == namespace:
            origin = settings.origin((sink.section, "keep_snapshots"))
            draft.take("max_snapshots", section.keep_snapshots, f"{sink.section}.keep_snapshots, {origin}")
            return


def _settle(draft: _Draft, name: str) -> None:
    """Refuses what contradicts itself; a default gives way to what somebody has set."""
    values = draft.values
    if values["min_snapshots"] > values["max_snapshots"]:
        if not draft.is_default("max_snapshots"):
            raise _contradiction(draft, name, "min_snapshots", "max_snapshots", "is more than")
        draft.take("max_snapshots", values["min_snapshots"], f"min_snapshots, {draft.sources['min_snapshots']}")
    if values["orphan_age_s"] < values["file_grace_s"]:
        # Else files that wait for the end of their grace would be taken for orphans.
        if not draft.is_default("orphan_age_s"):
            raise _contradiction(draft, name, "orphan_age_s", "file_grace_s", "is less than")
        draft.take("orphan_age_s", values["file_grace_s"], f"file_grace_s, {draft.sources['file_grace_s']}")
    for given, missing in (("retention_age_s", "retention_column"), ("retention_column", "retention_age_s")):
        if values[given] is not None and values[missing] is None:
            raise ConfigError(
                f"upkeep of {name}: {draft.said(given)} says nothing without {missing}", hint=f"set {missing} too"
            )
    if values["sort_by"] and values["strategy"] not in ("sort", "zorder"):
        raise ConfigError(
            f"upkeep of {name}: {draft.said('sort_by')} does not go with {draft.said('strategy')}",
            hint="strategy sort or zorder, or no sort_by",
        )
    if values["strategy"] == "zorder" and not values["sort_by"]:
        raise ConfigError(f"upkeep of {name}: {draft.said('strategy')} needs columns", hint="set sort_by")


def _contradiction(draft: _Draft, name: str, one: str, other: str, words: str) -> ConfigError:
    return ConfigError(f"upkeep of {name}: {draft.said(one)} {words} {draft.said(other)}", hint="change one of the two")


def _take_properties(draft: _Draft, properties: Mapping[str, str], name: str) -> None:
    if draft.is_default("target_file_size") and (size := _number(properties, TARGET_PROPERTY, name)) is not None:
        draft.take("target_file_size", size, f"table property {TARGET_PROPERTY}")
    if (age := _number(properties, AGE_PROPERTY, name)) is not None:
        # Somebody asked for a history of that length of this very table; a count must not cut it.
        draft.take("max_snapshots", None, f"table property {AGE_PROPERTY} alone decides")
        draft.take("max_snapshot_age_s", age / 1000, f"table property {AGE_PROPERTY}")
    _keep_at_least(draft, _number(properties, KEEP_PROPERTY, name), f"table property {KEEP_PROPERTY}")
    if (versions := _number(properties, VERSIONS_PROPERTY, name)) is not None:
        draft.take("metadata_versions", versions, f"table property {VERSIONS_PROPERTY}")


def _keep_at_least(draft: _Draft, least: int | None, source: str) -> None:
    if least is None or least <= draft.values["min_snapshots"]:
        return
    draft.take("min_snapshots", least, source)
    if draft.values["max_snapshots"] is not None and draft.values["max_snapshots"] < least:
        draft.take("max_snapshots", least, source)


def _number(properties: Mapping[str, str], key: str, name: str) -> int | None:
    text = properties.get(key)
    if text is None:
        return None
    if not text.isdigit() or int(text) < 1:
        raise ConfigError(
            f"the table {name} has the property {key} = '{text}'",
            cause="it must be a whole number above 0",
            hint=f"ALTER TABLE {name} UNSET TBLPROPERTIES ('{key}')",
        )
    return int(text)


def _take_main_branch(draft: _Draft, table: Table, name: str) -> None:
    """The branch main may have its own rules; shorter ones of the settings would break a promise made to readers."""
    main = table.metadata.refs.get("main")
    if main is None:
        return
    _keep_at_least(draft, main.min_snapshots_to_keep, "branch main, min-snapshots-to-keep")
    age = None if main.max_snapshot_age_ms is None else main.max_snapshot_age_ms / 1000
    if age is None:
        return
    source = draft.sources.get("max_snapshot_age_s", DEFAULT)
    if draft.values["max_snapshot_age_s"] < age and source.startswith("upkeep."):
        raise ConfigError(
            f"upkeep of {name}: {draft.said('max_snapshot_age_s')} is less than the branch main promises, {age:g}",
            hint="raise max_snapshot_age_s, or change the branch: ALTER TABLE … REPLACE BRANCH main RETAIN …",
        )
    draft.take("max_snapshot_age_s", age, "branch main, max-snapshot-age-ms")
    draft.take("max_snapshots", None, "branch main, max-snapshot-age-ms alone decides")


def _check_columns(draft: _Draft, table: Table, name: str) -> None:
    for column in draft.values["sort_by"]:
        _type_of(draft, table, name, "sort_by", column)
    if draft.values["strategy"] == "sort" and not draft.values["sort_by"] and table.sort_order().is_unsorted:
        raise ConfigError(
            f"upkeep of {name}: {draft.said('strategy')} needs columns, and the table has no order of its own",
            hint="set sort_by, or strategy auto",
        )
    column = draft.values["retention_column"]
    if column is not None and not isinstance(_type_of(draft, table, name, "retention_column", column), TIMES):
        raise ConfigError(
            f"upkeep of {name}: {draft.said('retention_column')} is no time",
            cause=f"its type is {table.schema().find_type(column)}",
            hint="a column of type timestamp, timestamptz or date",
        )


#: Types of columns by which rows can grow old.
TIMES = (TimestampType, TimestamptzType, TimestampNanoType, TimestamptzNanoType, DateType)


def _type_of(draft: _Draft, table: Table, name: str, setting: str, column: str) -> Any:
    schema = table.schema()
    try:
        return schema.find_type(column)
    except ValueError:
        near = difflib.get_close_matches(column, schema.column_names, n=1, cutoff=0.5)
        source = draft.sources.get(setting, DEFAULT)
        raise ConfigError(
            f"upkeep of {name}: {setting} names the column '{column}' ({source}), which the table does not have",
            hint=near[0] if near else f"one of: {', '.join(schema.column_names)}",
        ) from None
