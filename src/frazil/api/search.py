"""`/content/search`, `/content/facets`, `/content/duplicates` and `/content/thumbnail`. Buckets are not asked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from inspect import Parameter, Signature
from typing import Annotated, Any, get_type_hints

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response

from frazil.api.content import Bucket, Key, Limit, MaybeBucket, Version, content_looks
from frazil.api.messages import Shared
from frazil.api.search_models import ContentDuplicates, ContentFacets, ContentFound
from frazil.content.buckets import require_readable
from frazil.content.query import objects, similarity
from frazil.content.query.duplicates import duplicates
from frazil.content.query.facets import facets
from frazil.content.query.filters import DISTANCE, Search, Similar
from frazil.content.query.jsonpath_fallback import require_cheap
from frazil.content.query.order import Sort
from frazil.content.query.picture_hash import hash_of_object
from frazil.content.query.request import SearchRequest
from frazil.content.query.search import find
from frazil.content.tables import ContentTables
from frazil.content.thumbnails import ThumbnailStore, thumbnail_key
from frazil.errors import NotFoundError, UsageError
from frazil.settings import SettingsModel
from frazil.tables.cache import ByteCache
from frazil.tables.reading.column_blocks import WIDE

router = APIRouter(prefix="/content", tags=["content"])

_WEBP = "image/webp"
#: Seconds that a path with filters may take in one search.
_PATIENCE_S = 10.0
#: Objects of one answer that has columns of any size.
_WIDE_ROWS = 1000


class Searches:
    """What searches of one app share: columns that were decoded, and where thumbnails lie."""

    def __init__(self, settings: SettingsModel) -> None:
        self.cache = ByteCache()
        self.thumbnails = ThumbnailStore.of_model(settings)


def _search(
    request: SearchRequest, tables: ContentTables, similar: str | None = None, distance: int | None = None
) -> Search:
    """The search; the hash of a picture comes out of the table, never out of a file of this machine."""
    if similar is None:
        if distance is not None:
            raise UsageError("a distance needs a picture to be distant from", hint="similar=KEY")
        return _bounded(request.parse())
    number = hash_of_object(tables, request.bucket, similar)
    return _bounded(request.parse(Similar(number, DISTANCE if distance is None else distance)))


def _bounded(search: Search) -> Search:
    """The same, for a server that answers others too."""
    for field in search.fields:
        require_cheap(field.name)
    return replace(search, fields=tuple(replace(field, seconds=_PATIENCE_S) for field in search.fields))


async def search_request(**values: Any) -> SearchRequest:
    """The parameters that all searches have. A coroutine: FastAPI would hand a function to a thread."""
    return SearchRequest.of(**values)


def _parameters() -> list[Parameter]:
    hints = get_type_hints(SearchRequest)
    found = [Parameter("bucket", Parameter.KEYWORD_ONLY, default=None, annotation=MaybeBucket)]
    for option in SearchRequest.options():
        limits: dict[str, Any] = {"ge": 0, "lt": 2**63} if option.name.endswith("_size") else {}
        query = Query(description=option.metadata["about"], alias=option.metadata.get("name"), **limits)
        kind, default = (list[str] | None, None) if option.default == () else (hints[option.name], option.default)
        found.append(Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, query]))
    return found


search_request.__signature__ = Signature(_parameters())  # type: ignore[attr-defined]

Asked = Annotated[SearchRequest, Depends(search_request)]
Bits = Annotated[int | None, Query(ge=0, le=64, description="bits in which pictures may differ")]


@router.get("/search", responses={200: {"model": ContentFound}})
async def search(
    request: Request,
    service: Shared,
    asked_for: Asked,
    similar: Annotated[str | None, Query(description="key of a picture that it looks like")] = None,
    distance: Bits = None,
    sort: Annotated[Sort | None, Query(description="`key`, `size`, `modified`, `taken`, `rating`, `distance`")] = None,
    limit: Limit = 100,
    after: Annotated[str | None, Query(description="`after` of the page before, with the same parameters")] = None,
    columns: Annotated[str | None, Query(description="columns to tell, with commas")] = None,
) -> Response:
    """Finds objects by what is in them."""
    names = _names(columns)
    wide = sorted(WIDE & set(names or ()))
    if wide and limit > _WIDE_ROWS:
        raise UsageError(
            f"an answer with {', '.join(wide)} has at most {_WIDE_ROWS:,} objects",
            hint=f"limit={_WIDE_ROWS}, and after",
        )

    def look(tables: ContentTables) -> Any:
        wanted = _search(asked_for, tables, similar, distance)
        page = find(
            tables, wanted, sort=sort, limit=limit, after=after, columns=names, cache=_searches(request).cache
        )  # fmt: skip
        return {"objects": page.rows, "after": page.after}

    return await content_looks(request).answer(service, look)


@router.get("/facets", responses={200: {"model": ContentFacets}})
async def show_facets(
    request: Request,
    service: Shared,
    asked_for: Asked,
    by: Annotated[str, Query(description="`camera`, `label`, `year`, … or a column")],
    limit: Limit = 100,
) -> Response:
    """Counts what a search finds, by something."""

    def look(tables: ContentTables) -> Any:
        found = facets(tables, _search(asked_for, tables), by, limit, cache=_searches(request).cache)
        return {"by": by, "groups": found.groups, "more": found.more}

    return await content_looks(request).answer(service, look)


@router.get("/duplicates", responses={200: {"model": ContentDuplicates}})
async def show_duplicates(
    request: Request,
    service: Shared,
    asked_for: Asked,
    alike_too: Annotated[bool, Query(alias="similar", description="`true`: pictures that look alike")] = False,
    distance: Bits = None,
    limit: Limit = 100,
) -> Response:
    """Shows what a search finds more than once."""
    if distance is not None and not alike_too:
        raise UsageError("a distance is about pictures that look alike", hint="similar=true")

    def look(tables: ContentTables) -> Any:
        wanted, cache = _search(asked_for, tables), _searches(request).cache
        if alike_too:
            bits = similarity.DISTANCE if distance is None else distance
            return similarity.similar_groups(tables, wanted, bits, limit, cache=cache).to_dict()
        return duplicates(tables, wanted, limit, cache=cache).to_dict()

    return await content_looks(request).answer(service, look)


@router.get("/thumbnail", responses={200: {"content": {_WEBP: {}}}, 304: {"description": "it is still the same"}})
async def show_thumbnail(
    request: Request, service: Shared, bucket: Bucket, key: Key, version_id: Version = None
) -> Response:
    """Shows the thumbnail of a picture: the latest version, or the one that is named."""
    store = _searches(request).thumbnails

    def look(tables: ContentTables) -> bytes:
        row = objects.show_object(tables, bucket, key, version_id)
        require_readable(row["bucket"], service.settings.content.buckets)
        told = (row["bucket"], row["key"], row["version_id"], row["etag"])
        gone, status = row["is_deleted"] or row["is_delete_marker"], row.get("extraction_status")
        found = None if gone or status == "erased" else store.get(thumbnail_key(*told))
        if found is None:
            raise NotFoundError(
                f"there is no thumbnail of '{key}'",
                cause="it is deleted"
                if gone
                else f"its extraction is {status}"
                if status
                else "no metadata was extracted from it",
                hint="frazil content extract --only picture",
            )
        return found

    found = await content_looks(request).find(service, look)
    tag = f'"{hashlib.sha256(found).hexdigest()[:32]}"'
    headers = {
        "ETag": tag,
        # Asked again each time: what was erased must not stay in sight. The tag spares the bytes.
        "Cache-Control": "private, no-cache",
        "X-Content-Type-Options": "nosniff",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Content-Security-Policy": "default-src 'none'",
    }
    if _matches(request.headers.get("if-none-match"), tag):
        return Response(status_code=304, headers=headers)
    return Response(found, media_type=_WEBP, headers=headers)


def _matches(header: str | None, tag: str) -> bool:
    given = [part.strip().removeprefix("W/") for part in (header or "").split(",")]
    return tag in given or "*" in given


def _names(columns: str | None) -> Sequence[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",") if name.strip()]


def _searches(request: Request) -> Searches:
    searches = request.app.state.searches
    assert isinstance(searches, Searches)
    return searches
