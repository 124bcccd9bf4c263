"""`/healthz`, `/readyz` and `/metrics`: for those who watch over the server."""

from __future__ import annotations

from contextlib import suppress

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from frazil.api.messages import Shared
from frazil.api.models import Health, Readiness
from frazil.api.service import Service
from frazil.errors import FrazilError, UnavailableError
from frazil.log.protocol import TopicInfo
from frazil.observe.metrics import REGISTRY

router = APIRouter(tags=["health"])


@router.get("/healthz", responses={200: {"model": Health}})
async def healthz() -> JSONResponse:
    """The process lives."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", responses={200: {"model": Readiness}})
async def readyz(service: Shared) -> JSONResponse:
    """The server takes messages for every topic; 503 where it does not. An absent document store is only named."""
    service.must_run()
    topics = await service.off_loop(_topics, service)
    if broken := next((topic for topic in topics if topic.problem), None):
        raise UnavailableError(
            f"topic '{broken.name}' cannot be used", cause=broken.problem, hint=f"frazil topic verify {broken.name}"
        )
    if shut := next((topic for topic in topics if topic.refuses), None):
        raise UnavailableError(
            f"topic '{shut.name}' takes no messages",
            cause=shut.refuses,
            hint="see to that; after a disk has failed, restart frazil serve",
        )
    documents = service.documents.state
    return JSONResponse(
        {"status": "ready", "topics": len(topics), **({} if documents is None else {"documents": documents})}
    )


def _topics(service: Service) -> list[TopicInfo]:
    """The topics. Tables that have not been asked yet are asked now, as the first message of their topic would do it.

    Raises:
        UnavailableError: another request is asking, and has no answer yet.
    """
    names = [topic.name for topic in service.log.topics() if not topic.problem]
    waiting = [name for name in names if not service.log.is_prepared(name)]
    if waiting:
        # A catalog that does not answer keeps one probe waiting, once, and not all the threads that answer others.
        if not service.probing.acquire(blocking=False):
            raise UnavailableError(f"the tables of topic '{waiting[0]}' are being looked up", hint="ask again")
        try:
            with suppress(FrazilError):
                for name in waiting:
                    service.log.prepare(name)
        finally:
            service.probing.release()
    return service.log.topics()


@router.get("/metrics", response_class=Response)
async def metrics(service: Shared) -> Response:
    """What the server counts, in the form of Prometheus."""
    return Response(await service.off_loop(generate_latest, REGISTRY), media_type=CONTENT_TYPE_LATEST)
