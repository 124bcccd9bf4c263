"""Lists of objects, one object with its versions, and the history of one."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.buckets import is_folder, nearest
from frazil.content.columns import OBJECTS
from frazil.content.query.filters import ObjectFilter, all_of, plain_version
from frazil.content.query.order import HitOrder, ListSort
from frazil.content.query.page import Hits, Page, plain_rows, read_page
from frazil.content.tables import ContentTables
from frazil.errors import NotFoundError
from frazil.tables.reading.rows import RowScan

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table

#: What a list tells of each object.
LIST_COLUMNS = (
    "bucket", "key", "version_id", "size", "last_modified", "etag", "storage_class", "content_type", "tags",
    "is_latest", "is_deleted", "is_delete_marker",
)  # fmt: skip
#: What `show` tells of one; the rest is for Frazil itself.
OBJECT_COLUMNS = tuple(name for name in OBJECTS.names if not name.startswith("frazil_"))
#: What the history tells of each change.
HISTORY_COLUMNS = (
    "record_timestamp", "record_type", "version_id", "is_delete_marker", "size", "e_tag", "storage_class", "dialect",
    "event_name", "sequence_number", "sequencer", "requester", "source_ip_address", "request_id", "topic", "partition",
    "offset", "index",
)  # fmt: skip
#: Versions of one object that are shown with it.
MAX_VERSIONS = 1000
#: The number of keys compared with an unknown one, and the similarity from which one is suggested.
_COMPARED = 300
_ALIKE = 0.6


def list_objects(
    tables: ContentTables,
    selection: ObjectFilter,
    *,
    sort: ListSort = "key",
    limit: int = 100,
    after: str | None = None,
) -> Page:
    """The first objects of a selection.

    Args:
        tables: where.
        selection: which.
        sort: `key`: by bucket, key and version; `size`: largest first; `modified`: newest first.
        limit: at most so many.
        after: `after` of the page before, with the same selection and sort.

    Raises:
        NotFoundError: the bucket is unknown, or the table does not exist yet.
        UsageError: `after` is not of such a page.
    """
    found = _page(tables, selection, LIST_COLUMNS, HitOrder.of_list(sort, after), limit)
    if not found.rows and after is None and selection.bucket is not None:
        require_bucket(tables, selection.bucket)
    return found


def show_object(
    tables: ContentTables, bucket: str, key: str, version_id: str | None = None, *, suggest: bool = False
) -> dict[str, Any]:
    """All that is known of one version, and the versions that the key has or had, newest first.

    Args:
        tables: where.
        bucket: the bucket, as the tables have it.
        key: the key.
        version_id: which version; by default the latest, or what is left of the last one.
        suggest: whether the error for an unknown key names the nearest one, which reads all keys of the bucket.

    Raises:
        NotFoundError: it is unknown.
    """
    everything = ObjectFilter(bucket=bucket, key=key, versions=True, markers=True, deleted="too")
    newest = HitOrder.of_list("modified")
    listed = _page(tables, everything, (*LIST_COLUMNS, "dialect", "frazil_order"), newest, MAX_VERSIONS)
    if not listed.rows:
        raise _unknown_key(tables, bucket, key, "show" if suggest else None)
    if version_id is None:
        first = max(listed.rows, key=lambda row: (row["is_latest"], not row["is_deleted"]))
        version_id = str(first["version_id"])
    custom = _custom_columns(tables)
    one = _page(tables, replace(everything, version_id=version_id), (*OBJECT_COLUMNS, *custom), newest, 1)
    if not one.rows:
        raise NotFoundError(
            f"'{key}' in bucket '{bucket}' has no version '{version_id}'",
            hint=f"frazil content show {quoted_name(bucket)} {quoted_name(key)}",
        )
    names = ("version_id", "size", "last_modified", "etag", "is_latest", "is_deleted", "is_delete_marker")
    versions = [{name: row[name] for name in names} for row in _newest_first(listed.rows)]
    found = one.rows[0]
    found["custom"] = {name: found.pop(name) for name in custom}
    return {**found, "versions": versions, "more_versions": listed.after is not None}


def _newest_first(versions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Versions of one key in the order of their creation, by the source's sequences as far as it gave them.

    Args:
        versions: by time, the newest first: that is the order where sequences are missing.
    """

    def created(row: dict[str, Any]) -> str:
        return (row["frazil_order"] or {}).get("created") or ""

    if all(map(created, versions)) and len({row["dialect"] for row in versions}) == 1:
        versions = sorted(versions, key=created, reverse=True)
    latest = [row for row in versions if row["is_latest"]]
    others = [row for row in versions if not row["is_latest"]]
    place = next((index for index, row in enumerate(versions) if not row["is_deleted"]), 0)
    return [*others[:place], *latest, *others[place:]]


def _custom_columns(tables: ContentTables) -> list[str]:
    """Columns of the table that not every table has."""
    names = tables.read(tables.objects, lambda table: [f.name for f in table.schema().fields])
    return [name for name in names if name not in OBJECTS.names]


def history(
    tables: ContentTables,
    bucket: str,
    key: str,
    *,
    version_id: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    limit: int = 100,
    suggest: bool = False,
) -> Page:
    """The last changes of a key, as the journal has them, oldest first. What came twice is there twice.

    Args:
        tables: where.
        bucket: the bucket, as the tables have it.
        key: the key.
        version_id: only of this version.
        since: only what happened at this time or later.
        until: only what happened before this time.
        limit: at most so many, the newest. `after` of the page says that there were more.
        suggest: whether the error for an unknown key names the nearest one, which reads all keys of the bucket.

    Raises:
        NotFoundError: the journal has nothing about it.
    """
    where = _history_expression(bucket, key, version_id, since, until)

    def read(table: Table) -> Page:
        rows = RowScan(tables.store, table, where, HISTORY_COLUMNS)
        keys = [(name, "descending") for name in ("record_timestamp", "sequence_number", "offset", "index")]
        best = rows.schema.empty_table()
        more = False
        for new in rows:
            best = pa.concat_tables([best, new])
            more = more or best.num_rows > limit
            best = best.take(pc.sort_indices(best, sort_keys=keys)[:limit])
        oldest_first = best.take(pa.array(range(best.num_rows - 1, -1, -1), pa.int64())).select(list(HISTORY_COLUMNS))
        return Page([_with_zone(row) for row in plain_rows(oldest_first)], "more" if more else None)

    found = tables.read(tables.journal, read)
    if not found.rows and version_id is None and since is None and until is None:
        raise _unknown_key(tables, bucket, key, "history" if suggest else None)
    return found


def _with_zone(row: dict[str, Any]) -> dict[str, Any]:
    """The journal's times are UTC without saying so, as those of S3 Metadata; here they say it."""
    return {**row, "record_timestamp": row["record_timestamp"].replace(tzinfo=UTC)}


def known_buckets(tables: ContentTables) -> list[str]:
    """The buckets that the table has rows of."""

    def read(table: Table) -> list[str]:
        from pyiceberg.expressions import AlwaysTrue

        found: set[str] = set()
        for rows in RowScan(tables.store, table, AlwaysTrue(), ["bucket"]):
            found.update(pc.unique(rows.column("bucket")).to_pylist())
        return sorted(found)

    return tables.read(tables.objects, read)


def require_bucket(tables: ContentTables, bucket: str) -> None:
    """Raises NotFoundError where the table has no row of a bucket; it names the nearest."""
    known = known_buckets(tables)
    if bucket in known:
        return
    near = nearest(bucket, known)
    raise NotFoundError(
        f"nothing is known of bucket '{bucket}'",
        cause=f"known are: {', '.join(map(quoted_name, known[:10]))}{', …' if len(known) > 10 else ''}"
        if known
        else "none is known",
        hint=f"frazil content list {quoted_name(near)}" if near else f"frazil content scan {quoted_name(bucket)}",
    )


def _page(tables: ContentTables, selection: ObjectFilter, columns: Sequence[str], order: HitOrder, limit: int) -> Page:
    def read(table: Table) -> Page:
        hits = Hits(tables, table, selection, order=order)
        # A table that no newer Frazil has written to yet lacks some columns.
        rows, after = read_page(hits, order, limit, [name for name in columns if name in hits.schema.names])
        return Page([{name: row.get(name) for name in columns} for row in plain_rows(rows)], after)

    return tables.read(tables.objects, read)


def _history_expression(
    bucket: str, key: str, version_id: str | None, since: datetime | None, until: datetime | None
) -> BooleanExpression:
    from pyiceberg.expressions import EqualTo, GreaterThanOrEqual, IsNull, LessThan, Or

    terms: list[BooleanExpression] = [EqualTo(term="bucket", value=bucket), EqualTo(term="key", value=key)]
    if version_id is not None:
        same = EqualTo(term="version_id", value=plain_version(version_id) or "")
        terms.append(same if plain_version(version_id) else Or(same, IsNull(term="version_id")))
    if since is not None:
        terms.append(GreaterThanOrEqual(term="record_timestamp", value=_plain(since)))
    if until is not None:
        terms.append(LessThan(term="record_timestamp", value=_plain(until)))
    return all_of(terms)


def _plain(time: datetime) -> str:
    return time.astimezone(UTC).replace(tzinfo=None).isoformat()


def nearest_key(tables: ContentTables, bucket: str, key: str) -> str | None:
    """Returns the key of a bucket that is most like this one; None: none is. Reads the bucket's keys once.

    One misspelt place leaves the first or the second half of a key as it is, so only such keys are compared.
    """
    from pyiceberg.expressions import EqualTo

    half = (len(key) + 1) // 2

    def ask(table: Table) -> list[str]:
        found: list[str] = []
        for rows in RowScan(tables.store, table, EqualTo(term="bucket", value=bucket), ["bucket", "key"]):
            keys = rows.column("key")
            begins = pc.starts_with(keys, pattern=key[:half], ignore_case=True)
            ends = pc.ends_with(keys, pattern=key[half:], ignore_case=True) if key[half:] else begins
            found += keys.filter(pc.or_(begins, ends)).slice(0, _COMPARED - len(found)).to_pylist()
            if len(found) >= _COMPARED:
                break
        return found

    near = difflib.get_close_matches(key, tables.read(tables.objects, ask), n=1, cutoff=_ALIKE)
    return near[0] if near else None


def _unknown_key(tables: ContentTables, bucket: str, key: str, command: str | None) -> NotFoundError:
    """Returns the error for an unknown key.

    Args:
        tables: the tables.
        bucket: the bucket.
        key: the key that it does not have.
        command: the CLI command that suggests the nearest key; None looks for none, as any HTTP client could make the
            server read and compare all keys of a bucket again and again.
    """
    require_bucket(tables, bucket)
    if command and (near := nearest_key(tables, bucket, key)):
        return NotFoundError(
            f"nothing is known of '{key}' in bucket '{bucket}'",
            hint=f"frazil content {command} {quoted_name(bucket)} {quoted_name(near)}",
        )
    folder = key.rpartition("/")[0]
    return NotFoundError(
        f"nothing is known of '{key}' in bucket '{bucket}'",
        hint=f"frazil content list {quoted_name(bucket)}"
        + (f" --prefix {quoted_name(f'{folder}/')}" if folder else ""),
    )


def quoted_name(name: str) -> str:
    """A name as it is to be typed; strangers choose names, and a terminal must not obey them."""
    plain = name.removeprefix("file://") if is_folder(name) else name
    return shlex.quote(plain) if plain.isprintable() else ascii(plain)
