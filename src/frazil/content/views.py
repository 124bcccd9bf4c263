"""The queries of S3 Metadata, as SQL for Spark and DuckDB, and as Iceberg views.

The text is the same for both engines but for the quotes around names. Columns are named one by one and not as `*`: an
Iceberg view takes them by their place, and would be wrong as soon as its table has one more.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from frazil.catalogs import abilities_of
from frazil.content.coalesced import Dialect, Source, Words, coalesced, format_columns, hide_deleted
from frazil.content.columns import OBJECTS
from frazil.errors import NotFoundError, UnsupportedError, UsageError
from frazil.tables import TableStore
from frazil.tables.store import find_table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Name = Literal["current_objects", "s3_metadata_coalesced", "objects_with_content", "s3_content_metadata"]

NAMES: tuple[Name, ...] = get_args(Name)
ABOUT: dict[Name, str] = {
    "current_objects": "objects as they are now: the latest versions, without tombstones and delete markers",
    "s3_metadata_coalesced": "versions that are there, out of a journal in the shape of S3 Metadata",
    "objects_with_content": "s3_metadata_coalesced with what was found inside, joined by bucket, key and etag",
    "s3_content_metadata": "what was found inside each version that is there",
}
#: Columns of `s3_content_metadata`.
CONTENT = (
    "bucket", "key", "version_id", "sequencer", "etag", "metadata", "last_modified", "labels", "image_width",
    "image_height",
)  # fmt: skip
#: Columns of `current_objects`: the others are internal.
CURRENT = tuple(name for name in OBJECTS.names if name not in ("frazil_order", "frazil_fields", "check_after"))
#: The columns that the join adds.
FOUND = ("metadata", "labels", "image_width", "image_height")


@dataclass(frozen=True)
class Queries:
    """The queries of some tables.

    Attributes:
        objects: name of our table of objects.
        source: the journal, or the inventory.
        dialect: for which engine.
        tombstones: show what is gone, and delete markers, too.
    """

    objects: str
    source: Source
    dialect: Dialect = "duckdb"
    tombstones: bool = False

    def text(self, name: str) -> str:
        """Returns the SQL of a query, without a semicolon.

        Raises:
            UsageError: there is no such query.
        """
        made = {
            "current_objects": self._current_objects,
            "s3_metadata_coalesced": self._coalesced,
            "objects_with_content": self._with_content,
            "s3_content_metadata": self._content,
        }
        if name not in made:
            raise UsageError(f"there is no query '{name}'", hint=", ".join(NAMES))
        return made[name]()

    @property
    def _words(self) -> Words:
        return Words(self.dialect)

    def _coalesced(self) -> str:
        return coalesced(self.source, self._words, tombstones=self.tombstones)

    def _current_objects(self) -> str:
        hidden = "WHERE is_latest AND NOT is_deleted AND NOT is_delete_marker"
        lines = [
            f"SELECT {self._words.names(CURRENT)}",
            f"FROM {self._words.table(self.objects)}",
            *hide_deleted(hidden, "WHERE is_latest OR is_deleted", tombstones=self.tombstones),
        ]
        return "\n".join(lines)

    def _content(self) -> str:
        more = ("is_deleted", "is_delete_marker") if self.tombstones else ()
        lines = [
            f"SELECT {self._words.names([*CONTENT, *more])}",
            f"FROM {self._words.table(self.objects)}",
            *hide_deleted("WHERE NOT is_deleted AND NOT is_delete_marker", "", tombstones=self.tombstones),
        ]
        return "\n".join(lines)

    def _with_content(self) -> str:
        system = [f"system.{self._words.name(name)}" for name in (*self.source.columns, "is_latest_version")]
        found = [f"inside.{name}" for name in FOUND]
        return f"""WITH system AS (
{textwrap.indent(self._coalesced(), "  ")}
),
inside AS (
  -- The same bytes in several versions are one content: a join must not double rows.
  SELECT bucket, key, etag, {", ".join(FOUND)}, row_number() OVER (
    PARTITION BY bucket, key, etag ORDER BY metadata IS NULL, last_modified DESC, version_id
  ) AS frazil_place
  FROM {self._words.table(self.objects)}
  WHERE NOT is_deleted AND NOT is_delete_marker
)
SELECT {format_columns(system + found)}
FROM system
LEFT JOIN inside
  ON system.bucket = inside.bucket
  AND system.key = inside.key
  AND system.e_tag = inside.etag
  AND inside.frazil_place = 1"""  # noqa: S608 - names of tables and columns, quoted


def source_of(store: TableStore, name: str) -> Source:
    """Detects by its columns whether a table is a journal or an inventory.

    Raises:
        NotFoundError: there is no such table.
        UsageError: it is neither.
    """
    return Source(name, tuple(field.name for field in store.load(name).schema().fields))


def require_views(store: TableStore, objects: str) -> None:
    """Raises if the catalog cannot store views. Called before Spark starts.

    Raises:
        UnsupportedError: the catalog has no views.
        NotFoundError: the tables are not there yet.
    """
    abilities = abilities_of(store.settings, dict(store.catalog.properties))
    if not abilities.views:
        raise UnsupportedError(
            f"the catalog '{store.settings.name}' has no Iceberg views",
            cause=abilities.note or None,
            hint="frazil content views --sql NAME",
        )
    if find_table(store, objects) is None:
        raise NotFoundError(
            f"there is no table {objects} yet: nothing was scanned, and no event has come",
            hint="frazil content scan BUCKET|FOLDER",
        )


def create_views(
    session: SparkSession, catalog: str, namespace: str, queries: Queries, names: Sequence[Name] = NAMES
) -> list[str]:
    """Creates or replaces the views. Returns their names, qualified by the catalog.

    Args:
        session: of Spark, which knows the catalog.
        catalog: its name.
        namespace: where the views shall be.
        queries: in Spark's dialect.
        names: which.
    """
    session.catalog.setCurrentCatalog(catalog)
    made = []
    for name in names:
        view = f"{catalog}.{namespace}.{name}"
        session.sql(
            f"CREATE OR REPLACE VIEW {queries._words.table(view)} COMMENT '{ABOUT[name]}' AS\n{queries.text(name)}"
        )
        made.append(view)
    return made
