"""`frazil pipeline`."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, Run, command, new_app
from frazil.cli.stopping import Stopping, leave_soon
from frazil.errors import FrazilError, InterruptedByUser

if TYPE_CHECKING:
    from frazil.log.protocol import LogAccess
    from frazil.settings import Settings, SettingsModel
    from frazil.topics.sinks.pipeline import Pipeline
    from frazil.topics.sinks.sink_runner import TopicStatus

app = new_app("Write topics from the log to their tables, on Spark.")

_COLUMNS = ("topic", "sink", "state", "offset", "rows", "dead", "commits", "seconds", "reason")
#: Seconds from the end of the pipeline's own time to the end of the process, whatever hangs.
_TO_END_S = 15.0


@command(app, example="frazil pipeline --drain --topic orders")
def pipeline(
    run: Run,
    drain: Annotated[
        bool,
        typer.Option("--drain", "--once", help="write the messages that are in the log now, print a summary, and exit"),
    ] = False,
    topic: Annotated[list[str] | None, typer.Option(help="only this topic; may be repeated")] = None,
) -> None:
    """Run the sinks. Without --drain, runs until Ctrl-C or SIGTERM, then writes what is left and exits.

    It exits within pipeline.stop_s plus 15 seconds, with exit code 3 if messages are left in the log. A second signal
    ends it immediately.
    """
    from frazil.spark import spark_session
    from frazil.topics.connection import connect
    from frazil.topics.handover import connect_again, offer_handover
    from frazil.topics.sinks.jobs import for_pipeline
    from frazil.upkeep.policy import check_policies

    settings = for_pipeline(run.settings(*CATALOG_SECTIONS, "log", "topics", "pipeline", "content", "upkeep", "spark"))
    check_policies(settings)
    note = run.printer.note
    bound_s = settings.model.pipeline.stop_s + _TO_END_S
    work = _Work(run, bound_s)
    try:
        with (
            Stopping(bound_s, work.late, kill=_kill_jvm, json_output=run.printer.json_output) as stopping,
            answering_prometheus(settings.model, note),
            ExitStack() as sessions,
            ExitStack() as logs,
        ):
            access: LogAccess | None = logs.enter_context(connect(settings, note=note))
            assert access is not None
            if not drain:
                offer_handover(access)  # before Spark, which takes its time: a server that comes then waits
            for name in topic or ():
                access.info(name)
            spark = sessions.enter_context(spark_session(settings))
            while access is not None and not _run_on(work, settings, access, spark, topic or (), stopping, drain=drain):
                note("a broker has requested the log: the pipeline continues as its client")
                logs.close()  # the server waits for it
                access = connect_again(settings, stopping.asked, note=note)
                if access is not None:
                    logs.enter_context(access)
    finally:
        if work.hangs:
            leave_soon(_code(sys.exception()))


def _run_on(
    work: _Work,
    settings: Settings,
    access: LogAccess,
    spark: Any,
    topics: Sequence[str],
    stopping: Stopping,
    *,
    drain: bool,
) -> bool:
    """Runs a pipeline on a log until it is told to stop. False: a server has asked for the log."""
    from frazil.topics import flight_address
    from frazil.topics.handover import ending_for_server
    from frazil.topics.sinks.pipeline import Pipeline
    from frazil.upkeep.runs.pipeline_upkeep import make_pipeline_upkeep

    with (
        flight_address(access, note=work.note) as address,
        make_pipeline_upkeep(settings, spark) as caretaker,
        Pipeline(settings, access, spark, address, topics=topics, upkeep=caretaker) as running,
    ):
        stopping.be_gentle()
        work.begin(running, access.where)
        if drain:
            work.drain(stopping.asked)
            return True
        with ending_for_server(access, stopping.asked) as ending:
            work.go(ending, stopping.asked)
        return stopping.asked.is_set()


class _Work:
    """What the command does with its pipeline, and says about it."""

    def __init__(self, run: Run, bound_s: float) -> None:
        self._run, self._bound_s = run, bound_s
        self._pipeline: Pipeline | None = None
        self._where = ""
        self._was_ready = False

    def begin(self, pipeline: Pipeline, where: str) -> None:
        self._pipeline, self._where = pipeline, where

    def note(self, text: str) -> None:
        self._run.printer.note(text)

    @property
    def hangs(self) -> bool:
        return self._pipeline is not None and self._pipeline.hangs

    def drain(self, stop: threading.Event) -> None:
        assert self._pipeline is not None
        try:
            self._pipeline.drain(stop=stop)
        except FrazilError:
            if self._pipeline.status():
                self._print()
            raise
        self._print()

    def go(self, ending: threading.Event, stop: threading.Event) -> None:
        """Runs until `ending`, and says what was done if that is for good, by `stop`."""
        assert self._pipeline is not None
        self.note(f"the pipeline runs on the {self._where}; press Ctrl-C or send SIGTERM to stop")
        left = self._pipeline.run(ending, ready=None if self._was_ready else self._ready)
        if not stop.is_set() and not self.hangs:
            return  # the log is handed over: what is left of it is taken from there
        if left is None or self._pipeline.status():
            self._print()
        if left is not None:
            raise left

    def _ready(self, statuses: list[TopicStatus]) -> None:
        """The first line on standard output: `frazil up` waits for it."""
        self._was_ready = True
        if self._run.printer.json_output:
            self._run.printer.json({"ready": True, "log": self._where, "topics": len(statuses)})
        else:
            failing = [status.topic for status in statuses if status.reason is not None]
            but = f"; waiting or stopped: {', '.join(failing)}" if failing else ""
            print(f"ready on the {self._where}, topics: {len(statuses)}{but}")
        print(end="", flush=True)

    def _print(self) -> None:
        assert self._pipeline is not None
        rows = [[getattr(status, column) for column in _COLUMNS] for status in self._pipeline.status()]
        self._run.printer.rows(_COLUMNS, rows, none="no topic has a table: frazil topic create NAME")

    def late(self) -> FrazilError:
        from frazil.topics.sinks.remaining import make_stop_error

        statuses = [] if self._pipeline is None else self._pipeline.status()
        return make_stop_error(statuses, FrazilError(f"the pipeline did not exit within {self._bound_s:g} s"))


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


def _kill_jvm() -> None:
    from frazil.spark.jvm import end_at_once

    end_at_once()


def _code(error: BaseException | None) -> int:
    """As `run_command` will say."""
    if error is None:
        return 0
    return error.exit_code if isinstance(error, FrazilError) else InterruptedByUser.exit_code
