"""Objects with the same content, and the bytes that they waste."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.query.aggregation import aggregate
from frazil.content.query.filters import Search
from frazil.content.query.objects import require_bucket
from frazil.content.query.page import Hits, plain_rows
from frazil.content.query.search import KEY_COLUMNS
from frazil.content.tables import ContentTables
from frazil.tables.cache import ByteCache
from frazil.tables.reading.column_blocks import Block

if TYPE_CHECKING:
    import duckdb

#: Objects of one group that are named.
MAX_NAMED = 100
_COLUMNS = (*KEY_COLUMNS, "size", "last_modified")
#: An object that was uploaded in one part and without keys of KMS has the MD5 of its content for an etag.
_MD5 = "^[0-9a-f]{32}$"
_SCHEMA = pa.schema([("digest", pa.string()), ("size", pa.int64()), ("file", pa.int64()), ("position", pa.int64())])


@dataclass(frozen=True)
class Duplicates:
    """Groups of objects that are the same, those that waste most first.

    Attributes:
        groups: each with `by` (hash, etag or similar), `size` of one (the largest), `objects`, `wasted_bytes`, and the
            first of them as `members`.
        count: groups, also those that are not told.
        objects: in all groups, beyond the one of each that is needed.
        wasted_bytes: of these.
    """

    groups: list[dict[str, Any]]
    count: int
    objects: int
    wasted_bytes: int

    @property
    def more(self) -> bool:
        """Whether there are groups that are not told."""
        return self.count > len(self.groups)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "more": self.more}


def duplicates(
    tables: ContentTables, search: Search, limit: int = 100, *, cache: ByteCache | None = None
) -> Duplicates:
    """Hits with the same content: by their hash, else by size and MD5. Empty ones are left out.

    Args:
        tables: where.
        search: which objects.
        limit: at most so many groups.
        cache: what was decoded before.

    Raises:
        NotFoundError: the bucket is unknown, or the table does not exist yet.
    """
    found = tables.read(tables.objects, lambda table: _same(Hits(tables, table, search, cache), limit))
    if not found.groups and search.bucket is not None:
        require_bucket(tables, search.bucket)
    return found


def _same(hits: Hits, limit: int) -> Duplicates:
    with aggregate("hits", _SCHEMA, (_digests(block, at) for block, at in hits)) as connection:
        connection.execute("CREATE TEMP TABLE seen AS SELECT * FROM hits")
        connection.execute(
            "CREATE TEMP TABLE same AS SELECT digest, count(*) AS objects, max(size) AS size, "
            "CAST((count(*) - 1) * max(size) AS BIGINT) AS wasted FROM seen GROUP BY digest HAVING count(*) > 1"
        )
        count, objects, wasted = connection.execute(
            "SELECT count(*), coalesce(sum(objects - 1), 0), coalesce(sum(wasted), 0) FROM same"
        ).fetchone() or (0, 0, 0)
        connection.execute(
            f"CREATE TEMP TABLE worst AS SELECT * FROM same ORDER BY wasted DESC, digest LIMIT {int(limit)}"  # noqa: S608
        )
        groups = _told(hits, connection)
    return Duplicates(groups, count, int(objects), int(wasted))


def _told(hits: Hits, connection: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    worst = connection.execute("SELECT * FROM worst ORDER BY wasted DESC, digest").fetchall()
    members = connection.execute(
        "SELECT digest, file, position FROM seen SEMI JOIN worst USING (digest) "
        "QUALIFY row_number() OVER (PARTITION BY digest ORDER BY file, position) <= $most",
        {"most": MAX_NAMED},
    ).fetchall()
    named = named_members(hits, [(digest, file, position) for digest, file, position in members])
    return [
        {
            "by": "etag" if ":" in digest else "hash",
            "size": size,
            "objects": objects,
            "wasted_bytes": wasted,
            "members": named[digest],
        }
        for digest, objects, size, wasted in worst
    ]


def named_members(hits: Hits, members: list[tuple[Any, int, int]]) -> dict[Any, list[dict[str, Any]]]:
    """Objects at some places (group, file, position) by their groups, in the order of their names."""
    if not members:
        return {}
    rows = plain_rows(hits.files.taken([(file, position) for _, file, position in members], _COLUMNS))
    found: dict[Any, list[dict[str, Any]]] = {}
    for (group, _, _), row in zip(members, rows, strict=True):
        found.setdefault(group, []).append(row)
    return {
        group: sorted(rows, key=lambda row: (row["bucket"], row["key"], row["version_id"]))
        for group, rows in found.items()
    }


def _digests(block: Block, at: Any) -> pa.Table:
    size, etag = block.rows_of(("size", "etag"), at)
    if block.has("content_hash"):
        (digest,) = block.rows_of(("content_hash",), at)
        digest = digest.cast(pa.string())
    else:
        digest = pa.nulls(len(at), pa.string())
    etag = pc.if_else(pc.match_substring_regex(etag.cast(pa.string()), _MD5), etag.cast(pa.string()), None)
    other = pc.binary_join_element_wise(size.cast(pa.string()), etag, ":")
    columns = [pc.coalesce(digest, other), size, np.full(len(at), block.number, np.int64), at + block.start]
    rows = pa.table(columns, schema=_SCHEMA)
    return rows.filter(pc.and_(pc.is_valid(rows.column("digest")), pc.greater(rows.column("size"), 0)))
