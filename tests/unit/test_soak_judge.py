"""The judge and the oracle of the soak: they can fail, and are not fooled by a machine that got slower."""

from __future__ import annotations

import pytest

from tests.soak_judge import EXCUSED, Samples, grown
from tests.soak_merge import MARK, Oracle


def series(last: float, first: float = 10.0) -> list[float]:
    return [first] * 9 + [last]


def test_what_stays_is_no_growth() -> None:
    assert grown({"commit seconds": series(11.9), "usual commit seconds": series(10.0), "t files": series(16.9)}) == []


@pytest.mark.parametrize("name", ["commit seconds", "topic read seconds", "t metadata bytes", "t disk bytes"])
def test_growth_of_a_third_on_a_machine_that_stays_the_same_is_told(name: str) -> None:
    (told,) = grown({name: series(13.0), f"usual {name}": series(10.0)})
    assert told == f"{name}: 10, then 13, more than 12 (yardstick 1.00×, of which 1.00× are excused)"


def test_a_yardstick_that_got_quicker_excuses_nothing_and_asks_for_no_more() -> None:
    assert grown({"commit seconds": series(11.9), "usual commit seconds": series(5.0)}) == []
    assert len(grown({"commit seconds": series(13.0), "usual commit seconds": series(5.0)})) == 1


def test_a_machine_that_got_slower_excuses_what_got_as_much_slower() -> None:
    assert grown({"commit seconds": series(13.0), "usual commit seconds": series(11.0)}) == []
    assert len(grown({"commit seconds": series(13.5), "usual commit seconds": series(11.0)})) == 1


def test_a_machine_that_got_much_slower_excuses_a_quarter_at_most() -> None:
    (told,) = grown({"commit seconds": series(15.1), "usual commit seconds": series(20.0)})
    assert "yardstick 2.00×, of which 1.25× are excused" in told
    assert EXCUSED == 1.25


def test_sizes_and_counts_have_no_excuse_in_times_of_others() -> None:
    tenths = {"t disk bytes": series(13.0), "t files": series(18.0), "usual commit seconds": series(20.0)}
    assert [told.split(":")[0] for told in grown(tenths)] == ["t disk bytes", "t files"]


def test_a_tenth_is_the_median_of_the_moments_in_which_others_took_least() -> None:
    samples = Samples()
    calm, stolen = [(0.5, 1.0, 0.0), (0.6, 3.0, 0.01)], [(0.7, 50.0, 0.2), (0.8, 60.0, 0.3)]
    samples.found = {"x": [*stolen, *calm, (1.5, 7.0, 0.9)]}
    assert samples.tenth("x", 0, 10.0) == 2.0
    assert samples.tenth("x", 1, 10.0) == 7.0


def test_all_moments_count_where_nobody_takes_anything() -> None:
    samples = Samples()
    samples.found = {"x": [(0.1, 1.0, 0.0), (0.2, 2.0, 0.0), (0.3, 9.0, 0.0)]}
    assert samples.tenth("x", 0, 10.0) == 2.0


def test_a_number_is_kept_with_its_yardstick() -> None:
    samples = Samples()
    samples.add("read seconds", 3.0, usual=1.5)
    assert (samples.values("read seconds"), samples.last("usual read seconds")) == ([3.0], 1.5)
    assert 0.0 <= samples.steal.share <= 1.0


def merged(merges: int) -> tuple[Oracle, dict[int, int]]:
    """An oracle that has seen nothing yet, and the rows of a table after some merges."""
    table = Oracle()
    for _ in range(merges):
        table.advance()
    return Oracle(), dict(table.rows)


def as_read(rows: dict[int, int]) -> list[dict[str, int]]:
    return [{"id": i, "value": value} for i, value in rows.items()]


def test_the_oracle_knows_the_rows_by_the_mark() -> None:
    oracle, rows = merged(5)
    oracle.check(as_read(rows), at_least=5)
    assert (oracle.merges, len(oracle.gone), len(rows)) == (5, 100, 2001)


def test_the_oracle_tells_a_row_that_came_back_one_that_is_lost_and_one_that_is_doubled() -> None:
    oracle, rows = merged(5)
    oracle.check(as_read(rows))
    with pytest.raises(AssertionError, match="deleted rows came back"):
        oracle.check(as_read(rows | {min(oracle.gone): 0}))
    lost = {i: value for i, value in rows.items() if i != max(rows)}
    with pytest.raises(AssertionError):
        oracle.check(as_read(lost))
    with pytest.raises(AssertionError, match="doubled"):
        oracle.check([*as_read(rows), {"id": MARK, "value": 5}])


def test_the_oracle_tells_a_merge_that_was_acknowledged_and_is_not_there() -> None:
    oracle, rows = merged(5)
    with pytest.raises(AssertionError, match="the table went back"):
        oracle.check(as_read(rows), at_least=6)
    _, later = merged(6)
    oracle.check(as_read(later))
    with pytest.raises(AssertionError, match="the table went back"):
        oracle.check(as_read(rows))
