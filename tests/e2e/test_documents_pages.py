"""Every command of the guide to documents works, in the order of the page."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.e2e.conftest import FRAZIL

GUIDE = Path(__file__).parents[2] / "docs" / "documents.md"


@pytest.mark.deep
@pytest.mark.long("runs two dozen commands, one after the other")
def test_the_guide_can_be_followed_from_top_to_bottom(shell):
    blocks = re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("frazil ")]
    assert len(lines) > 15
    shell.write("documents.csv", "filename,size_bytes\na.pdf,1\nb.pdf,2\n")
    shell.write("documents.ndjson", '{"filename": "c.pdf"}\n{"filename": ""}\n')
    for line in lines:
        command = line.replace("frazil", str(FRAZIL), 1)
        done = subprocess.run(
            ["bash", "-c", command],
            env=shell.environment(),
            cwd=shell.folder,
            capture_output=True,
            text=True,
            check=False,
        )
        # An hour ago there was no document yet.
        allowed = (0, 10) if "get abc123 --as-of" in line else (0,)
        assert done.returncode in allowed, f"{line}\n{done.stderr}"
    found = shell.json("docs", "get", "abc123")
    assert (found["restore_status"], found["pages"], found["tags"]) == (
        "restored",
        12,
        {"project": "apollo", "year": "2026"},
    )
    assert len((shell.folder / "history.csv").read_text().splitlines()) == 1 + 3 + 3
    assert len((shell.folder / "bad.ndjson").read_text().splitlines()) == 1
