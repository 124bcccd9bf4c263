"""`/topics`: list, show, create, configure, delete; producers and subscriptions."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from frazil.api.messages import Shared
from frazil.api.models import (
    NewProducer,
    NewTopic,
    Position,
    Producer,
    Subscription,
    Topic,
    TopicChanges,
    TopicList,
)
from frazil.api.request_body import JSON, json_of
from frazil.errors import ConflictError, UsageError
from frazil.log.protocol import TopicInfo

router = APIRouter(tags=["topics"])

#: Schemas that no route declares by itself.
EXTRA_MODELS = (NewTopic, TopicChanges, NewProducer, Position)


def _body(model: type[BaseModel], *, required: bool = True) -> dict[str, Any]:
    schema = {"$ref": f"#/components/schemas/{model.__name__}"}
    return {"requestBody": {"required": required, "content": {JSON: {"schema": schema}}}}


def _shown(info: TopicInfo) -> dict[str, Any]:
    described = info.to_dict()
    del described["schema"]  # for Python clients, which come by Flight
    return described


@router.get("/topics", responses={200: {"model": TopicList}})
async def list_topics(service: Shared) -> JSONResponse:
    """Lists the topics."""
    found = await service.off_loop(service.log.topics)
    return JSONResponse({"topics": [_shown(info) for info in found]})


@router.get("/topics/{topic}", responses={200: {"model": Topic}})
async def show_topic(topic: str, service: Shared) -> JSONResponse:
    """Shows one topic."""
    return JSONResponse(_shown(await service.off_loop(service.log.info, topic)))


@router.post(
    "/topics/{topic}",
    status_code=201,
    responses={201: {"model": Topic}},
    openapi_extra=_body(NewTopic, required=False),
)
async def create_topic(request: Request, topic: str, service: Shared) -> JSONResponse:
    """Creates a topic. Publishing does not: a misspelt name would make one."""
    service.must_run()
    wanted = await json_of(request, NewTopic)
    storage = wanted.storage or service.settings.topics.storage
    return JSONResponse(_shown(await service.off_loop(service.log.create_topic, topic, storage=storage)), 201)


@router.patch("/topics/{topic}", responses={200: {"model": Topic}}, openapi_extra=_body(TopicChanges))
async def configure_topic(request: Request, topic: str, service: Shared) -> JSONResponse:
    """Changes how a topic is kept. Fields that are not sent stay as they are."""
    service.must_run()
    changes = (await json_of(request, TopicChanges)).model_dump(exclude_unset=True)
    return JSONResponse(_shown(await service.off_loop(service.log.configure, topic, changes)))


@router.delete("/topics/{topic}", status_code=204)
async def delete_topic(
    topic: str,
    service: Shared,
    yes: Annotated[bool, Query(description="without it nothing is deleted, and the answer says what would be")] = False,
    force: Annotated[bool, Query(description="also messages that the topic's table does not have yet")] = False,
) -> None:
    """Deletes a topic's log with all its messages. Its table stays."""
    service.must_run()
    info = await service.off_loop(service.log.info, topic)
    missing = max((info.end - max(p or 0, info.start) for p in info.sinks.values()), default=0)
    if yes and missing > 0 and not force:
        raise ConflictError(
            f"nothing was deleted: {missing} messages of topic '{topic}' are not in its table yet",
            hint=f"frazil pipeline --drain --topic {topic}, or DELETE /topics/{topic}?yes=true&force=true",
        )
    if not yes:
        raise UsageError(
            f"nothing was deleted: topic '{topic}' has offsets {info.start} to {info.end}, {info.size:,} bytes",
            hint=f"DELETE /topics/{topic}?yes=true",
        )
    await service.off_loop(service.log.delete_topic, topic)


@router.post(
    "/topics/{topic}/producers",
    status_code=201,
    responses={201: {"model": Producer}},
    openapi_extra=_body(NewProducer, required=False),
)
async def register_producer(request: Request, topic: str, service: Shared) -> JSONResponse:
    """Gives a producer an identity, by which repeated batches are known."""
    service.must_run()
    wanted = await json_of(request, NewProducer)
    given = await service.off_loop(service.log.register, topic, wanted.name)
    return JSONResponse({"producer_id": given.producer_id, "producer_epoch": given.producer_epoch}, 201)


@router.put(
    "/topics/{topic}/subscriptions/{name}",
    responses={200: {"model": Subscription}},
    openapi_extra=_body(Position),
)
async def store_position(request: Request, topic: str, name: str, service: Shared) -> JSONResponse:
    """Stores the position of a subscription, durably. `GET /topics/{topic}` shows it."""
    service.must_run()
    wanted = await json_of(request, Position)
    await service.off_loop(service.log.commit, topic, name, wanted.offset)
    return JSONResponse({"topic": topic, "subscription": name, "offset": wanted.offset})
