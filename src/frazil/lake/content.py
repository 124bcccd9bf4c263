"""The metadata of objects in buckets and folders."""

from __future__ import annotations

import builtins
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import EllipsisType
from typing import Any, Literal

from frazil.content.annotations.edits import STAYS, Edit
from frazil.content.annotations.publish_edits import make_entries, publish
from frazil.content.buckets import bucket_of, require_text
from frazil.content.full_scan import ScanReport, ScanRequest, run_full_scan
from frazil.content.query import objects
from frazil.content.query.filters import Deleted, ObjectFilter
from frazil.content.query.order import ListSort
from frazil.content.query.order import Sort as SearchSort
from frazil.content.query.page import Page as ContentPage
from frazil.content.query.picture_hash import similar_to
from frazil.content.query.request import parse_search
from frazil.content.query.search import find
from frazil.content.scan.listing import open_target
from frazil.content.scan.session import ScanSession
from frazil.content.tables import ContentTables
from frazil.content.tail import ContentTail
from frazil.content.topic import ensure_events_topic
from frazil.lake.connection import Connection
from frazil.topics.reading.tail import Lag
from frazil.topics.sinks.jobs import for_pipeline

Status = Literal["pending", "ok", "failed", "erased"]
Texts = str | Sequence[str]


@dataclass(frozen=True)
class Page:
    """Rows in order, as dictionaries.

    Attributes:
        rows: the rows.
        after: where the next page begins: pass it to the same call again; None: this is the last one.
        lag: messages of the log that the answer lacks, with `messages` and `reason`; None: none.
    """

    rows: list[dict[str, Any]]
    after: str | None
    lag: Lag | None = None

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


@dataclass(frozen=True)
class EditReport:
    """An edit that is durable in the log.

    Attributes:
        bucket: the bucket or folder, as the tables have it.
        objects: how many objects were named.
        versions: how many versions of them it applies to.
        offset: of the first message in the topic of events.
        lag: why the next read may not show the edit; None: it does.
    """

    bucket: str
    objects: int
    versions: int
    offset: int
    lag: Lag | None = None


class Content:
    """Metadata of objects: `lake.content`. A place is a bucket ("photos", "s3://photos") or a folder ("./photos").

    Reads include the messages of the log that the table does not have yet; they need no Spark.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._tail: ContentTail | None = None

    # -- scan --------------------------------------------------------------------------------------------------------

    def scan(
        self,
        place: str,
        *,
        prefix: str = "",
        versions: bool | None = None,
        extract: bool | None = None,
        gone: bool | None = None,
        everything: bool = False,
        restart: bool = False,
        wait: bool = True,
    ) -> ScanReport:
        """Records what is in a bucket or folder: all of it the first time, later what has changed.

        Args:
            place: bucket or folder.
            prefix: only keys that begin with it.
            versions: all versions of a bucket's objects, or only the latest; by default all, if it has versions.
            extract: then extract metadata from new objects; by default of a folder yes, of a bucket no.
            gone: of a folder, record what is no longer there; by default yes, unless it is empty.
            everything: publish also what the table knows already.
            restart: begin anew although a scan has broken off.
            wait: return when the table has the rows, which starts Spark where no pipeline runs. False: return when they
                are durable in the log; nothing is extracted.

        Raises:
            NotFoundError: the place does not exist.
            FrazilError: the scan broke off; the next one continues there.
        """
        connection = self._connection
        connection.require_open()
        settings = for_pipeline(connection.settings)
        opened = open_target(place, settings, prefix, versions=versions)
        request = ScanRequest(prefix, everything, gone, restart, wait, extract).checked(opened, settings)
        with connection.log() as access:
            return run_full_scan(ScanSession(settings, access, connection, connection.catalog), opened, request)

    # -- read --------------------------------------------------------------------------------------------------------

    def search(
        self,
        place: str | None = None,
        *,
        label: Texts = (),
        any_label: bool = False,
        camera: str | None = None,
        taken: str | None = None,
        near: str | tuple[float, float] | None = None,
        radius: str | None = None,
        box: str | None = None,
        tag: Texts = (),
        rating: int | str | None = None,
        field: Texts = (),
        exif: Texts = (),
        text: str | None = None,
        path: str | None = None,
        media_type: str | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        status: Status | None = None,
        similar: str | None = None,
        distance: int | None = None,
        sort: SearchSort | None = None,
        limit: int = 100,
        after: str | None = None,
        columns: Sequence[str] | None = None,
    ) -> Page:
        """Finds objects of which all conditions are true. The values are those of `frazil content search`.

        Args:
            place: only this bucket or folder.
            label: labels, or words of them.
            any_label: one of the labels is enough.
            camera: part of the camera's name.
            taken: "2024", "2024-05", "2024-05-01..2024-08", "2024..".
            near: taken near this place: (latitude, longitude) or "48.8584,2.2945".
            radius: and no further away than this: "800m", "5km".
            box: taken between these degrees: "south,west,north,east".
            tag: tags of people, or "KEY=VALUE" of the object store.
            rating: 5, "4..5", "4..".
            field: conditions on columns and on paths in `metadata`: "image_width>=1000".
            exif: conditions on EXIF tags: "ISOSpeedRatings>=800".
            text: words that are all in title, author, note, key or text.
            path: pattern of keys: "*.jpg", "2024/**/*.png".
            media_type: "image/jpeg", "image/*".
            min_size: bytes.
            max_size: bytes.
            status: of the extraction.
            similar: a picture that it looks like: a file on this machine, or a key.
            distance: bits of 64 in which the hashes of similar pictures may differ.
            sort: "key", "size", "modified", "taken", "rating" (greatest first) or "distance" (nearest first).
            limit: at most so many rows.
            after: `after` of the page before.
            columns: the columns of a row; by default the usual ones.

        Raises:
            NotFoundError: the place is not known, or no object was ever recorded.
            UsageError: a condition is not understood; the hint says what would be.
        """
        bucket = None if place is None else bucket_of(place)
        tables = self._tables()
        conditions: dict[str, Any] = {
            "label": _as_list(label), "any_label": any_label, "camera": camera, "taken": taken,
            "near": near if near is None or isinstance(near, str) else f"{near[0]},{near[1]}", "radius": radius,
            "box": box, "tag": _as_list(tag), "rating": None if rating is None else str(rating),
            "field": _as_list(field), "exif": _as_list(exif), "text": text, "path": path, "media_type": media_type,
            "min_size": min_size, "max_size": max_size, "status": status,
        }  # fmt: skip
        picture = None if similar is None else similar_to(tables, bucket, similar, distance)
        search = parse_search(bucket=bucket, similar=picture, **conditions)
        return _page(tables, find(tables, search, sort=sort, limit=limit, after=after, columns=columns))

    def list(
        self,
        place: str | None = None,
        *,
        prefix: str | None = None,
        min_size: int | None = None,
        max_size: int | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        storage_class: str | None = None,
        tag: Texts = (),
        content_type: str | None = None,
        deleted: Deleted = "no",
        versions: bool = False,
        markers: bool = False,
        sort: ListSort = "key",
        limit: int = 100,
        after: str | None = None,
    ) -> Page:
        """Lists objects.

        Args:
            place: only this bucket or folder.
            prefix: only keys that begin with it.
            min_size: bytes.
            max_size: bytes.
            since: last modified at this time or later.
            until: last modified before this time.
            storage_class: of the object store.
            tag: "KEY" or "KEY=VALUE" of the object store.
            content_type: "image/jpeg", "image/*".
            deleted: tombstones: "no", "too" or "only".
            versions: old versions too.
            markers: delete markers too.
            sort: "key", "size" (largest first) or "modified" (newest first).
            limit: at most so many rows.
            after: `after` of the page before.

        Raises:
            NotFoundError: the place is not known, or no object was ever recorded.
        """
        choice = ObjectFilter(
            bucket=None if place is None else bucket_of(place),
            prefix=prefix,
            min_size=min_size,
            max_size=max_size,
            since=since,
            until=until,
            storage_class=storage_class,
            tags=tuple(_as_list(tag)),
            content_type=content_type,
            deleted=deleted,
            versions=versions,
            markers=markers,
        )
        tables = self._tables()
        return _page(tables, objects.list_objects(tables, choice, sort=sort, limit=limit, after=after))

    def get(self, place: str, key: str, *, version_id: str | None = None) -> dict[str, Any]:
        """Returns all that is known of an object, with its versions.

        Raises:
            NotFoundError: the object is not known; the hint names the nearest key.
        """
        require_text(key, "key")
        tables = self._tables()
        found = objects.show_object(tables, bucket_of(place), key, version_id, suggest=True)
        return found if tables.lag is None else {**found, "lag": tables.lag.to_dict()}

    def history(
        self,
        place: str,
        key: str,
        *,
        version_id: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int = 100,
    ) -> Page:
        """Returns the last changes of an object, oldest first, as the journal has them.

        Raises:
            NotFoundError: the object is not known.
        """
        require_text(key, "key")
        tables = self._tables()
        found = objects.history(
            tables, bucket_of(place), key, version_id=version_id, since=since, until=until, limit=limit, suggest=True
        )
        return _page(tables, found)

    # -- edit --------------------------------------------------------------------------------------------------------

    def tag(
        self,
        place: str,
        keys: Texts,
        *,
        add: Texts = (),
        remove: Texts = (),
        replace: Texts | None = None,
        version_id: str | None = None,
    ) -> EditReport:
        """Changes the tags that people have given to objects. Returns when that is durable; the next read shows it.

        Args:
            place: bucket or folder.
            keys: one key, or several: all of them, or none.
            add: tags to add.
            remove: tags to remove.
            replace: these tags instead of all; `[]` removes all.
            version_id: of this version; by default the latest.

        Raises:
            NotFoundError: an object is not known; nothing was changed.
            UsageError: a tag cannot be one, or nothing would change.
        """
        only = None if replace is None else tuple(_as_list(replace))
        names = dict.fromkeys(_as_list(keys))
        added, removed = tuple(_as_list(add)), tuple(_as_list(remove))
        return self._edit(place, [Edit(key, version_id, added, removed, only) for key in names])

    def note(
        self,
        place: str,
        key: str,
        text: str | EllipsisType | None = STAYS,
        *,
        rating: int | EllipsisType | None = STAYS,
        version_id: str | None = None,
    ) -> EditReport:
        """Writes a note about an object, or rates it. Returns when that is durable; the next read shows it.

        Args:
            place: bucket or folder.
            key: the key.
            text: the note, instead of the one before; None removes it; left out, it stays.
            rating: 1 to 5; None removes it; left out, it stays.
            version_id: of this version; by default the latest.

        Raises:
            NotFoundError: the object is not known; nothing was changed.
        """
        return self._edit(place, [Edit(key, version_id, note=text, rating=rating)])

    def _edit(self, place: str, edits: builtins.list[Edit]) -> EditReport:
        connection = self._connection
        bucket = bucket_of(place)
        for edit in edits:
            edit.check()
        with connection.log() as access:
            tables = self._tables()
            told = make_entries(tables, bucket, edits, suggest=True)
            topic = ensure_events_topic(access, connection.settings).name
            ack, _ = publish(access, topic, bucket, told, connection.settings.model.log.max_message_size)
        return EditReport(bucket, len(edits), len(told), ack.offset, tables.lag)

    def _tables(self) -> ContentTables:
        connection = self._connection
        connection.require_open()
        with self._lock:
            if self._tail is None:
                self._tail = ContentTail(connection.settings, connection.log_if_any, live=True)
        return ContentTables.of(connection.store.store(), connection.settings, self._tail)


def _page(tables: ContentTables, found: ContentPage) -> Page:
    return Page(found.rows, found.after, tables.lag)


def _as_list(values: Texts) -> builtins.list[str]:
    return [values] if isinstance(values, str) else builtins.list(values)
