"""`frazil content watch` as a person runs it: one folder, one command, one Ctrl-C."""

from __future__ import annotations

import signal

import pytest

from tests.e2e.servers import Running, eventually
from tests.e2e.test_up import descendants, lives

pytestmark = pytest.mark.timeout(400)


@pytest.mark.slow
def test_a_folder_is_watched_until_a_signal_and_what_was_printed_is_in_the_table(shell):
    photos = shell.folder / "photos"
    photos.mkdir()
    (photos / "a.jpg").write_text("a")
    running = Running(shell, "content", "watch", "photos", "--every", "0.3")
    try:
        assert running.ready(120)["key"] == "a.jpg"
        (shell.folder / "b").write_text("bb")
        (shell.folder / "b").rename(photos / "b.jpg")  # whole at once, whenever it looks
        told = running.ready(60)
        assert (told["change"], told["key"], told["size"]) == ("new", "b.jpg", 2)
        (photos / "a.jpg").unlink()
        started = descendants(running.process.pid)
        running.send(signal.SIGTERM)
        assert running.ready(60)["change"] == "gone", "it looks once more"
        assert running.wait(120) == 0, running.errors
        eventually(lambda: not any(map(lives, started)), 60)
    finally:
        running.end()
    assert "Traceback" not in running.errors and "3 changes were published" in running.errors
    assert [row["key"] for row in shell.json("content", "list", "photos")] == ["b.jpg"]
