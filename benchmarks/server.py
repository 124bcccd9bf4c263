"""`frazil serve` as a process of its own, for measurements over HTTP."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def http_server(frazil: Path, flags: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yields the HTTP address and the process id; ends the process by its id."""
    ports = [part for port in ("http_port", "flight_port") for part in ("--set", f"serve.{port}=0")]
    command = [frazil, "serve", *flags, *ports, "--output", "json"]
    server = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert server.stdout is not None
        yield json.loads(server.stdout.readline())["http"], server.pid
    finally:
        server.terminate()
        server.wait(60)
