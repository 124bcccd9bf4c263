"""The broker as a process of its own, with nothing but the log: `python -m benchmarks.broker_process FOLDER PORT`."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from frazil.log import Log
from frazil.log.remote.broker import Broker
from tests.services.process import free_port, port_answers, start


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Starts it with its log in a folder; gives its address, and stops it at the end."""
    folder.mkdir()
    port = free_port()
    command = [sys.executable, "-m", "benchmarks.broker_process", folder / "log", str(port)]
    here = {"PYTHONPATH": str(Path(__file__).parent.parent)}
    process = start("broker", command, folder=folder, port=port, env=here)
    process.wait_ready(lambda: port_answers(port))
    try:
        yield f"grpc://127.0.0.1:{port}"
    finally:
        process.stop()


def main(folder: Path, port: int) -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    with Log.open(folder) as log, Broker(log, port=port):
        signal.sigwait([signal.SIGTERM])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
