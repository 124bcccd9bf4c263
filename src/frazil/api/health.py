"""`/healthz`, `/readyz` and `/metrics`: for those who watch over the server."""

from __future__ import annotations

from fastapi import APIRouter
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from frazil.api.messages import Shared
from frazil.api.models import Health, Readiness
from frazil.errors import UnavailableError
from frazil.observe.metrics import REGISTRY

router = APIRouter(tags=["health"])


@router.get("/healthz", responses={200: {"model": Health}})
async def healthz() -> JSONResponse:
    """The process lives."""
    return JSONResponse({"status": "ok"})


@router.get("/readyz", responses={200: {"model": Readiness}})
async def readyz(service: Shared) -> JSONResponse:
    """The server takes messages for every topic; 503 where it does not."""
    service.must_run()
    topics = await service.off_loop(service.log.topics)
    if broken := next((topic for topic in topics if topic.problem), None):
        raise UnavailableError(
            f"topic '{broken.name}' cannot be used", cause=broken.problem, hint=f"frazil topic verify {broken.name}"
        )
    return JSONResponse({"status": "ready", "topics": len(topics)})


@router.get("/metrics", response_class=Response)
async def metrics(service: Shared) -> Response:
    """What the server counts, in the form of Prometheus."""
    return Response(await service.off_loop(generate_latest, REGISTRY), media_type=CONTENT_TYPE_LATEST)
