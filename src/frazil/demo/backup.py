"""Chapter 7: a table is lost, and comes back from its backup under another name, in another place."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from frazil.backup.create import create_backup
from frazil.backup.format import BackupRecord
from frazil.backup.location import open_repository, repository_uri
from frazil.backup.prune import run_prune
from frazil.backup.repository import Repository
from frazil.backup.restore import run_restore
from frazil.backup.restore_plan import RestoreTarget, plan_restore
from frazil.backup.retention import RetentionPolicy
from frazil.backup.verify import verify_repository
from frazil.catalogs import local_path
from frazil.demo.session import SharedSession
from frazil.demo.stage import Stage
from frazil.errors import IntegrityError, NotFoundError
from frazil.settings import Settings
from frazil.tables.relocation.engine import open_engine
from frazil.upkeep.context import UpkeepContext
from frazil.upkeep.runs.open_context import open_context

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table
    from pyspark.sql import SparkSession

TABLE = "demo.bookings"
RESTORED = "rescued.bookings"
#: Rows of every snapshot, by its id.
History = Mapping[int, "pa.Table"]


def chapter(stage: Stage, settings: Settings, session: SharedSession) -> None:
    stage.chapter("Chapter 7: a table is lost and restored with its whole history")
    spark = session.get()
    with open_context(settings, spark=lambda: spark) as care:
        _fill(stage, spark)
        repository = open_repository(settings, create=True)
        with stage.step(f"frazil backup create {TABLE} --name monday"):
            monday = create_backup(care, repository, [TABLE], name="monday")
        with stage.step("add 200 bookings, and cancel some"):
            _insert(spark, 2000, 2200)
            spark.sql(f"DELETE FROM {TABLE} WHERE id % 22 = 0")  # noqa: S608 - our own name
        with stage.step(f"frazil backup create {TABLE} --name tuesday: copies only new files"):
            tuesday = create_backup(care, repository, [TABLE], name="tuesday")
        _show(stage, monday, tuesday)
        before = _lose(stage, care)
        _verify(stage, repository)
        _restore(stage, settings, care, repository, tuesday)
        _compare(stage, before, care)
        _prune(stage, repository)
    stage.say(
        f"The repository is {repository_uri(settings)}; it can also be in a bucket: backup.bucket=s3://bucket/prefix"
    )


def _fill(stage: Stage, spark: SparkSession) -> None:
    with stage.step(f"Spark writes {TABLE}: 2,000 rows, position deletes, and a tag"):
        spark.sql("CREATE NAMESPACE IF NOT EXISTS demo")
        spark.sql(
            f"CREATE TABLE {TABLE} (id BIGINT, city STRING, price DOUBLE) USING iceberg "
            "TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
        )
        _insert(spark, 0, 2000)
        spark.sql(f"DELETE FROM {TABLE} WHERE id % 10 = 7")  # noqa: S608 - our own name
        spark.sql(f"ALTER TABLE {TABLE} CREATE TAG first_week")


def _insert(spark: SparkSession, start: int, end: int) -> None:
    spark.range(start, end).selectExpr(
        "id", "element_at(array('Oslo', 'Lima', 'Kobe'), cast(id % 3 + 1 AS int)) AS city", "100.0 + id % 250 AS price"
    ).createOrReplaceTempView("new_bookings")
    spark.sql(f"INSERT INTO {TABLE} SELECT * FROM new_bookings")  # noqa: S608 - our own name


def _show(stage: Stage, *records: BackupRecord) -> None:
    rows = []
    for record in records:
        (table,) = record.tables
        rows.append(
            [record.name, table.snapshots, ", ".join(table.refs), table.files, f"{table.bytes:,}", table.new_files,
             f"{table.new_bytes:,}"]
        )  # fmt: skip
    stage.table(["backup", "snapshots", "branches and tags", "files", "bytes", "new files", "new bytes"], rows)


def _lose(stage: Stage, care: UpkeepContext) -> History:
    table = care.load(TABLE)
    rows = _read(table)
    folder = local_path(table.location())
    assert folder is not None, "the demo's warehouse is a folder"
    with stage.step("disaster: drop the table, and delete its folder"):
        care.store.catalog.drop_table(TABLE)
        shutil.rmtree(folder)
    return rows


def _read(table: Table) -> dict[int, pa.Table]:
    """The rows of every snapshot, in order."""
    ids = [snapshot.snapshot_id for snapshot in table.metadata.snapshots]
    return {one: table.scan(snapshot_id=one).to_arrow().sort_by("id") for one in ids}


def _verify(stage: Stage, repository: Repository) -> None:
    with stage.step("frazil backup verify --level checksums: reads every byte of the repository") as record:
        report = verify_repository(repository, level="checksums")
        record |= {"objects": report.checked, "bytes": report.checked_bytes}
    if report.error is not None:
        raise report.error


def _restore(
    stage: Stage, settings: Settings, care: UpkeepContext, repository: Repository, backup: BackupRecord
) -> None:
    place = settings.model.home.parent / "rescued" / "bookings"
    with (
        stage.step(f"frazil backup restore tuesday --to {RESTORED} --target-location ./rescued/bookings") as step,
        open_engine("local", settings) as engine,
    ):
        target = RestoreTarget(RESTORED, location=str(place))
        plan = plan_restore(care, repository, backup, backup.tables[0], target)
        step |= run_restore(care, repository, plan, engine).to_dict()


def _compare(stage: Stage, before: History, care: UpkeepContext) -> None:
    restored = care.load(RESTORED)
    _require_gone(care)
    with stage.step(f"compare every snapshot of {RESTORED} with the lost table, row by row"):
        after = _read(restored)
        equal = {one: after.get(one) == rows for one, rows in before.items()}
    if set(before) != set(after) or not all(equal.values()):
        raise IntegrityError(f"{RESTORED} differs from the lost table", hint="please report it")
    names: dict[int, list[str]] = {}
    for name, ref in restored.metadata.refs.items():
        names.setdefault(ref.snapshot_id, []).append(name)
    rows: list[list[Any]] = [
        [one, ", ".join(sorted(names.get(one, []))) or None, f"{before[one].num_rows:,}", f"{after[one].num_rows:,}",
         equal[one]]
        for one in before
    ]  # fmt: skip
    stage.table(["snapshot", "branch or tag", "rows before", "rows restored", "equal"], rows)


def _require_gone(care: UpkeepContext) -> None:
    try:
        care.load(TABLE)
    except NotFoundError:
        return
    raise IntegrityError(f"{TABLE} still exists, so the demo has shown nothing", hint="please report it")


def _prune(stage: Stage, repository: Repository) -> None:
    with stage.step("frazil backup prune --keep-last 1 --yes: marks what only the older backup needs"):
        first = run_prune(repository, RetentionPolicy(keep_last=1), prune_wait_s=0.0)
    with stage.step("frazil backup prune --yes: deletes it, after a wait of one day, which the demo skips"):
        second = run_prune(repository, None, prune_wait_s=0.0)
    rows = [
        [name, ", ".join(report.dropped) or None, report.marked.blobs, report.deleted.blobs]
        for name, report in (("first", first), ("second", second))
    ]
    stage.table(["run", "backups dropped", "objects marked", "objects deleted"], rows)
    if verify_repository(repository).error is not None:
        raise IntegrityError("prune has deleted what a backup needs", hint="please report it")
