"""The floor under every acknowledgement: the same bytes written to a growing file, and fdatasync."""

from __future__ import annotations

import asyncio
import os
from itertools import cycle
from pathlib import Path

from benchmarks.load import Contender, Load, Scene, drive, drive_async
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


def bare_asyncio(folder: Path) -> Contender:
    """Coroutines that wait for a future each; all that wait are written and synced at once. No frames, no checks."""

    def run(scene: Scene, seconds: float) -> Load:
        following = cycle(messages(scene.size)).__next__
        path = folder / "floor.bin"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        waiting: list[tuple[bytes, asyncio.Future[None]]] = []

        def commit() -> None:
            os.write(file, b"".join([payload for payload, _ in waiting]))
            if scene.level == "disk":
                os.fdatasync(file)
            told = waiting.copy()
            waiting.clear()
            for _, future in told:
                future.set_result(None)

        def send(_: int) -> asyncio.Future[None]:
            loop = asyncio.get_running_loop()
            if not waiting:
                loop.call_soon(commit)
            future: asyncio.Future[None] = loop.create_future()
            waiting.append((following(), future))
            return future

        try:
            return asyncio.run(drive_async(send, scene, seconds))
        finally:
            os.close(file)
            path.unlink()

    return run
