"""Writes a group of data files anew with Spark, in the way of Iceberg's own rewrite action, and commits the exchange.

Iceberg's action takes a plan as a whole: how many bytes it reads is not bounded, nothing can be done between its steps,
and it sorts what is sorted already. So its parts are used one by one: its planner's scan tasks, its staged scan and
write, its commit, which checks deletes that came in between and removes the new files where it fails.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from frazil.errors import UsageError
from frazil.spark.session import activate_session
from frazil.upkeep import java
from frazil.upkeep.rewrite.rewrite_commit import NothingToDoError
from frazil.upkeep.rewrite.zorder import z_order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from frazil.upkeep.rewrite.rewrite_commit import RewriteCommit

#: joined: one file after the other. local: each new file sorted in itself, as the table is. range: sorted across the
#: new files too, as the table is, or first by the partitions of a new spec. columns: the same by other columns.
#: zorder: along the curve of these columns.
Way = Literal["joined", "local", "range", "columns", "zorder"]

G = TypeVar("G")

#: A file may get that much larger than its target, so that no small rest is left. As Iceberg has it.
_ROOM = 1.4
_SPLIT_OVERHEAD = 5 * 1024
_WHOLE = 1 << 62
#: As Iceberg has it.
_ROW_GROUP = 128 * 1024 * 1024


@dataclass(frozen=True)
class Group:
    """Data files of one partition that become new ones together.

    Attributes:
        tasks: Java's list of scan tasks, each with the deletes that apply to its file.
        count: of files.
        size: of them, in bytes.
        way: how.
        spec_id: of the new files.
        is_one_file: it becomes one, also if that gets larger than its target.
    """

    tasks: Any
    count: int
    size: int
    way: Way
    spec_id: int
    is_one_file: bool = False


@dataclass(frozen=True)
class Shape:
    """What the new files shall be.

    Attributes:
        target: bytes of each.
        sort_by: columns, for the ways `columns` and `zorder`.
        order_id: that files in the table's own order are marked with; None for a table without.
    """

    target: int
    sort_by: tuple[str, ...] = ()
    order_id: int | None = None


def expected_files(size: int, target: int) -> int:
    """How many files a group becomes: a small rest is spread over the others, by at most a tenth."""
    if size <= target:
        return 1
    whole, rest = divmod(size, target)
    return whole if rest == 0 or (rest < 0.75 * target and size / whole < 1.1 * target) else whole + 1


def rewrite(turn: RewriteCommit, groups: Sequence[Group], shape: Shape) -> list[Any]:
    """Writes the groups anew, several at once, and returns them as Java's groups, with their new files.

    When the work shall stop, no further group is begun. Where one fails, the new files of all are removed.
    """
    return write_each(turn, groups, lambda group: _rewrite(turn, group, shape), _manager(turn).abortFileGroup)


def write_each(
    turn: RewriteCommit, groups: Sequence[G], write: Callable[[G], Any], abort: Callable[[Any], object]
) -> list[Any]:
    """The same with whatever writes one group, and removes what was written of one."""
    done: list[Any] = []

    def one(group: G) -> None:
        if not turn.context.stop.is_set():
            done.append(write(group))

    most = turn.context.tasks or turn.context.spark().sparkContext.defaultParallelism
    workers = max(1, min(len(groups), most))
    try:
        with turn.step("rewrite"), ThreadPoolExecutor(workers) as pool:
            list(pool.map(one, groups))
    except BaseException:
        for made in done:
            abort(made)
        raise
    if not done:
        raise NothingToDoError("asked to stop")
    return done


def commit(turn: RewriteCommit, groups: Sequence[Any]) -> None:
    """Exchanges the old files for the new in one commit, if no row of the old was deleted since; else removes the new.

    Raises:
        ConflictError: somebody deleted rows of these files, or replaced them.
        CommitUnknownError: no answer came; the new files stay.
    """
    manager = _manager(turn)
    commit_with(turn, groups, manager.commitOrClean, manager.abortFileGroup)


def commit_with(
    turn: RewriteCommit, groups: Sequence[Any], commit_or_clean: Callable[[Any], object], abort: Callable[[Any], object]
) -> None:
    """The same with another of Iceberg's managers of commits."""
    chosen = turn.jvm.java.util.HashSet()
    for group in groups:
        chosen.add(group)
    under_way = False
    try:
        with turn.step("commit"):
            under_way = True
            commit_or_clean(chosen)
    except BaseException:
        if not under_way:
            for group in groups:
                abort(group)
        raise


def _manager(turn: RewriteCommit) -> Any:
    return turn.jvm.org.apache.iceberg.actions.RewriteDataFilesCommitManager(
        turn.java, turn.start, True, java.java_map(turn.jvm, turn.properties), "main"
    )


def _rewrite(turn: RewriteCommit, group: Group, shape: Shape) -> Any:
    files = 1 if group.is_one_file else expected_files(group.size, shape.target)
    room = int(shape.target * _ROOM)
    split = min(max(group.size // files + _SPLIT_OVERHEAD, shape.target), room)
    room += _row_group(turn)
    if group.is_one_file:  # deletes count as well where Iceberg fills a split
        room, split = max(room, 2 * group.size), _WHOLE
    made = turn.jvm.org.apache.iceberg.actions.RewriteFileGroup(None, group.tasks, group.spec_id, room, split, files)
    if group.way == "zorder":
        made.setOutputFiles(z_order(turn, session_for(turn, files), shape.sort_by).rewrite(made))
        return made
    with _staged(turn, group) as name:
        _write(session_for(turn, files), name, group, shape, files, split, room)
        made.setOutputFiles(
            turn.jvm.org.apache.iceberg.spark.FileRewriteCoordinator.get().fetchNewFiles(turn.java, name)
        )
    return made


def _row_group(turn: RewriteCommit) -> int:
    """Bytes that a writer may hold back before they are compressed.

    It counts them as they are, and would end a file that is far from its target.
    """
    return int(turn.table.metadata.properties.get("write.parquet.row-group-size-bytes", _ROW_GROUP))


@contextmanager
def _staged(turn: RewriteCommit, group: Group) -> Iterator[str]:
    """The name under which Spark reads these tasks and writes their new files."""
    packages, name = turn.jvm.org.apache.iceberg.spark, str(uuid.uuid4())
    # By an instance, since py4j finds no static method that has the name of another.
    cache = packages.SparkTableCache().get()
    try:
        cache.add(name, turn.java)
        packages.ScanTaskSetManager.get().stageTasks(turn.java, name, group.tasks)
        yield name
    finally:
        cache.remove(name)
        packages.ScanTaskSetManager.get().removeTasks(turn.java, name)
        packages.FileRewriteCoordinator.get().clearRewrite(turn.java, name)


def session_for(turn: RewriteCommit, files: int) -> SparkSession:
    """A session of its own for this thread, in which each part of a shuffle becomes a file."""
    session = turn.context.spark().newSession()
    activate_session(session)
    session.conf.set("spark.sql.adaptive.enabled", "false")
    session.conf.set("spark.sql.iceberg.executor-cache.delete-files.enabled", "false")
    session.conf.set("spark.sql.shuffle.partitions", str(files))
    return session


def _write(session: SparkSession, name: str, group: Group, shape: Shape, files: int, split: int, room: int) -> None:
    reader = session.read.format("iceberg")
    if group.way in ("joined", "local"):
        # Each split becomes a file. Looking no further than the next file keeps them in their order.
        reader = reader.options(**{"split-size": str(split), "lookback": "1", "file-open-cost": "0"})
    frame = reader.load(name)
    options = {"target-file-size-bytes": str(room), "output-spec-id": str(group.spec_id)}
    if group.way == "columns":
        columns = [_column(text) for text in shape.sort_by]
        frame = frame.repartitionByRange(files, *columns).sortWithinPartitions(*columns)
        options |= {"use-table-distribution-and-ordering": "false", "fanout-enabled": "true"}
    elif group.way == "joined":
        options |= {"use-table-distribution-and-ordering": "false"}
        options |= {} if shape.order_id is None else {"output-sort-order-id": str(shape.order_id)}
    else:
        options |= {"distribution-mode": "none" if group.way == "local" else "range"}
    frame.write.format("iceberg").options(**options).mode("append").save(name)


def _column(text: str) -> Any:
    from pyspark.sql.functions import col

    name, _, way = text.strip().partition(" ")
    column = col(".".join(f"`{part}`" for part in name.split(".")))
    match way.strip().lower():
        case "" | "asc":
            return column.asc_nulls_first()
        case "desc":
            return column.desc_nulls_last()
    raise UsageError(f"'{text}' is not a sort column", hint="a column's name, then perhaps asc or desc")
