"""The floor under Flight: a server that does nothing but answer: `python -m benchmarks.echo_process PORT`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.load import Contender, Load, Scene, drive
from benchmarks.payloads import messages
from frazil.log.remote.transport import flight
from tests.services.process import free_port, port_answers, start


class _Echo(flight.FlightServerBase):  # type: ignore[misc]  # PyArrow comes untyped
    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        while True:
            try:
                reader.read_chunk()
            except StopIteration:
                return
            writer.write_metadata(b"x" * 24)


@contextmanager
def flight_echo(folder: Path) -> Iterator[Contender]:
    """One publisher's round trips over Flight, with no log and no disk behind it."""
    folder.mkdir()
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.echo_process", str(port)]
    here = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    process = start("echo", command, folder=folder, port=port, env=here)
    process.wait_ready(lambda: port_answers(port))
    client = flight.connect(f"grpc://127.0.0.1:{port}")

    def run(scene: Scene, seconds: float) -> Load:
        writer, reader = client.do_exchange(flight.FlightDescriptor.for_path("echo"))
        payload = messages(scene.size)[0]

        def send(_: int) -> None:
            writer.write_metadata(payload)
            reader.read_chunk()

        try:
            return drive(send, scene, seconds)
        finally:
            writer.close()

    try:
        yield run
    finally:
        client.close()
        process.stop()


if __name__ == "__main__":
    _Echo(f"grpc://127.0.0.1:{sys.argv[1]}").serve()
