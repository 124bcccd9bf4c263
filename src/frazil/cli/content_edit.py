"""`frazil content tag|note|erase`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.content_look import SECTIONS, PlaceArgument, opened
from frazil.cli.content_read import Key, Version
from frazil.cli.invocation import CatalogOption, Run
from frazil.cli.printing import visible
from frazil.errors import UsageError

if TYPE_CHECKING:
    from types import EllipsisType

    from frazil.content.annotations.edits import Edit
    from frazil.settings import Settings
    from frazil.topics.reading.tail import Lag

Keys = Annotated[list[str], typer.Argument(metavar="KEY…", help="object keys, or paths in the folder")]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="return when the change is in the table, not only in the log")
]


def tag(
    run: Run,
    place: PlaceArgument,
    keys: Keys,
    add: Annotated[list[str] | None, typer.Option("--add", metavar="TAG", help="tag to add; may be repeated")] = None,
    remove: Annotated[
        list[str] | None, typer.Option("--remove", metavar="TAG", help="tag to remove; may be repeated")
    ] = None,
    replace: Annotated[
        list[str] | None, typer.Option("--replace", metavar="TAG", help="replace all tags by this one; may be repeated")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="remove all tags")] = False,
    version_id: Version = None,
    wait: Wait = False,
    catalog: CatalogOption = None,
) -> None:
    """Add your own tags to objects, or remove them. Extraction and new content do not change them.

    All keys are looked up first: if one does not exist, nothing is changed. Tags of the object store are separate.
    """
    from frazil.content.annotations.edits import Edit

    if clear and (add or remove or replace):
        raise UsageError("--clear removes all tags and excludes other options", hint="--clear alone, or --replace TAG")
    if not (clear or add or remove or replace):
        raise UsageError("no change of tags was given", hint="--add TAG, --remove TAG, --replace TAG or --clear")
    only = () if clear else tuple(replace) if replace else None
    edits = [Edit(key, version_id, tuple(add or ()), tuple(remove or ()), only) for key in dict.fromkeys(keys)]
    _tell(run, place, edits, wait=wait, catalog=catalog)


def note(
    run: Run,
    place: PlaceArgument,
    key: Key,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="the text of the note; replaces the previous one")
    ] = None,
    clear: Annotated[bool, typer.Option("--clear", help="remove the note")] = False,
    rating: Annotated[int | None, typer.Option(min=1, max=5, metavar="1-5", help="rating of the object")] = None,
    no_rating: Annotated[bool, typer.Option("--no-rating", help="remove the rating")] = False,
    version_id: Version = None,
    wait: Wait = False,
    catalog: CatalogOption = None,
) -> None:
    """Write a note about an object, or rate it. Extraction and new content do not change either."""
    from frazil.content.annotations.edits import STAYS, Edit

    if clear and text is not None:
        raise UsageError("--clear removes the note and excludes a text", hint="a text, or --clear")
    if no_rating and rating is not None:
        raise UsageError("--no-rating removes the rating and excludes --rating", hint="--rating N, or --no-rating")
    if text is None and not clear and rating is None and not no_rating:
        raise UsageError("no text and no rating were given", hint="a text, --clear, --rating N or --no-rating")
    if text == "":
        raise UsageError("the note is empty", hint="--clear removes the note")
    said: str | EllipsisType | None = None if clear else STAYS if text is None else text
    rated: int | EllipsisType | None = None if no_rating else STAYS if rating is None else rating
    _tell(run, place, [Edit(key, version_id, note=said, rating=rated)], wait=wait, catalog=catalog)


def erase(
    run: Run,
    place: PlaceArgument,
    keys: Keys,
    yes: Annotated[bool, typer.Option("--yes", help="confirm")] = False,
    version_id: Version = None,
    wait: Wait = True,
    catalog: CatalogOption = None,
) -> None:
    """Erase extracted metadata, thumbnails, and annotations by users, of all versions or of one.

    The object itself is kept, and so is the metadata of its store. The object is not extracted again until its content
    changes. Without --yes, the command only shows what it would erase.
    """
    from frazil.content.annotations.edits import Edit

    edits = [Edit(key, version_id, erase=True) for key in dict.fromkeys(keys)]
    if not yes:
        bucket, told, _, _ = _find_rows(run, place, edits, catalog)
        _report(run, {"bucket": bucket, "objects": len(edits), "versions": len(told), "done": False})
        raise UsageError("nothing was erased: this command requires --yes", hint="run the same command with --yes")
    _tell(run, place, edits, wait=wait, catalog=catalog)
    for where in _KEPT_ELSEWHERE:
        run.printer.note(f"note: {where}")


#: What still has copies when the rows have none.
_KEPT_ELSEWHERE = (
    "earlier snapshots of the table still contain it until they expire: frazil table expire",
    "the log contains the results of extraction until the topic's retention removes them: frazil topic retain",
)


def _tell(run: Run, place: str, edits: Sequence[Edit], *, wait: bool, catalog: str | None) -> None:
    from frazil.content.annotations.edit_client import send_edits
    from frazil.content.buckets import bucket_of

    if not wait and catalog is None and not edits[0].erase:
        for edit in edits:
            edit.check()
        bucket = bucket_of(place)
        answer = send_edits(run.settings(*SECTIONS), bucket, edits)
        if answer is not None:
            fields = ("versions", "topic", "offset", "visible")
            _report(run, {"bucket": bucket, "objects": len(edits), **{name: answer[name] for name in fields}})
            _note_lag(run, is_visible=answer["visible"])
            return
    _publish(run, place, edits, wait=wait, catalog=catalog)


def _publish(run: Run, place: str, edits: Sequence[Edit], *, wait: bool, catalog: str | None) -> None:
    """Publishes edits from this process: without a server, and where the command waits for the table."""
    from frazil.content.annotations.publish_edits import publish
    from frazil.content.topic import ensure_events_topic

    bucket, told, settings, lag = _find_rows(run, place, edits, catalog)
    with opened(run, settings, catalog) as work:
        if wait:
            work.require_writable()
        topic = ensure_events_topic(work.access, settings).name
        if edits[0].erase:
            # First: they are a cache, and what fails afterwards has taken nothing that could not be made again.
            _forget_thumbnails(settings, bucket, told, catalog)
        ack, end = publish(work.access, topic, bucket, told, settings.model.log.max_message_size)
        summary: dict[str, Any] = {
            "bucket": bucket,
            "objects": len(edits),
            "versions": len(told),
            "topic": topic,
            "offset": ack.offset,
            "visible": wait or lag is None,
        }
        if wait:
            work.wait_until_visible(end)
        if edits[0].erase:
            # A look inside that was under way may have made them again.
            _forget_thumbnails(settings, bucket, told, catalog)
    _report(run, summary | ({"done": True} if edits[0].erase else {}))
    _note_lag(run, is_visible=wait or lag is None)


def _note_lag(run: Run, *, is_visible: bool) -> None:
    if not is_visible:
        run.printer.note(
            "note: the change is in the log; reads show it once the pipeline has merged it: frazil pipeline"
        )


def _forget_thumbnails(settings: Settings, bucket: str, told: Sequence[dict[str, Any]], catalog: str | None) -> None:
    from frazil.content.annotations.publish_edits import forget_thumbnails
    from frazil.content.tables import ContentTables
    from frazil.tables.store import LazyStore

    with LazyStore(settings, catalog) as store:
        forget_thumbnails(settings, ContentTables.of(store.store(), settings), bucket, told)


def _find_rows(
    run: Run, place: str, edits: Sequence[Edit], catalog: str | None
) -> tuple[str, list[dict[str, Any]], Settings, Lag | None]:
    """Returns the bucket, the entries of the message, the settings, and what reads lack. Changes nothing."""
    from frazil.content.annotations.publish_edits import make_entries
    from frazil.content.buckets import bucket_of
    from frazil.content.tables import ContentTables
    from frazil.content.tail import ContentTail
    from frazil.tables.store import LazyStore
    from frazil.topics.sinks.jobs import for_pipeline

    bucket = bucket_of(place)
    for edit in edits:
        edit.check()
    settings = for_pipeline(run.settings(*SECTIONS))
    with LazyStore(settings, catalog) as store:
        tables = ContentTables.of(store.store(), settings, ContentTail.of_command(settings))
        told = make_entries(tables, bucket, edits, suggest=True)
    return bucket, told, settings, tables.lag


def _report(run: Run, summary: dict[str, Any]) -> None:
    if run.printer.json_output:
        run.printer.json(summary)
    else:
        run.printer.record(summary | {"bucket": visible(summary["bucket"])})
