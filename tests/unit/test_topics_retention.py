"""Which files of a topic's table retention lets go."""

from __future__ import annotations

import pytest

from frazil.topics.sinks.retention import Aged, removable

NOW = 1000.0
#: Four files of 10 bytes, whose youngest messages are 400, 300, 200 and 100 seconds old.
FILES = [Aged(f"f{i}", i * 10, int((600 + i * 100) * 1e6), 10, 5) for i in range(4)]


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
    unknown = Aged("unknown", -(2**63), 2**63 - 1, 10, 5)
    assert unknown not in removable([unknown, *FILES], 0, None, NOW)
