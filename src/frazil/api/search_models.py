"""The JSON of `/content/search` and its like. docs/http-api.md is checked against it."""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict, Field

from frazil.api.content_models import ContentAnswer
from frazil.api.models import Answered


class ContentHit(Answered):
    """An object in the results of a search. With `columns`, it has those and its name."""

    model_config = ConfigDict(extra="allow")

    bucket: str = Field(description="bucket, or the URI of a folder")
    key: str = Field(description="key, exactly as it is")
    version_id: str = Field(description="version; empty in a bucket without versions")
    size: int | None = Field(description="bytes")
    last_modified: str | None = Field(description="of the object, ISO 8601, UTC")
    etag: str | None = Field(description="without quotes")
    content_type: str | None = Field(description="as specified at the upload; null: unknown")
    detected_type: str | None = Field(description="media type by its first bytes")
    taken_at: str | None = Field(description="time of recording, by the camera's clock, ISO 8601 without a time zone")
    camera: str | None = Field(description="maker and model")
    labels: list[str] | None = Field(description="labels, highest confidence first")
    latitude: float | None = Field(description="degrees, north is positive")
    longitude: float | None = Field(description="degrees, east is positive")
    image_width: int | None = Field(description="pixels, as displayed")
    image_height: int | None = Field(description="pixels, as displayed")
    duration: float | None = Field(description="seconds of audio or video")
    page_count: int | None = Field(description="pages, sheets or slides")
    title: str | None = Field(description="title of the work")
    author: str | None = Field(description="author or artist")
    user_tags: list[str] | None = Field(description="tags by users")
    rating: int | None = Field(description="1 to 5")
    extraction_status: str | None = Field(
        description="`pending`, `ok`, `failed` or `erased`; null: nothing to look into"
    )
    distance_bits: int = Field(description="with `similar`: bits in which it differs from the picture")
    distance_km: float = Field(description="with `near`: kilometres to the place")


class ContentFound(ContentAnswer):
    objects: list[ContentHit] = Field(description="in the requested order")
    after: str | None = Field(description="position to continue: `after` of the next request; null: there are no more")


class ContentFacet(Answered):
    value: Any = Field(description="what the group has in common; null: objects without any")
    objects: int = Field(description="objects of the group; one with several labels or tags is in each of their groups")
    bytes: int = Field(description="of these")


class ContentFacets(ContentAnswer):
    by: str = Field(description="what was grouped by")
    groups: list[ContentFacet] = Field(description="those with most objects first")
    more: bool = Field(description="whether there are more groups than `limit`")


class ContentMember(Answered):
    """One of several objects with the same content."""

    bucket: str = Field(description="its bucket")
    key: str = Field(description="its key")
    version_id: str = Field(description="its version")
    size: int | None = Field(description="its bytes")
    last_modified: str | None = Field(description="of the object, ISO 8601, UTC")


class ContentCopies(Answered):
    """Objects that are the same, or look alike."""

    by: str = Field(description="`hash`: their content is; `etag`: their size and MD5 are; `similar`: they look so")
    size: int = Field(description="bytes of the largest")
    objects: int = Field(description="how many")
    wasted_bytes: int = Field(description="bytes of all but the largest")
    members: list[ContentMember] = Field(description="the first 100 of them, by name")


class ContentDuplicates(ContentAnswer):
    groups: list[ContentCopies] = Field(description="those that waste most first")
    count: int = Field(description="groups, also those beyond `limit`")
    objects: int = Field(description="objects that are not needed: in each group all but one")
    wasted_bytes: int = Field(description="of these")
    more: bool = Field(description="whether there are more groups than `limit`")
