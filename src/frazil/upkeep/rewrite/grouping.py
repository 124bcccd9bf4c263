"""What a compaction takes of the groups that Iceberg's planner finds: within a budget, and only what is worth it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any

from frazil.tables import list_data_files
from frazil.upkeep.rewrite.ordering import Order, Range, arranged, ranges_of
from frazil.upkeep.rewrite.rewriting import Group, Way, expected_files

if TYPE_CHECKING:
    from frazil.upkeep.rewrite.compact import Options
    from frazil.upkeep.rewrite.rewrite_commit import RewriteCommit

_TASK = re.compile(r"\w+Task\{file=(.*?), partition_data=")


def within(turn: RewriteCommit, options: Options, groups: Iterator[Any], order: Order | None) -> Iterator[Group]:
    """What one turn takes of Iceberg's groups, the first ones first."""
    left, known = options.budget, None
    for group in groups:
        size = int(group.inputFilesSizeInBytes())
        if size > left and left < options.budget:
            continue  # another turn's
        if order is not None and known is None:
            known = ranges_of(order, list_data_files(turn.context.store, turn.table))
        made = _group(turn, options, group, order, known or {})
        if made is None:
            continue
        left -= made.size
        yield made
        if left <= 0:
            return


def _group(
    turn: RewriteCommit, options: Options, group: Any, order: Order | None, known: dict[str, Range]
) -> Group | None:
    """What is taken of one of Iceberg's groups; None where it would have as many files as before.

    Iceberg itself takes files that together exceed the target, though they become as many as they were: again and
    again, since those are too small then as well.
    """
    tasks, size, count = group.fileScanTasks(), int(group.inputFilesSizeInBytes()), int(group.inputFileNum())
    if options.without:
        tasks = picked(turn, tasks, [i for i, path in enumerate(locations(tasks)) if path not in options.without])
        size, count = sum(int(task.length()) for task in tasks), int(tasks.size())
    if not count:
        return None
    spec_id = int(turn.java.spec().specId())
    same_spec = int(tasks.get(0).spec().specId()) == spec_id
    places = arranged(order, known, locations(tasks)) if order is not None and same_spec else None

    def way(size: int) -> Way:
        return _way(turn, options, same_spec, places is not None, size)

    def is_worth_it(chosen: Sequence[int], size: int) -> bool:
        return len(chosen) > _becoming(turn, way(size), size, options.target) or any(map(is_dirty, chosen))

    @cache
    def is_dirty(place: int) -> bool:
        return _is_dirty(turn, options, tasks.get(place))

    chosen = places or list(range(count))
    if size > options.budget:
        sizes = [int(tasks.get(i).length()) for i in range(count)]
        # Files that lie in order stay neighbours; of others the smallest are merged for the least.
        chosen = first_worth_it(places or sorted(chosen, key=sizes.__getitem__), sizes, options.budget, is_worth_it)
        chosen = chosen if places else sorted(chosen)
        size = sum(sizes[i] for i in chosen)
    elif not is_worth_it(chosen, size):
        return None
    if not chosen:
        return None
    if chosen != list(range(count)):
        tasks, count = picked(turn, tasks, chosen), len(chosen)
    return Group(tasks, count, size, way(size), spec_id)


def _is_dirty(turn: RewriteCommit, options: Options, task: Any) -> bool:
    """Whether a file is taken for its deletes, as Iceberg decides it."""
    deletes = list(task.deletes())
    if len(deletes) >= options.delete_files:
        return True
    is_known = turn.jvm.org.apache.iceberg.util.ContentFileUtil.isFileScoped
    rows = sum(int(delete.recordCount()) for delete in deletes if is_known(delete))
    return rows > 0 and rows >= options.delete_ratio * int(task.file().recordCount())


def _becoming(turn: RewriteCommit, way: Way, size: int, target: int) -> int:
    """How many files there would be of so many bytes."""
    return parts_for(size, target) if _is_divided(turn, way) else expected_files(size, target)


def _is_divided(turn: RewriteCommit, way: Way) -> bool:
    """Whether one task writes one file each: not where rows go from file to file."""
    return turn.context.tasks is not None and way in ("joined", "local")


def _way(turn: RewriteCommit, options: Options, same_spec: bool, arranged: bool, size: int) -> Way:
    if options.sort_by:
        return "zorder" if options.strategy == "zorder" else "columns"
    if not same_spec and (turn.table.spec().fields or not turn.table.sort_order().is_unsorted):
        return "range"
    if arranged or turn.table.sort_order().is_unsorted:
        return "joined"
    return "local" if options.strategy == "binpack" or expected_files(size, options.target) == 1 else "range"


def one_file_each(turn: RewriteCommit, group: Group, target: int) -> list[Group]:
    """A group as several, of which each becomes one file by one task."""
    if not _is_divided(turn, group.way):
        return [group]
    sizes = [int(group.tasks.get(i).length()) for i in range(group.count)]

    def part(places: list[int]) -> Group:
        size = sum(sizes[i] for i in places)
        tasks = picked(turn, group.tasks, places)
        return replace(group, tasks=tasks, count=len(places), size=size, is_one_file=len(places) > 1)

    parts = parts_of(sizes, parts_for(group.size, target))
    return [part(places) for places in parts if len(places) > 1 or group.tasks.get(places[0]).deletes().size()]


def parts_for(size: int, target: int) -> int:
    """So many that the new files are no longer small ones: else the next turn would take them again, and so on."""
    return max(1, round(size / target))


def parts_of(sizes: Sequence[int], parts: int) -> list[list[int]]:
    """The places of neighbours that together have about the same size: each stands where its middle lies."""
    ends = list(accumulate(sizes))
    middles = [end - size / 2 for end, size in zip(ends, sizes, strict=True)]
    return [[*places] for _, places in groupby(range(len(sizes)), key=lambda i: int(middles[i] * parts / ends[-1]))]


def first_ones(places: Sequence[int], sizes: Sequence[int] | Mapping[int, int], budget: int) -> list[int]:
    """The first of some files as far as a budget goes, and two at least."""
    chosen: list[int] = []
    taken = 0
    for place in places:
        taken += sizes[place]
        if taken > budget and len(chosen) > 1:
            break
        chosen.append(place)
    return chosen


def first_worth_it(
    places: Sequence[int], sizes: Sequence[int], budget: int, is_worth_it: Callable[[Sequence[int], int], bool]
) -> list[int]:
    """The first neighbours that a budget allows for and that are worth it; none if there are no such."""
    for start in range(len(places) - 1):
        chosen = first_ones(places[start:], sizes, budget)
        if is_worth_it(chosen, sum(sizes[i] for i in chosen)):
            return chosen
    return []


def locations(tasks: Any) -> list[str]:
    """The paths of all tasks' files: in one call to the JVM, where its text is as it is known."""
    found = _TASK.findall(tasks.toString())
    count = int(tasks.size())
    return found if len(found) == count else [str(tasks.get(i).file().location()) for i in range(count)]


def picked(turn: RewriteCommit, tasks: Any, places: Sequence[int]) -> Any:
    """Some of a list of tasks, in this order."""
    chosen = turn.jvm.java.util.ArrayList()
    for place in places:
        chosen.add(tasks.get(place))
    return chosen
