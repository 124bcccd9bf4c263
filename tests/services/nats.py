"""NATS with JetStream, built from source; every message is synced to the disk before it is acknowledged."""

from __future__ import annotations

import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.services.handle import Handle
from tests.services.installs import cache_folder, only_one, run
from tests.services.minio_build import install_go
from tests.services.process import free_port, port_answers, start

VERSION = "v2.15.2"

_CONFIG = """\
host: 127.0.0.1
port: {port}
jetstream {{
  store_dir: "{store}"
  max_memory_store: 64MB
  max_file_store: 16GB
  sync_interval: always
}}
"""


@dataclass(frozen=True, kw_only=True)
class Nats(Handle):
    pass


def install_nats() -> Path:
    """The program in the cache, built first where it is missing."""
    program = cache_folder() / f"nats-server-{VERSION}"
    if program.is_file():
        return program
    with only_one("nats"), tempfile.TemporaryDirectory(dir=cache_folder(), prefix=".nats-") as scratch:
        if not program.is_file():  # another process may have built it while this one waited
            go = shutil.which("go") or install_go()
            source = f"github.com/nats-io/nats-server/v2@{VERSION}"
            run([go, "install", "-ldflags=-s -w", source], env={"GOBIN": scratch})
            (Path(scratch) / "nats-server").replace(program)
    return program


def start_nats(folder: Path) -> Nats:
    """Starts it with its data in `folder`."""
    port = free_port()
    config = folder / "nats.conf"
    config.write_text(_CONFIG.format(port=port, store=folder / "jetstream"))
    process = start("nats", [install_nats(), "-c", config], folder=folder, port=port)
    process.wait_ready(lambda: port_answers(port))
    return Nats(url=f"nats://127.0.0.1:{port}", process=process)
