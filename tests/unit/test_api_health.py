"""`/readyz`: what it says is what a producer would be told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frazil.api.health import readyz
from frazil.api.service import Service
from frazil.errors import FrazilError, UnavailableError
from frazil.log import Log
from frazil.log.files import LogShutError
from frazil.settings.model import SettingsModel
from tests.faulty_disk import FaultyDisk
from tests.log_kit import new_log, open_log, settings


@contextmanager
def serving(log: Log) -> Iterator[Service]:
    folder = log.directory
    service = Service(log, SettingsModel(home=folder, cache=folder))
    try:
        yield service
    finally:
        service.close()
        log.close()


def ready(service: Service) -> object:
    return json.loads(bytes(asyncio.run(readyz(service)).body))


def test_a_server_whose_disk_has_failed_is_not_ready_and_says_which_topic(tmp_path: Path):
    disk = FaultyDisk(tmp_path)
    with serving(new_log(tmp_path / "log", disk=disk)) as service:
        service.log.publish("orders", b"kept")
        assert ready(service) == {"status": "ready", "topics": 1}
        disk.fail("sync", match=".seg")
        with pytest.raises(LogShutError):
            service.log.publish("orders", b"x")
        with pytest.raises(UnavailableError, match="topic 'orders' takes no messages") as told:
            ready(service)
        assert "fdatasync" in str(told.value.cause) and "restart frazil serve" in str(told.value.hint)
        info = service.log.info("orders")
        assert info.problem is None and info.end == 1, "what is safe can still be read"
    with serving(open_log(tmp_path / "log", disk=disk)) as service:
        assert ready(service) == {"status": "ready", "topics": 1}


def test_a_server_whose_catalog_is_back_is_ready_again_although_nobody_has_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("frazil.log.topic._PREPARE_PAUSE_S", 0.0)
    away = True

    def floor(*_: str) -> int | None:
        if away:
            raise UnavailableError("the catalog does not answer")
        return None

    with serving(Log.open(tmp_path / "log", settings(), floor=floor)) as service:
        service.log.create_topic("orders", storage="iceberg")
        with pytest.raises(UnavailableError):
            service.log.publish("orders", b"x")
        with pytest.raises(FrazilError, match="takes no messages") as told:
            ready(service)
        assert told.value.cause == "the catalog does not answer"
        away = False
        assert ready(service) == {"status": "ready", "topics": 1}
