"""The parts of upkeep's rewrites that need no JVM: what is in order, what a turn takes, which spec is proposed."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.types import LongType

from frazil.errors import (
    ConflictError,
    CredentialsError,
    FrazilError,
    NotAllowedError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from frazil.tables import CommitUnknownError
from frazil.upkeep.java import failure
from frazil.upkeep.model import Outcome
from frazil.upkeep.rewrite.compact import Options
from frazil.upkeep.rewrite.deletes import both, mergeable
from frazil.upkeep.rewrite.grouping import first_ones, first_worth_it, locations, parts_of
from frazil.upkeep.rewrite.ordering import Order, Range, arranged
from frazil.upkeep.rewrite.partition_plan import LEAST, MOST, Facts, Span, propose
from frazil.upkeep.rewrite.rewriting import expected_files

MIB, GIB = 1024**2, 1024**3


def order(*, descending: bool = False, alone: bool = True) -> Order:
    return Order(1, 1, LongType(), descending, alone)


def known(*bounds: tuple[int, int]) -> dict[str, Range]:
    return {str(i): Range(str(i), *each) for i, each in enumerate(bounds)}


@pytest.mark.parametrize(
    ("bounds", "options", "expected"),
    [
        ([(10, 19), (0, 9), (20, 29)], {}, [1, 0, 2]),
        ([(10, 19), (0, 9), (20, 29)], {"descending": True}, [2, 0, 1]),
        ([(0, 10), (5, 20)], {}, None),
        ([(0, 5), (5, 9), (5, 5)], {}, [0, 2, 1]),
        ([(0, 5), (5, 9)], {"alone": False}, None),
    ],
)
def test_files_are_joined_only_where_their_bounds_prove_the_order(bounds, options, expected):
    assert arranged(order(**options), known(*bounds), [str(i) for i in range(len(bounds))]) == expected


def test_a_file_of_which_nothing_is_known_proves_nothing():
    assert arranged(order(), known((0, 9)), ["0", "another"]) is None


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(0, 50), min_size=1, max_size=5), min_size=1, max_size=6), st.booleans())
def test_what_is_arranged_is_sorted(files, descending):
    ranges = {str(i): Range(str(i), min(f), max(f)) for i, f in enumerate(files)}
    places = arranged(order(descending=descending), ranges, [str(i) for i in range(len(files))])
    if places is not None:
        joined = [value for place in places for value in sorted(files[place], reverse=descending)]
        assert joined == sorted(joined, reverse=descending)


@settings(deadline=None)
@given(st.integers(1, 100 * GIB), st.integers(1, GIB))
def test_new_files_are_near_their_target(size, target):
    count = expected_files(size, target)
    assert count >= 1
    assert size / count <= 1.1 * target + 1 or count == 1
    assert count == 1 or size / count >= 0.5 * target


@settings(deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=60), st.integers(1, 10))
def test_parts_keep_the_order_and_none_is_much_larger_than_the_others(sizes, parts):
    found = parts_of(sizes, parts)
    assert [place for part in found for place in part] == list(range(len(sizes)))
    assert len(found) <= parts
    assert max(sum(sizes[i] for i in part) for part in found) <= sum(sizes) / parts + max(sizes)


def test_a_turn_takes_what_its_budget_allows_and_two_files_at_least():
    sizes = [10, 20, 30, 40]
    assert first_ones([3, 2, 1, 0], sizes, 75) == [3, 2]
    assert first_ones([3, 2, 1, 0], sizes, 1) == [3, 2]
    assert first_ones([0, 1, 2, 3], sizes, 1000) == [0, 1, 2, 3]


def test_a_turn_passes_over_neighbours_that_would_become_as_many_as_they_are():
    sizes = [65, 65, 1, 1, 1, 65, 65]

    def is_worth_it(places, size):
        return len(places) > expected_files(size, 100)

    assert first_worth_it(range(7), sizes, 130, is_worth_it) == [1, 2, 3, 4]
    assert first_worth_it([0, 1], sizes, 130, is_worth_it) == []
    assert first_worth_it([0, 1], sizes, 130, lambda places, _: 1 in places) == [0, 1]


class Tasks:
    """A Java list as py4j shows it."""

    def __init__(self, text: str, *paths: str) -> None:
        self._text, self._paths = text, paths

    def toString(self) -> str:
        return self._text

    def size(self) -> int:
        return len(self._paths)

    def get(self, i: int) -> Tasks:
        return Tasks("", self._paths[i])

    file = lambda self: self  # noqa: E731

    def location(self) -> str:
        return self._paths[0]


def test_paths_are_read_from_the_text_and_one_by_one_where_it_is_another():
    text = (
        "[BaseFileScanTask{file=s3://b/a,b.parquet, partition_data=PartitionData{}, residual=true}, "
        "BaseFileScanTask{file=/c.parquet, partition_data=PartitionData{day=1}, residual=true}]"
    )
    assert locations(Tasks(text, "1", "2")) == ["s3://b/a,b.parquet", "/c.parquet"]
    assert locations(Tasks("something else", "1", "2")) == ["1", "2"]


def test_options_have_defaults_and_the_budget_is_a_whole_file_at_least():
    options = Options.of({"target": 8 * MIB, "budget": 1})
    assert (options.below, options.budget, options.strategy) == (6 * MIB, 8 * MIB, "auto")
    assert Options.of({"target": 8 * MIB, "below": 9 * MIB}).below == 8 * MIB - 1
    with pytest.raises(UsageError):
        Options.of({"strategy": "magic"})


def test_the_only_delete_file_of_a_data_file_cannot_be_merged():
    assert mergeable(["a", "b", "a", None, "c"]) == [0, 2, 3]
    assert mergeable(["a", "b"]) == []


def test_two_commits_of_one_step_are_told_as_one():
    nothing, done = Outcome("deletes", "nothing", reason="none"), Outcome("deletes", files_before=3, files_after=1)
    lost = Outcome("deletes", "conflict", conflicts=1)
    assert both(nothing, nothing).result == "nothing"
    assert both(done, nothing).result == both(nothing, done).result == both(done, done).result == "done"
    assert both(done, done).files_before == 6
    assert both(done, lost).result == "conflict"


# Errors of Java.


class JavaError(Exception):
    """An exception as py4j hands it on."""

    def __init__(self, *chain: tuple[str, str]) -> None:
        super().__init__("An error occurred while calling o1.execute")
        self.java_exception = Throwable(list(chain))


class Throwable:
    def __init__(self, chain: list[tuple[str, str]]) -> None:
        self._chain = chain

    def getClass(self) -> Throwable:
        return self

    def getSimpleName(self) -> str:
        return self._chain[0][0]

    def getMessage(self) -> str:
        return self._chain[0][1]

    def getCause(self) -> Throwable | None:
        return Throwable(self._chain[1:]) if self._chain[1:] else None


@pytest.mark.parametrize(
    ("chain", "expected"),
    [
        ([("RuntimeException", "wrapped"), ("ValidationException", "found new delete")], ConflictError),
        ([("CommitFailedException", "stale")], ConflictError),
        ([("CommitStateUnknownException", "x"), ("ConnectException", "refused")], CommitUnknownError),
        ([("SparkException", "Job aborted: java.io.FileNotFoundException: /x")], ConflictError),
        ([("NotAuthorizedException", "who")], CredentialsError),
        ([("ForbiddenException", "no")], NotAllowedError),
        ([("UncheckedIOException", "x"), ("FileSystemException", "/data: Permission denied")], NotAllowedError),
        ([("UnsupportedOperationException", "never")], UnsupportedError),
        ([("ServiceUnavailableException", "later")], UnavailableError),
        ([("IllegalStateException", "odd\n at org.stack")], FrazilError),
    ],
)
def test_errors_of_java_come_out_as_ours(chain, expected):
    found = failure(JavaError(*chain), "ns.t")
    assert type(found) is expected
    assert found.message.startswith("ns.t: ")
    assert "\n" not in found.message
    assert found.hint


# Partitions.


def facts(size: int, *, hours: float = 0, current: tuple[str, ...] = (), parts: tuple[int, ...] = (), keys=()) -> Facts:
    spans = (Span("at", hours, 0.1),) if hours else ()
    return Facts(current, size, size // 1000, parts, spans, tuple(keys))


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (facts(100 * MIB, hours=1000), []),
        (facts(365 * 500 * MIB, hours=365 * 24), ["day(at)"]),
        (facts(24 * 30 * 500 * MIB, hours=24 * 30), ["hour(at)"]),
        (facts(10 * GIB, hours=24 * 365), ["month(at)"]),
        (facts(3 * GIB, hours=10 * 24 * 365), ["year(at)"]),
        (facts(1000 * GIB, hours=24, keys=["id"]), ["hour(at)", "bucket(128, id)"]),
        (facts(10 * GIB, keys=["id"]), ["bucket(32, id)"]),
        (facts(10 * GIB), []),
        (facts(10 * GIB, hours=240, current=("day(at)",), parts=(GIB // 2,) * 20), ["day(at)"]),
        (facts(2 * GIB, hours=24 * 365, current=("hour(at)",), parts=(2 * MIB,) * 1000), ["month(at)"]),
    ],
)
def test_a_spec_is_proposed_whose_partitions_are_neither_tiny_nor_huge(given, expected):
    proposal = propose(given)
    assert proposal.proposed == expected
    assert proposal.reasons
    assert proposal.change == (expected != list(given.current))
    if proposal.change:
        assert LEAST / 2 <= proposal.expected <= MOST
