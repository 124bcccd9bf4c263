"""Logs to stderr: text for people, JSON lines for collectors. Library code only asks for a logger (`get_logger`)."""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Any

import structlog

from frazil.settings.masking import mask_urls


def get_logger(name: str) -> Any:
    """Returns a logger for a module of Frazil, which follows the program's configuration of structlog.

    A program that does not configure structlog gets the entries by `logging`: structlog's own default prints every
    entry on standard output, among the program's data.

    Tracebacks become text first: the default formatter of structlog, and some others, print the local variables of each
    frame, and tokens and bodies are among them. So a program that configures nothing logs no secrets either.
    """
    send = partial(_send_to_logging, name)
    processors: list[structlog.typing.Processor] = [structlog.processors.format_exc_info, _mask, send, _as_configured]
    return structlog.wrap_logger(None, processors=processors, logger_factory_args=(name,))


def configure_logs(level: str, output: str) -> None:
    """Sets up logging for this process; called once, by the program that runs, never by library code."""
    number = logging.getLevelNamesMapping()[level.upper()]
    # PyIceberg, boto3 and SQLAlchemy log through the standard library; their chatter is for -v only.
    logging.basicConfig(
        level=max(number, logging.WARNING) if number > logging.DEBUG else logging.INFO, stream=sys.stderr, force=True
    )
    render = (
        structlog.processors.JSONRenderer()
        if output == "json"
        # Not the default formatter: it prints the local variables of each frame, and tokens and bodies are among them.
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(number),
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,  # before the next, so that a traceback is masked too
            _mask,
            render,
        ],
        logger_factory=structlog.PrintLoggerFactory(_Stderr()),  # type: ignore[arg-type]  # it writes and flushes
        cache_logger_on_first_use=False,
    )


class _Stderr:
    """Standard error as it is when something is written: whoever replaces it, and closes the old one, is followed."""

    def write(self, text: str) -> int:
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def _mask(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return {key: mask_urls(value) if isinstance(value, str) else value for key, value in event.items()}


def _send_to_logging(name: str, _logger: object, method: str, event: structlog.typing.EventDict) -> Any:
    """Passes an entry to `logging`, unless the program has configured structlog."""
    if structlog.is_configured():
        return event
    level = logging.ERROR if method == "exception" else logging.getLevelNamesMapping().get(method.upper(), logging.INFO)
    told = logging.getLogger(name)
    if told.isEnabledFor(level):
        told.log(level, "%s", _render_text(event))
    raise structlog.DropEvent


def _render_text(event: structlog.typing.EventDict) -> str:
    """Returns an entry as one line, with a traceback below it if there is one."""
    values = {key: value for key, value in event.items() if key not in ("event", "exception")}
    line = " ".join([str(event.get("event", "")), *(f"{key}={value!r}" for key, value in values.items())])
    return f"{line}\n{event['exception']}" if "exception" in event else line


def _as_configured(logger: Any, method: str, event: Any) -> Any:
    """Runs the processors that the program has configured, or those that structlog has without."""
    for process in structlog.get_config()["processors"]:
        event = process(logger, method, event)
    return event
