"""`/content`: objects, one of them, its history, and sums, out of the tables and the tail of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from frazil.api.content_models import ContentDetail, ContentHistory, ContentPage, ContentStats
from frazil.api.messages import Shared
from frazil.api.reading import json_bytes
from frazil.api.request_body import JSON
from frazil.api.service import Service
from frazil.content.query import objects
from frazil.content.query.filters import Deleted, ObjectFilter
from frazil.content.query.order import ListSort
from frazil.content.query.totals import By, totals
from frazil.content.tables import ContentTables
from frazil.errors import UnavailableError, UsageError

router = APIRouter(prefix="/content", tags=["content"])

#: Objects, changes or groups of one answer.
MAX_ROWS = 10_000
#: Answers that are looked up at the same time: others want the threads too.
_AT_ONCE = 2

TablesOf = Callable[[], ContentTables]
T = TypeVar("T")

Bucket = Annotated[str, Query(description="bucket, or the URI of a folder (`file:///…`)")]
Key = Annotated[str, Query(description="exactly this key")]
MaybeBucket = Annotated[str | None, Query(description="only this bucket, or folder by its URI (`file:///…`)")]
Prefix = Annotated[str | None, Query(description="only keys that begin so")]
Version = Annotated[str | None, Query(description="only this version; `null`: that of a bucket without versions")]
Since = Annotated[str | None, Query(description="at this time or later, ISO 8601, UTC where it has no zone")]
Until = Annotated[str | None, Query(description="before this time")]
Limit = Annotated[int, Query(ge=1, le=MAX_ROWS, description=f"at most so many, up to {MAX_ROWS:,}")]


class ContentLooks:
    """Who looks into the tables, and how many at the same time. Belongs to one app and one event loop."""

    def __init__(self, tables_of: TablesOf | None) -> None:
        self._tables_of = tables_of
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def answer(self, service: Service, look: Callable[[ContentTables], dict[str, Any]]) -> Response:
        """The answer as JSON; with `lag` if it lacks messages of the log."""

        def find(tables: ContentTables) -> bytes:
            found = look(tables)
            return json_bytes(found if tables.lag is None else {**found, "lag": tables.lag.to_dict()})

        return Response(await self.find(service, find), media_type=JSON)

    async def find(self, service: Service, look: Callable[[ContentTables], T]) -> T:
        async with self._turns:
            return await service.off_loop(self._found, look)

    def _found(self, look: Callable[[ContentTables], T]) -> T:
        if self._tables_of is None:
            raise UnavailableError("this server has no tables", hint="frazil serve")
        return look(self._tables_of())


@router.get("/objects", responses={200: {"model": ContentPage}})
async def list_objects(
    request: Request,
    service: Shared,
    bucket: MaybeBucket = None,
    key: Annotated[str | None, Query(description="exactly this key")] = None,
    prefix: Prefix = None,
    min_size: Annotated[int | None, Query(ge=0, lt=2**63, description="bytes, included")] = None,
    max_size: Annotated[int | None, Query(ge=0, lt=2**63, description="bytes, included")] = None,
    since: Since = None,
    until: Until = None,
    storage_class: Annotated[str | None, Query(alias="class", description="only of this storage class")] = None,
    content_type: Annotated[str | None, Query(alias="type", description="a content type, or family: `image/*`")] = None,
    tag: Annotated[list[str] | None, Query(description="`KEY` or `KEY=VALUE`; several must all hold")] = None,
    versions: Annotated[bool, Query(description="old versions too")] = False,
    markers: Annotated[bool, Query(description="delete markers too")] = False,
    deleted: Annotated[Deleted, Query(description="tombstones: `no`, `too` or `only`")] = "no",
    sort: Annotated[ListSort, Query(description="`key`; `size`: largest first; `modified`: newest first")] = "key",
    limit: Limit = 100,
    after: Annotated[str | None, Query(description="`after` of the page before, with the same parameters")] = None,
) -> Response:
    """Lists objects, as the table and the tail of the log have them; the bucket is not asked."""
    choice = ObjectFilter(
        bucket=bucket, key=key, prefix=prefix, min_size=min_size, max_size=max_size, since=_time(since),
        until=_time(until), storage_class=storage_class, content_type=content_type, tags=tuple(tag or ()),
        versions=versions, markers=markers, deleted=deleted,
    )  # fmt: skip

    def look(tables: ContentTables) -> Any:
        page = objects.list_objects(tables, choice, sort=sort, limit=limit, after=after)
        return {"objects": page.rows, "after": page.after}

    return await content_looks(request).answer(service, look)


@router.get("/object", responses={200: {"model": ContentDetail}})
async def show_object(
    request: Request, service: Shared, bucket: Bucket, key: Key, version_id: Version = None
) -> Response:
    """Shows all that is known of an object: the latest version, or the one that is named."""
    return await content_looks(request).answer(
        service, lambda tables: objects.show_object(tables, bucket, key, version_id)
    )


@router.get("/history", responses={200: {"model": ContentHistory}})
async def show_history(
    request: Request,
    service: Shared,
    bucket: Bucket,
    key: Key,
    version_id: Version = None,
    since: Since = None,
    until: Until = None,
    limit: Limit = 100,
) -> Response:
    """Shows what has happened to an object: the newest changes, oldest first."""
    first, before = _time(since), _time(until)

    def look(tables: ContentTables) -> Any:
        page = objects.history(tables, bucket, key, version_id=version_id, since=first, until=before, limit=limit)
        return {"changes": page.rows, "more": page.after is not None}

    return await content_looks(request).answer(service, look)


@router.get("/stats", responses={200: {"model": ContentStats}})
async def show_stats(
    request: Request,
    service: Shared,
    bucket: MaybeBucket = None,
    prefix: Prefix = None,
    by: Annotated[By | None, Query(description="group by `prefix`, `class`, `day`, `type` or `bucket`")] = None,
    depth: Annotated[int, Query(ge=1, le=100, description="folders of a prefix")] = 1,
    limit: Limit = 100,
) -> Response:
    """Adds up objects, bytes, versions, tombstones and delete markers."""

    def look(tables: ContentTables) -> Any:
        found = totals(tables, bucket=bucket, prefix=prefix, by=by, depth=depth, limit=limit)
        return {"total": found.total, "groups": found.groups, "more": found.more}

    return await content_looks(request).answer(service, look)


def content_looks(request: Request) -> ContentLooks:
    """Those of the app that a request came to."""
    looks = request.app.state.content
    assert isinstance(looks, ContentLooks)
    return looks


def _time(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        # A plus sign in a query means a blank.
        time = datetime.fromisoformat(text.replace(" ", "+") if text.count(" ") == 1 and "T" in text else text)
    except ValueError:
        raise UsageError(f"{text!r} is no time", hint="a time as 2026-01-31T12:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)
