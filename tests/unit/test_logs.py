"""What a log shows of an error: where it happened, and no value of any variable."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
