"""`POST /content/edits`: tags, notes and ratings of people; and what is to be forgotten."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import Field

from frazil.api.content import content_looks
from frazil.api.events import Authorization, Token, ensure_events, refusal
from frazil.api.failures import RequestError, publishes, telling_what_is_stored
from frazil.api.messages import Shared
from frazil.api.models import Answered, Sent
from frazil.api.request_body import JSON, content_type, declared_size, parsed, read_body
from frazil.api.service import Service
from frazil.content.annotations.edits import MAX_NOTE, MAX_TAG, MAX_TAGS, STAYS, Edit
from frazil.content.annotations.publish_edits import SOURCE, forget_thumbnails, make_entries, publish
from frazil.content.tables import ContentTables
from frazil.log.protocol import Level
from frazil.settings import Settings

router = APIRouter(prefix="/content", tags=["content"])

#: Objects of one request.
MAX_OBJECTS = 1000


class NewEdit(Sent):
    """Changes of one object. Omitted fields are not changed."""

    key: str = Field(description="its key")
    version_id: str | None = Field(None, description="which version; by default the latest, and for `erase` all")
    add: list[str] = Field(
        default_factory=list, description=f"tags to add; at most {MAX_TAGS}, each of at most {MAX_TAG} characters"
    )
    remove: list[str] = Field(default_factory=list, description="tags to remove")
    set: list[str] | None = Field(None, description="replaces all its tags; `[]`: none")
    note: str | None = Field(None, description=f"a text of at most {MAX_NOTE:,} bytes; `null` removes it")
    rating: int | None = Field(None, ge=1, le=5, description="1 to 5; `null` removes it")
    erase: bool = Field(False, description="erase extracted metadata and annotations")

    def edit(self) -> Edit:
        given = self.model_fields_set
        return Edit(
            self.key,
            self.version_id,
            tuple(self.add),
            tuple(self.remove),
            None if self.set is None else tuple(self.set),
            self.note if "note" in given else STAYS,
            self.rating if "rating" in given else STAYS,
            self.erase,
        )


class NewEdits(Sent):
    bucket: str = Field(min_length=1, description="bucket, or the URI of a folder (`file:///…`)")
    edits: Annotated[list[NewEdit], Field(min_length=1, max_length=MAX_OBJECTS)] = Field(
        description=f"applied together, all or none; at most {MAX_OBJECTS:,}"
    )


class EditsTaken(Answered):
    topic: str = Field(description="topic of the messages: the setting `content.topic`")
    offset: int = Field(description="of the first message")
    count: int = Field(description="messages")
    versions: int = Field(description="affected versions of objects")
    level: Level = Field(description="their durability: always `disk`")
    visible: bool = Field(description="whether the next read shows them; otherwise once the pipeline has merged them")


EXTRA_MODELS = (NewEdits,)
_BODY: dict[str, Any] = {
    "requestBody": {"required": True, "content": {JSON: {"schema": {"$ref": "#/components/schemas/NewEdits"}}}}
}


@router.post("/edits", status_code=202, responses={202: {"model": EditsTaken}}, openapi_extra=_BODY)
@publishes
async def take_edits(
    request: Request, service: Shared, token: Token = None, authorization: Authorization = None
) -> Response:
    """Takes what people say of objects, and answers when it is on disk. The table has it a little later."""
    if (refused := refusal(service, authorization, token, SOURCE)) is not None:
        return refused
    with telling_what_is_stored():
        return await _take(request, service)


async def _take(request: Request, service: Service) -> Response:
    service.must_run()
    limit = service.settings.log.max_message_size
    if content_type(request) != JSON:
        raise RequestError("the body's type is not understood", status=415, hint=f"Content-Type: {JSON}")
    size = declared_size(request)
    async with service.bodies.reserve(limit if size is None else size):
        wanted = parsed(NewEdits, await read_body(request, limit))
        edits = [edit.edit() for edit in wanted.edits]
        looks = content_looks(request)
        told, is_visible = await looks.find(service, lambda tables: _find(tables, wanted.bucket, edits))
        if any(edit.erase for edit in edits):
            # First: they are a cache, and what fails afterwards has taken nothing that could not be made again.
            settings = Settings(service.settings)
            await looks.find(service, lambda tables: forget_thumbnails(settings, tables, wanted.bucket, told))
        await ensure_events(service)
        topic = service.settings.content.topic
        ack = await service.publish_off_loop(lambda: publish(service.log, topic, wanted.bucket, told, limit)[0])
    taken = {"topic": topic, "offset": ack.offset, "count": ack.count, "versions": len(told), "level": ack.level}
    return JSONResponse({**taken, "visible": is_visible}, 202)


def _find(tables: ContentTables, bucket: str, edits: list[Edit]) -> tuple[list[dict[str, Any]], bool]:
    """Returns the entries of the message, and whether reads include the tail of the log."""
    found = make_entries(tables, bucket, edits)
    return found, tables.lag is None
