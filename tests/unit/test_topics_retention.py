"""Which files of a topic's table retention lets go."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.log.maintenance.retention import Policy
from frazil.log.maintenance.retention import removable as removable_segments
from frazil.log.segment import Segment
from frazil.topics.sinks.retention import AgedFile, removable

NOW = 1000.0
#: Four files of 10 bytes, whose youngest messages are 400, 300, 200 and 100 seconds old.
FILES = [AgedFile(f"f{i}", i * 10, int((600 + i * 100) * 1e6), 10, 5) for i in range(4)]


@pytest.mark.parametrize(
    ("age_s", "size", "going"),
    [
        (None, None, []),
        (250, None, ["f0", "f1"]),
        (300, None, ["f0"]),
        (0, None, ["f0", "f1", "f2", "f3"]),
        (None, 40, []),
        (None, 25, ["f0", "f1"]),
        (None, 0, ["f0", "f1", "f2"]),
        (350, 15, ["f0", "f1", "f2"]),
    ],
)
def test_files_go_by_age_then_by_size_and_by_size_the_newest_stays(
    age_s: float | None, size: int | None, going: list[str]
) -> None:
    assert [file.path for file in removable(FILES, age_s, size, NOW)] == going


def test_a_file_of_which_nothing_is_known_is_taken_for_young() -> None:
    unknown = AgedFile("unknown", -(2**63), 2**63 - 1, 10, 5)
    assert unknown not in removable([unknown, *FILES], 0, None, NOW)


def test_a_segment_of_the_log_goes_by_its_youngest_message() -> None:
    """Its first message may be old, where little was published for a long time."""
    segments = []
    for number in range(2):
        segment = Segment(Path("/nowhere"), number * 10)
        segment.end_offset, segment.size = number * 10 + 10, 100
        segment.first_time_us, segment.last_time_us = int(100e6), int(900e6)
        segments.append(segment)
    by_age = Policy(age_s=200, size=None)
    assert removable_segments(segments, by_age, 20, int(NOW * 1e6), 200) == 0
    assert removable_segments(segments, by_age, 20, int((NOW + 101) * 1e6), 200) == 1
    assert removable_segments(segments, by_age, 9, int((NOW + 101) * 1e6), 200) == 0, "a sink does not have it all"
