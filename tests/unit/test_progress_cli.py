"""Progress of long work as people and programs see it."""

from __future__ import annotations

import json

import pytest

from frazil.cli.invocation import Output, Run
from frazil.cli.progress import _amounts, shown_progress


def test_programs_get_a_line_of_json_per_stage_on_standard_error(capsys: pytest.CaptureFixture[str]):
    with shown_progress(Run(output=Output.json)) as progress:
        progress.begin("copy", "demo.photos", files=2, bytes=100)
        progress.advance(bytes=60)
        progress.advance(bytes=40)
        progress.end()
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = map(json.loads, err.splitlines())
    assert line["event"] == "progress"
    assert (line["stage"], line["subject"], line["files"], line["total_bytes"]) == ("copy", "demo.photos", 2, 100)
    assert {"rate", "eta_s", "elapsed_s"} <= line.keys()


def test_without_a_terminal_nothing_is_shown(capsys: pytest.CaptureFixture[str]):
    with shown_progress(Run()) as progress:
        progress.begin("copy", files=2, bytes=100)
        progress.advance(bytes=60)
        progress.end()
    assert capsys.readouterr() == ("", "")


def test_people_see_what_is_done_how_fast_and_how_long_it_takes():
    from frazil.observe.progress import ProgressState

    state = ProgressState("copy", "demo.photos", 120, 2000, 98_000_000, 2 << 30, 1.0, 220_000_000.0, 9.2)
    assert _amounts(state) == "120 of 2,000 files, 93.5 MiB of 2.0 GiB, 210 MiB/s, 9 s left"
    unknown = ProgressState("read", "", 3, 0, 0, 0, 1.0, 0.0, None)
    assert _amounts(unknown) == ""
