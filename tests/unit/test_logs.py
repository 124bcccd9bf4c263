"""What a log shows of an error: where it happened, and no value of any variable."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import frazil

_SOURCE = Path(frazil.__file__).parent

_FAILS = """
import sys, structlog
from frazil.observe.logs import configure_logs

configure_logs("debug", sys.argv[1])

def request(token, body):
    raise RuntimeError("cannot reach postgresql://user:pass-word@db/x")

try:
    request("tok" + "en-1234", b"bo" + b"dy-1234")
except RuntimeError as error:
    structlog.get_logger().error("unexpected error", exc_info=error)
    structlog.get_logger().exception("once more")
"""


@pytest.mark.parametrize("output", ["text", "json"])
def test_a_traceback_in_the_log_shows_places_and_no_values(output):
    done = subprocess.run([sys.executable, "-c", _FAILS, output], capture_output=True, text=True, check=True)
    assert done.stderr.count("Traceback") == 2 and "RuntimeError: cannot reach" in done.stderr
    for secret in ("token-1234", "body-1234", "pass-word"):
        assert secret not in done.stderr
    if output == "json":
        assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["unexpected error", "once more"]


_LOGS = """
import sys, structlog
from frazil.observe.logs import get_logger

log = get_logger("frazil.log")
if sys.argv[1] == "partly":
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(20))
if sys.argv[1] == "structured":
    structlog.configure(processors=[structlog.processors.dict_tracebacks, structlog.processors.JSONRenderer()])

def request(token):
    raise RuntimeError("cannot reach postgresql://user:pass-word@db/x")

try:
    request("tok" + "en-1234")
except RuntimeError as error:
    log.error("unexpected error", exc_info=error)
    log.exception("once more")
log.debug("detail")
"""


@pytest.mark.parametrize("configured", ["not", "partly", "structured"])
def test_a_program_that_uses_the_library_logs_no_values_whatever_it_has_configured(configured):
    assert find_spec("rich")  # with it structlog's default formatter prints local variables
    done = subprocess.run([sys.executable, "-c", _LOGS, configured], capture_output=True, text=True, check=True)
    told = done.stdout + done.stderr
    assert told.count("Traceback") == 2 and "RuntimeError: cannot reach" in told and "once more" in told
    assert "token-1234" not in told and "pass-word" not in told
    assert ("detail" in told) == (configured == "structured")


def test_a_program_that_configures_nothing_gets_warnings_on_standard_error_alone():
    done = subprocess.run([sys.executable, "-c", _LOGS, "not"], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert done.stderr.startswith("unexpected error\nTraceback")


def test_every_module_gets_its_logger_from_the_one_function_that_is_safe():
    found = [path.name for path in _SOURCE.rglob("*.py") if "structlog.get_logger" in path.read_text()]
    assert found == []
