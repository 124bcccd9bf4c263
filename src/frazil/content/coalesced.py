"""`s3_metadata_coalesced` as SQL: the existing versions in a journal or an inventory."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from frazil.content.columns import DELETE, JOURNAL, UPDATE
from frazil.errors import UsageError

Dialect = Literal["spark", "duckdb"]

#: Columns that keep their value from the creation of a version.
_STAYS = ("size", "e_tag", "last_modified_date", "is_multipart", "user_metadata")
#: Columns that decide between two changes with the same sequence number, as far as a table has them.
_TIES = ("record_timestamp", "request_id", "e_tag", "size")
#: The log position of a change in our journal, which is unique.
_PLACE = ("partition", "offset", "index")
#: The prefix of sequence numbers in our journal that are times.
UNSEQUENCED = "!"
_TIP = ("-- The tip of a stack is the change with the largest sequence number; what came twice counts once.",)
_STACK = "PARTITION BY bucket, key, version_id"
_WIDTH = 100
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
#: Reserved words of the engines.
_WORDS = {"offset", "partition", "index", "order", "group", "table", "user", "end", "from", "to", "select", "where"}


@dataclass(frozen=True)
class Source:
    """A table of versions: our journal, S3 Metadata's journal, or an inventory. Its columns tell which.

    Attributes:
        name: of the table.
        columns: all that it has; those of our journal by default.

    Raises:
        UsageError: it is none of these.
    """

    name: str
    columns: Sequence[str] = tuple(JOURNAL.names)

    def __post_init__(self) -> None:
        needed = ["bucket", "key", "e_tag"]
        needed += ["version_id", "sequence_number"] if self.is_journal else []
        if missing := [name for name in needed if name not in self.columns]:
            raise UsageError(
                f"{self.name} is no journal and no inventory: it lacks the column {', '.join(missing)}",
                hint="a table of S3 Metadata, of S3 Inventory, or content.journal",
            )

    @property
    def is_journal(self) -> bool:
        return "record_type" in self.columns

    @property
    def is_ours(self) -> bool:
        return self.is_journal and {"dialect", "topic", "offset", "index"} <= set(self.columns)


@dataclass(frozen=True)
class Words:
    """Quotes names for an engine."""

    dialect: Dialect

    def name(self, name: str) -> str:
        if _PLAIN.fullmatch(name) and name not in _WORDS:
            return name
        mark = "`" if self.dialect == "spark" else '"'
        return mark + name.replace(mark, mark * 2) + mark

    def name_each(self, names: Iterable[str]) -> list[str]:
        return [self.name(name) for name in names]

    def names(self, names: Iterable[str]) -> str:
        return format_columns(self.name_each(names))

    def table(self, name: str) -> str:
        return ".".join(self.name(part) for part in name.split("."))


def format_columns(columns: Iterable[str]) -> str:
    """Formats columns as a list with line breaks."""
    lines = [""]
    for column in columns:
        if lines[-1] and len(lines[-1]) + len(column) > _WIDTH:
            lines.append("")
        lines[-1] += f"{column}, "
    return "\n  ".join(line.rstrip() for line in lines).rstrip(",")


def hide_deleted(line: str, otherwise: str, *, tombstones: bool) -> list[str]:
    """Returns the condition that hides deleted versions, with a hint how to see them; or the one that shows them."""
    shown = [otherwise] if otherwise else []
    return shown if tombstones else [f"-- Tombstones and delete markers too: {otherwise or 'without WHERE'}", line]


def coalesced(source: Source, words: Words, *, tombstones: bool = False) -> str:
    """Returns the query: each existing version once, with `is_latest_version` after the columns of the table.

    Args:
        source: the table.
        words: for which engine.
        tombstones: show what is gone, and delete markers, too.
    """
    steps = _of_journal(source, words) if source.is_journal else _of_inventory(source, words)
    marker = _marker(source)
    gone = f"record_type = '{DELETE}' OR {marker}" if source.is_journal else marker
    body = ",\n".join(f"{name} AS (\n{_indented(lines)}\n)" for name, lines in steps.items())
    last = [
        f"SELECT {words.names([*source.columns, 'is_latest_version'])}",
        f"FROM {list(steps)[-1]}",
        *hide_deleted(f"WHERE NOT ({gone})", "", tombstones=tombstones),
    ]
    return f"WITH {body}\n" + "\n".join(last)


def _of_inventory(source: Source, words: Words) -> dict[str, list[str]]:
    """Returns the query of an inventory, which has one row per existing version: only the latest has to be found."""
    orders = [f"{n} DESC" for n in ("last_modified_date", "sequence_number") if n in source.columns]
    if "is_latest" in source.columns:
        latest = "coalesce(is_latest, TRUE)"
    elif "sequence_number" in source.columns:
        latest = f"row_number() OVER (PARTITION BY bucket, key ORDER BY {', '.join(orders)}) = 1"
    else:
        latest = "TRUE"
    columns = _with_one_plain_version(source, words)
    return {"versions": [f"SELECT {columns},", f"  {latest} AS is_latest_version", f"FROM {words.table(source.name)}"]}


def _of_journal(source: Source, words: Words) -> dict[str, list[str]]:
    """Returns the query of a journal, which has all changes: the last one of each version counts."""
    return _of_ours(source, words) if source.is_ours else _of_theirs(source, words)


def _of_theirs(source: Source, words: Words) -> dict[str, list[str]]:
    ties = [f"{name} DESC NULLS LAST" for name in _TIES if name in source.columns]
    return {
        "changes": _changes(source, words),
        "stacks": [
            *_TIP,
            f"SELECT {words.names(source.columns)},",
            f"  row_number() OVER ({_STACK}",
            f"    ORDER BY sequence_number DESC, {', '.join(['frazil_kind DESC', *ties])}) AS frazil_place,",
            f"  max(CASE WHEN frazil_kind <> 1 THEN sequence_number END) OVER ({_STACK}) AS frazil_came",
            "FROM changes",
        ],
        "tips": _tips(source),
        "ranked": _ranked("tips", ""),
    }


def _of_ours(source: Source, words: Words) -> dict[str, list[str]]:
    # Windows are inline: inside an Iceberg view, Spark 4.1 does not find those of a WINDOW clause.
    last = "frazil_seen, sequence_number DESC, frazil_kind DESC, record_timestamp DESC"
    order = ["frazil_tier", "sequence_number", "frazil_kind", *words.name_each(("record_timestamp", *_PLACE))]
    return {
        "changes": _changes(source, words, f"substr(sequence_number, 1, 1) = '{UNSEQUENCED}' AS frazil_seen"),
        "timed": [
            "SELECT *,",
            *(
                f"  first_value({column}) OVER ({_STACK} ORDER BY {last}) AS {name}{comma}"
                for column, name, comma in (
                    ("record_timestamp", "frazil_last_time", ","),
                    ("frazil_kind", "frazil_last_kind", ""),
                )
            ),
            "FROM changes",
        ],
        "placed": [
            "-- What was only seen, or came without a sequence, has a time: it counts if it is not older than the last",
            "-- event that has one. A tag does not bring back what was deleted in the same moment.",
            "SELECT *, CASE WHEN NOT frazil_seen THEN 1",
            "    WHEN record_timestamp > frazil_last_time THEN 2",
            "    WHEN record_timestamp = frazil_last_time AND NOT (frazil_kind = 1 AND frazil_last_kind = 2) THEN 2",
            "    ELSE 0 END AS frazil_tier",
            "FROM timed",
        ],
        "ordered": [
            f"SELECT *, row_number() OVER ({_STACK}",
            f"    ORDER BY {', '.join(order)}) AS frazil_step",
            "FROM placed",
        ],
        "lives": [
            "-- A version begins a new life each time that it comes or goes. What events about tags, ACL or class do",
            "-- not tell of it is as it was then.",
            "SELECT *, sum(CASE WHEN frazil_kind = 1 THEN 0 ELSE 1 END) OVER (",
            f"    {_STACK} ORDER BY frazil_step ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW",
            "  ) AS frazil_life",
            "FROM ordered",
        ],
        "stacks": [
            *_TIP,
            f"SELECT {format_columns(_carried(name, words) for name in source.columns)},",
            f"  row_number() OVER ({_STACK} ORDER BY frazil_step DESC) AS frazil_place,",
            f"  max(CASE WHEN frazil_kind <> 1 AND NOT frazil_seen THEN sequence_number END) OVER ({_STACK})",
            "    AS frazil_came",
            "FROM lives",
        ],
        "tips": _tips(source),
        "dated": [
            "-- Sequences order the versions of a key; where one was only seen, times have to.",
            "SELECT *, CASE WHEN max(CASE WHEN frazil_came IS NULL AND NOT frazil_gone THEN 1 ELSE 0 END) OVER (",
            "    PARTITION BY bucket, key",
            "  ) = 1 THEN coalesce(last_modified_date, record_timestamp) END AS frazil_time",
            "FROM tips",
        ],
        "ranked": _ranked("dated", "frazil_time DESC, "),
    }


def _changes(source: Source, words: Words, *more: str) -> list[str]:
    return [
        "-- NULL, '' and 'null' are one version: that of a bucket without versions.",
        f"SELECT {_with_one_plain_version(source, words)},",
        *(f"  {column}," for column in more),
        f"  CASE record_type WHEN '{DELETE}' THEN 2 WHEN '{UPDATE}' THEN 1 ELSE 0 END AS frazil_kind",
        f"FROM {words.table(source.name)}",
    ]


def _tips(source: Source) -> list[str]:
    gone = f"record_type = '{DELETE}' AND NOT {_marker(source)}"
    return [f"SELECT *, {gone} AS frazil_gone", "FROM stacks", "WHERE frazil_place = 1"]


def _ranked(table: str, first: str) -> list[str]:
    return [
        "-- The latest version is the one that came last, not the one that was tagged last. Below a delete marker",
        "-- none is.",
        "SELECT *, NOT frazil_gone AND row_number() OVER (",
        "    PARTITION BY bucket, key",
        f"    ORDER BY frazil_gone, {first}frazil_came DESC NULLS LAST, sequence_number DESC,",
        "      version_id DESC NULLS LAST",
        "  ) = 1 AS is_latest_version",
        f"FROM {table}",
    ]


def _carried(name: str, words: Words) -> str:
    """Returns the expression of a column that a change may inherit from the creation of its version."""
    column = words.name(name)
    begun = f"first_value({column}) OVER ({_STACK}, frazil_life ORDER BY frazil_step)"
    if name in _STAYS:
        return f"coalesce({begun}, {column}) AS {column}"
    if name != "storage_class":
        return column
    last = f"CASE WHEN {column} IS NOT NULL THEN frazil_step END"
    return f"max_by({column}, {last}) OVER ({_STACK}, frazil_life) AS {column}"


def _with_one_plain_version(source: Source, words: Words) -> str:
    plain = "nullif(nullif(version_id, ''), 'null') AS version_id"
    return format_columns(plain if name == "version_id" else words.name(name) for name in source.columns)


def _marker(source: Source) -> str:
    return "coalesce(is_delete_marker, FALSE)" if "is_delete_marker" in source.columns else "FALSE"


def _indented(lines: Iterable[str]) -> str:
    return textwrap.indent("\n".join(lines), "  ")
