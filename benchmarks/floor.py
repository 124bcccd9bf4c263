"""The floor under every durable acknowledgement: the same bytes written to a growing file, and fdatasync."""

from __future__ import annotations

import os
from itertools import cycle
from pathlib import Path

from benchmarks.load import Contender, Load, Scene, drive
from benchmarks.payloads import messages


def raw_write(folder: Path) -> Contender:
    def run(scene: Scene, seconds: float) -> Load:
        assert scene.publishers == 1, "the floor has one writer"
        pool = messages(scene.size)
        chunks = cycle([b"".join(pool[i : i + scene.batch]) for i in range(0, 8 * scene.batch, scene.batch)])
        path = folder / "floor.bin"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)

        def send(_: int) -> None:
            os.write(file, next(chunks))
            if scene.level == "disk":
                os.fdatasync(file)

        try:
            return drive(send, scene, seconds)
        finally:
            os.close(file)
            path.unlink()

    return run
