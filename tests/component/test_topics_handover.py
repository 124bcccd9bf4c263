"""A pipeline that has opened the log hands it over to a server, and takes it back where that never comes."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from frazil.cli.run import run_command
from frazil.errors import LockedError, UsageError
from frazil.log import Log
from frazil.log.batch import Batch
from frazil.log.owner import LOCK
from frazil.settings import Settings, load_settings
from frazil.topics import handover
from frazil.topics.connection import flight_address, log_folder, open_log
from frazil.topics.handover import REQUEST, connect_again, ending_for_server, take_log


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(flags={"home": str(tmp_path), "log.min_free": "0"}, environ={})


def test_a_log_is_handed_over_with_all_that_is_in_it(settings):
    with ThreadPoolExecutor(1) as pool:
        with open_log(settings) as ours:
            ours.create_topic("orders")
            ours.append("orders", Batch.of_messages([b"a"]))
            with ending_for_server(ours, threading.Event()) as ending:
                server = pool.submit(take_log, settings)
                assert ending.wait(30)
                assert not server.done()
        with server.result(30) as theirs:
            assert theirs.info("orders").end == 1
            assert not (log_folder(settings) / REQUEST).exists()


def test_a_log_whose_process_does_not_yield_is_refused_at_once(settings):
    with open_log(settings), pytest.raises(LockedError):
        take_log(settings)
    assert not (log_folder(settings) / REQUEST).exists()


def test_a_pipeline_that_is_stopped_ends_without_a_request(settings):
    stop = threading.Event()
    with open_log(settings) as ours, ending_for_server(ours, stop) as ending:
        stop.set()
        assert ending.wait(30)


@pytest.mark.parametrize("request_is_left", [True, False])
def test_the_log_is_taken_back_where_the_server_died_before_it_came(settings, monkeypatch, request_is_left):
    monkeypatch.setattr(handover, "_TO_OPEN_S", 0.1)
    request = log_folder(settings) / REQUEST
    with open_log(settings):
        pass
    if request_is_left:
        request.touch()
    access = connect_again(settings, threading.Event(), note=lambda _: None)
    assert isinstance(access, Log)
    with access:
        assert not request.exists()


def test_a_pipeline_that_is_told_to_stop_meanwhile_waits_for_no_server(settings):
    stop = threading.Event()
    stop.set()
    assert connect_again(settings, stop, note=lambda _: None) is None


def test_a_server_that_comes_while_a_pipeline_starts_spark_waits_for_the_log(tmp_path, settings, monkeypatch):
    request = log_folder(settings) / REQUEST
    servers: list[Future[Log]] = []

    @contextmanager
    def starting(_settings: Settings) -> Iterator[None]:
        servers.append(pool.submit(take_log, settings))
        while not request.exists() and not servers[0].done():
            pass
        raise UsageError("Spark does not start", hint="this is a test")
        yield

    monkeypatch.setattr("frazil.spark.spark_session", starting)
    with ThreadPoolExecutor(1) as pool:
        flags = ["--set", f"home={tmp_path}", "--set", "log.min_free=0"]
        assert run_command("pipeline", "pipeline", flags) == UsageError.exit_code
        servers[0].result(30).close()


def test_a_pipeline_waits_for_a_server_that_takes_long_to_open_the_log(settings, monkeypatch):
    monkeypatch.setattr(handover, "_TO_OPEN_S", 0.0)
    noted: list[str] = []
    waits = threading.Event()

    def note(text: str) -> None:
        noted.append(text)
        waits.set()

    with ThreadPoolExecutor(1) as pool, open_log(settings) as theirs:
        lock = log_folder(settings) / LOCK
        lock.write_text(json.dumps(json.loads(lock.read_text()) | {"pid": 1}))  # of another process
        pipeline = pool.submit(connect_again, settings, threading.Event(), note=note)
        while not waits.wait(0.01):
            assert not pipeline.done(), pipeline.result()
        with flight_address(theirs), pipeline.result(30) as access:
            assert access is not None and access.topics() == []
    assert len(noted) == 1 and "process 1 " in noted[0]
