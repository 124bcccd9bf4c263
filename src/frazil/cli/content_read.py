"""`frazil content list|show|history|stats|views`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run
from frazil.cli.printing import visible
from frazil.errors import UsageError

if TYPE_CHECKING:
    from datetime import datetime

    from frazil.content.query.filters import ObjectFilter
    from frazil.content.tables import ContentTables

SECTIONS = (*CATALOG_SECTIONS, "content", "log")
#: Characters of the metadata that people are shown.
_METADATA = 300

BucketName = Annotated[str, typer.Argument(metavar="BUCKET", help="bucket, s3://bucket, or a folder")]
MaybeBucket = Annotated[str | None, typer.Argument(metavar="[BUCKET]", help="only this bucket or folder")]
Key = Annotated[str, typer.Argument(metavar="KEY", help="the object's key, or path in the folder")]
Prefix = Annotated[str | None, typer.Option(metavar="TEXT", help="only keys that begin so")]
Version = Annotated[str | None, typer.Option("--version-id", metavar="ID", help="only this version")]
Since = Annotated[
    str | None, typer.Option(metavar="TIME", help="at this time or later: 2026-01-31T12:00:00Z, or 7d for 7 days ago")
]
Until = Annotated[str | None, typer.Option(metavar="TIME", help="before this time, or longer ago than 7d")]


class SortChoice(StrEnum):
    key = "key"
    size = "size"
    modified = "modified"


class DeletedChoice(StrEnum):
    too = "too"
    only = "only"


class ByChoice(StrEnum):
    prefix = "prefix"
    storage_class = "class"
    day = "day"
    content_type = "type"
    bucket = "bucket"


def list_(
    run: Run,
    bucket: MaybeBucket = None,
    prefix: Prefix = None,
    min_size: Annotated[str | None, typer.Option(metavar="SIZE", help="at least so large, such as 1MB")] = None,
    max_size: Annotated[str | None, typer.Option(metavar="SIZE", help="at most so large")] = None,
    since: Since = None,
    until: Until = None,
    storage_class: Annotated[str | None, typer.Option("--class", help="only of this storage class")] = None,
    tag: Annotated[
        list[str] | None, typer.Option(metavar="KEY[=VALUE]", help="only with this tag; may be repeated")
    ] = None,
    content_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="only of this content type, or family: image/*")
    ] = None,
    deleted: Annotated[DeletedChoice | None, typer.Option(help="tombstones too, or only these")] = None,
    versions: Annotated[bool, typer.Option("--versions", help="old versions too")] = False,
    markers: Annotated[bool, typer.Option("--markers", help="delete markers too")] = False,
    sort: Annotated[SortChoice, typer.Option(help="size: largest first; modified: newest first")] = SortChoice.key,
    limit: Annotated[int, typer.Option(min=1, help="at most this many")] = 100,
    catalog: CatalogOption = None,
) -> None:
    """List objects, as the table and the log have them. No server is needed, and the bucket is not asked."""
    from frazil.content.query.objects import list_objects

    choice = _choice(
        bucket=bucket, prefix=prefix, min_size=min_size, max_size=max_size, since=since, until=until,
        storage_class=storage_class, tags=tuple(tag or ()), content_type=content_type,
        deleted=deleted.value if deleted else "no", versions=versions, markers=markers,
    )  # fmt: skip
    with tables_of(run, catalog) as tables:
        page = list_objects(tables, choice, sort=sort.value, limit=limit)
    if run.printer.json_output:
        run.printer.json(page.rows)
    else:
        with_state = versions or markers or deleted is not None
        _print_objects(run, page.rows, with_bucket=bucket is None, with_state=with_state)
    if page.after is not None:
        run.printer.note(f"there are more: these are the first {limit} (--limit)")


def show(
    run: Run,
    bucket: BucketName,
    key: Key,
    version_id: Version = None,
    catalog: CatalogOption = None,
) -> None:
    """Show one object: all that is known of it, its versions, and whether the bucket is still to be asked."""
    from frazil.content.query.objects import show_object

    at, name = _object(bucket, key)
    with tables_of(run, catalog) as tables:
        found = show_object(tables, at, name, version_id, suggest=True)
    if run.printer.json_output:
        run.printer.json(with_lag(tables, found))
        return
    versions, more, custom = (found.pop(name) for name in ("versions", "more_versions", "custom"))
    run.printer.record({**_shown({**found, **custom}), "state": _state(found)})
    print()
    columns = ["version", "state", "size", "modified", "etag"]
    run.printer.rows(
        columns,
        [
            [_text(v["version_id"]) or "-", _state(v), _size(v["size"]), _time(v["last_modified"]), _text(v["etag"])]
            for v in versions
        ],
    )
    if more:
        run.printer.note(f"there are more versions: these are the newest {len(versions)}")


def history(
    run: Run,
    bucket: BucketName,
    key: Key,
    version_id: Version = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, help="at most this many, the newest")] = 100,
    catalog: CatalogOption = None,
) -> None:
    """Show what has happened to an object, oldest first: each event and each look, as the journal has them."""
    from frazil.content.query import objects

    at, name = _object(bucket, key)
    first, before = parse_time(since), parse_time(until)
    with tables_of(run, catalog) as tables:
        page = objects.history(
            tables, at, name, version_id=version_id, since=first, until=before, limit=limit, suggest=True
        )
    if run.printer.json_output:
        run.printer.json(page.rows)
    else:
        columns = ["time", "type", "version", "size", "etag", "dialect", "event", "offset"]
        rows = [
            [
                _time(row["record_timestamp"]), row["record_type"], _text(row["version_id"]), _size(row["size"]),
                _text(row["e_tag"]), row["dialect"], _text(row["event_name"]), f"{row['offset']}.{row['index']}",
            ]
            for row in page.rows
        ]  # fmt: skip
        run.printer.rows(columns, rows, none="nothing in this time")
    if page.after is not None:
        run.printer.note(f"there are more: these are the newest {limit} (--limit)")


def stats(
    run: Run,
    bucket: MaybeBucket = None,
    by: Annotated[ByChoice | None, typer.Option(help="group by this")] = None,
    prefix: Prefix = None,
    depth: Annotated[int, typer.Option(min=1, max=100, help="folders of a prefix, with --by prefix")] = 1,
    limit: Annotated[int, typer.Option(min=1, help="at most this many groups, those with most bytes")] = 100,
    catalog: CatalogOption = None,
) -> None:
    """Add up objects, bytes, versions, tombstones and delete markers."""
    from frazil.content.query.totals import totals

    at = _bucket(bucket)
    with tables_of(run, catalog) as tables:
        found = totals(tables, bucket=at, prefix=prefix, by=by.value if by else None, depth=depth, limit=limit)
    if run.printer.json_output:
        grouped = {"by": by.value, "groups": found.groups, "more": found.more} if by else {}
        run.printer.json(with_lag(tables, {"bucket": at, "prefix": prefix, "total": found.total, **grouped}))
        return
    run.printer.record(_shown_totals(found.total))
    if by is not None:
        print()
        _print_groups(run, found.groups)
        if found.more:
            run.printer.note(f"there are more: these are the {limit} groups with most bytes (--limit)")


@contextmanager
def tables_of(run: Run, catalog: str | None) -> Iterator[ContentTables]:
    """The tables and the tail of the log, without a JVM. At the end it says what the answer lacks."""
    from frazil.content.tables import ContentTables
    from frazil.content.tail import ContentTail
    from frazil.tables.store import LazyStore

    settings = run.settings(*SECTIONS)
    with LazyStore(settings, catalog) as opened:
        tables = ContentTables.of(opened.store(), settings, ContentTail.of_command(settings))
        yield tables
    if tables.lag is not None:
        run.printer.note(f"note: {tables.lag}")


def with_lag(tables: ContentTables, answer: dict[str, Any]) -> dict[str, Any]:
    """An answer for JSON; it says what it lacks, if it lacks anything."""
    return answer if tables.lag is None else {**answer, "lag": tables.lag.to_dict()}


def parse_time(text: str | None) -> datetime | None:
    """A time as people write it, or how long ago it was; without a zone it is taken for UTC."""
    from datetime import UTC, datetime, timedelta

    from frazil.cli.amounts import seconds

    if text is None:
        return None
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds(text))
    except UsageError:
        pass
    except OverflowError:
        raise UsageError(f"{text!r} ago there was no calendar", hint="a shorter time, such as 52w") from None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="2026-01-31T12:00:00Z, or 12h, 7d, 2w for so long ago") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _choice(
    *,
    bucket: str | None,
    min_size: str | None,
    max_size: str | None,
    since: str | None,
    until: str | None,
    **others: Any,
) -> ObjectFilter:
    from frazil.cli.amounts import size
    from frazil.content.buckets import require_text
    from frazil.content.query.filters import ObjectFilter

    for name in ("prefix", "storage_class", "content_type"):
        require_text(others[name] or "", name.replace("_", " "))
    return ObjectFilter(
        bucket=_bucket(bucket),
        min_size=None if min_size is None else size(min_size),
        max_size=None if max_size is None else size(max_size),
        since=parse_time(since),
        until=parse_time(until),
        **others,
    )


def _bucket(text: str | None) -> str | None:
    from frazil.content.buckets import bucket_of

    return None if text is None else bucket_of(text)


def _object(bucket: str, key: str) -> tuple[str, str]:
    from frazil.content.buckets import bucket_of, require_text

    require_text(key, "key")
    return bucket_of(bucket), key


# -- for people --------------------------------------------------------------------------------------------------------


def _print_objects(run: Run, rows: Sequence[Mapping[str, Any]], *, with_bucket: bool, with_state: bool) -> None:
    columns: dict[str, Callable[[Mapping[str, Any]], Any]] = {
        "key": lambda r: visible(r["key"]),
        "size": lambda r: _size(r["size"]),
    }
    columns |= {"modified": lambda r: _time(r["last_modified"]), "class": lambda r: _text(r["storage_class"])}
    if with_state:
        columns |= {"version": lambda r: _text(r["version_id"]), "state": _state}
    if with_bucket:
        columns = {"bucket": lambda r: visible(r["bucket"]), **columns}
    if any(row["tags"] for row in rows):
        columns["tags"] = lambda r: _pairs(r["tags"])
    listed = [[show(row) for show in columns.values()] for row in rows]
    run.printer.rows(list(columns), listed, none="no objects")


def _print_groups(run: Run, groups: Sequence[Mapping[str, Any]]) -> None:
    measures = ("objects", "bytes", "versions", "version_bytes", "tombstones", "markers", "oldest", "newest", "largest")
    names = [name for name in groups[0] if name not in measures] if groups else []
    columns = [*names, "objects", "bytes", "versions", "tombstones", "markers", "newest"]
    rows = [
        [*(_text(g[name]) for name in names), *(_shown_totals(g)[c] for c in columns[len(names) :])] for g in groups
    ]
    run.printer.rows(columns, rows, none="no groups")


def _shown_totals(found: Mapping[str, Any]) -> dict[str, Any]:
    largest = found["largest"]
    return {
        **found,
        "bytes": _size(found["bytes"]),
        "version_bytes": _size(found["version_bytes"]),
        "oldest": _time(found["oldest"]),
        "newest": _time(found["newest"]),
        "largest": f"{_size(largest['size'])}  {visible(largest['key'])}" if largest else None,
    }


def _shown(found: Mapping[str, Any]) -> dict[str, Any]:
    """All columns of one object, so that no value can do more than be read."""
    shown = {name: _value(value) for name, value in found.items() if not name.startswith("is_")}
    pending = shown.pop("check_after")
    size = found["size"]
    shown["size"] = None if size is None else f"{size:,} bytes ({_size(size)})"
    shown["extraction"] = _extractors(found["extraction"])
    if found["metadata"] is not None and len(found["metadata"]) > _METADATA:
        shown["metadata"] = f"{_text(found['metadata'][:_METADATA])}… (all of it: --output json)"
    if pending is not None:
        shown["pending check"] = f"the bucket is asked again at {pending}: two sources disagree"
    return shown


def _extractors(states: Mapping[str, Mapping[str, Any]] | None) -> str | None:
    """Who has looked into it, and of those who failed, why."""
    if not states:
        return None
    told = []
    for name, state in states.items():
        why = f" ({visible(state['reason'])})" if state["reason"] else ""
        told.append(f"{visible(name)} {state['status']}{why}")
    return ", ".join(told)


def _value(value: Any) -> Any:
    from datetime import datetime

    if isinstance(value, Mapping):
        return _pairs(value)
    if isinstance(value, list):
        return ", ".join(str(_text(item)) for item in value)
    return _time(value) if isinstance(value, datetime) else _text(value) if isinstance(value, str) else value


def _pairs(values: Mapping[str, Any] | None) -> str | None:
    return None if values is None else ", ".join(f"{visible(k)}={visible(v or '')}" for k, v in values.items())


def _state(row: Mapping[str, Any]) -> str:
    if row["is_deleted"]:
        return "tombstone"
    return f"{'latest' if row['is_latest'] else 'old'} {'marker' if row['is_delete_marker'] else 'version'}"


def _text(value: Any) -> Any:
    return visible(value) if isinstance(value, str) else value


def _size(value: int | None) -> str | None:
    from frazil.cli.amounts import shown_size

    return None if value is None else shown_size(value)


def _time(value: datetime | None) -> str | None:
    """UTC says so; the clock of a camera has no zone."""
    if value is None:
        return None
    zone = "" if value.tzinfo is None else "Z"
    return value.replace(tzinfo=None).isoformat(timespec="seconds") + zone
