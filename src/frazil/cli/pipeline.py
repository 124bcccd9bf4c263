"""`frazil pipeline`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, command, new_app

if TYPE_CHECKING:
    from frazil.settings import SettingsModel
    from frazil.topics.sinks.lane import TopicStatus

app = new_app("Take topics from the log into their tables, on Spark.")

_COLUMNS = ("topic", "sink", "state", "offset", "rows", "dead", "commits", "seconds", "reason")


@command(app, example="frazil pipeline --drain --topic orders")
def pipeline(
    run: Run,
    drain: Annotated[
        bool, typer.Option("--drain", "--once", help="take what is in the log now, print what was done, and end")
    ] = False,
    topic: Annotated[list[str] | None, typer.Option(help="only this topic; may be repeated")] = None,
    catalog: CatalogOption = None,
) -> None:
    """Run the sinks. Without --drain it runs until Ctrl-C or SIGTERM, then takes what is left, and ends."""
    from frazil.spark import spark_session
    from frazil.topics import connect, flight_address
    from frazil.topics.sinks.jobs import for_pipeline
    from frazil.topics.sinks.pipeline import Pipeline

    settings = for_pipeline(run.settings(*CATALOG_SECTIONS, "log", "topics", "pipeline", "spark"))
    note = run.printer.note
    with (
        connect(settings, note=note, catalog=catalog) as access,
        flight_address(access, note=note) as address,
        answering_prometheus(settings.model, note),
    ):
        for name in topic or ():
            access.info(name)
        with (
            spark_session(settings) as spark,
            Pipeline(settings, access, spark, address, topics=topic or (), catalog=catalog) as running,
        ):
            if drain:
                _print(run, running.drain())
                return
            with _stopping() as stop:
                note(f"the pipeline runs on the {access.where}; Ctrl-C or SIGTERM ends it")
                running.run(stop)
            _print(run, running.status())


def _print(run: Run, statuses: list[TopicStatus]) -> None:
    rows = [[getattr(status, column) for column in _COLUMNS] for status in statuses]
    run.printer.rows(_COLUMNS, rows, none="no topic has a table: frazil topic create NAME")


@contextmanager
def answering_prometheus(settings: SettingsModel, note: Callable[[str], None]) -> Iterator[None]:
    """Answers at `pipeline.metrics_port` for the time of the block, where that is set; port 0 takes a free one.

    Raises:
        ConflictError: another program listens there.
    """
    port, host = settings.pipeline.metrics_port, settings.serve.host
    if port is None:
        yield
        return
    from prometheus_client import start_http_server

    from frazil.api.sockets import check_free, shown_host
    from frazil.observe.metrics import REGISTRY

    check_free(host, port, "pipeline.metrics_port")
    server, thread = start_http_server(port, host, REGISTRY)
    note(f"metrics at http://{shown_host(host)}:{server.server_port}/metrics")
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def _stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C and SIGTERM set. A second one of them ends the process as if nobody listened."""
    stop = threading.Event()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(_number: int, _frame: object) -> None:
        stop.set()
        for number, handler in before.items():
            signal.signal(number, handler)

    for number in before:
        signal.signal(number, ask)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
