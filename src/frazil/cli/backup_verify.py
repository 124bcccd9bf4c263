"""`frazil backup verify`."""

from __future__ import annotations

import re
from contextlib import nullcontext
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.backup_session import TableOption, find_record, name_of, settings_of, shown_root
from frazil.cli.invocation import Run
from frazil.cli.progress import shown_progress
from frazil.cli.session import Engine, EngineChoice, stoppable, stopping
from frazil.cli.topic_session import Yes
from frazil.errors import DifferencesError, IntegrityError, UsageError

if TYPE_CHECKING:
    from frazil.backup.compare import RowComparison
    from frazil.backup.format import BackedUpTable, BackupRecord
    from frazil.backup.repository import Repository
    from frazil.backup.restorable import RestorableReport
    from frazil.backup.verify import Finding, VerifyReport
    from frazil.settings import Settings
    from frazil.settings.model import S3Settings

#: Findings that text shows; JSON has all.
_SHOWN = 20


class Level(StrEnum):
    listing = "listing"
    checksums = "checksums"
    restore = "restore"


def verify(
    run: Run,
    backups: Annotated[
        list[str] | None, typer.Argument(metavar="BACKUP…", help="names; `latest` is the newest one [default: all]")
    ] = None,
    level: Annotated[
        Level,
        typer.Option(
            help="listing: every object is there, with its size; checksums: every byte is read; "
            "restore: every object is there, and a restore in memory has the snapshots of the source"
        ),
    ] = Level.listing,
    sample: Annotated[
        str | None, typer.Option(metavar="N/T", help="read the Nth of T parts of all bytes, such as 1/7")
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="compare this restored table with its source row by row, with Spark"),
    ] = None,
    table: TableOption = None,
    engine: Engine = EngineChoice.auto,
    repair: Annotated[
        bool, typer.Option("--repair", help="bring damaged and missing objects back, with --yes; else show the plan")
    ] = False,
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="URI", help="with --repair: another repository, such as a copy of this one"),
    ] = None,
    yes: Yes = False,
) -> None:
    """Verify that backups can be restored; or, with --rows, that a restored table has the rows of its source.

    Objects that are damaged or missing are named, with the backups that need them. Content that was erased on purpose
    is reported, and is no failure. --repair takes their bytes from the files of the tables, if these have still the
    same size and SHA-256, or from another repository. Exit codes: 13 where something is damaged or missing, 14 where
    rows differ.
    """
    from frazil.backup.location import open_repository

    if sample is not None and level is not Level.listing:
        raise UsageError("--sample and --level are both given", hint="one of the two")
    if repair and (rows is not None or level is Level.restore):
        raise UsageError("--repair works on objects", hint="frazil backup verify --repair --level checksums")
    if not repair and (source is not None or yes):
        raise UsageError("--from and --yes are for --repair", hint="frazil backup verify --repair")
    settings = settings_of(run)
    repository = open_repository(settings)
    if rows is not None:
        if len(backups or ()) > 1 or sample or level is not Level.listing:
            raise UsageError("--rows compares one table, with one backup", hint=f"--rows {rows}")
        record = find_record(repository, backups[0] if backups else "latest")
        _print_comparison(run, _compare(run, settings, record, rows, table))
        return
    if level is Level.restore:
        records = [find_record(repository, name) for name in backups or repository.list_names()]
        if not backups:
            records.sort(key=lambda record: record.created_at)
        _print_restorable(run, _check_restores(run, settings, repository, records, table, engine))
        return
    if table is not None:
        raise UsageError("--table is for --level restore and --rows", hint="leave it out: a whole backup is verified")
    report = _verify(run, repository, backups, level, sample)
    if repair and _repair(run, settings, report, source, yes=yes):
        report = _verify(run, repository, backups, level, sample)
    _print_report(run, repository, report)


def _repair(run: Run, settings: Settings, report: VerifyReport, source: str | None, *, yes: bool) -> bool:
    """Brings objects back; returns whether there were any that could be."""
    from frazil.backup.location import open_repository
    from frazil.backup.repair import plan_repair, run_repair
    from frazil.backup.repository import Repository
    from frazil.upkeep.plans.format_amounts import format_count

    def s3_of(table: BackedUpTable) -> S3Settings:
        catalog = settings.catalog(table.catalog if table.catalog in settings.catalog_names() else None)
        return catalog.s3 or model.s3

    model, repository = settings.model, open_repository(settings, create=True)
    other = Repository.open(source, s3=model.s3, network=model.network) if source else None
    keys = [found.key for found in report.findings if found.problem in ("missing", "damaged")]
    repairs = plan_repair(repository, keys, other, s3_of)
    if not run.printer.json_output:
        run.printer.rows(("object", "is taken from"), [[each.key, each.source] for each in repairs])
        if len(repairs) < len(keys):
            print(
                f"{format_count(len(keys) - len(repairs), 'object')} cannot be brought back: "
                "the bytes are nowhere else, or were erased on purpose"
            )
        print()
    if repairs and not yes:
        if run.printer.json_output:
            run.printer.json({"repairs": {each.key: each.source for each in repairs}, "done": False})
        raise UsageError("nothing was done: a repair requires --yes", hint="the same with --yes")
    run_repair(repository, repairs)
    return bool(repairs)


def _verify(
    run: Run, repository: Repository, backups: list[str] | None, level: Level, sample: str | None
) -> VerifyReport:
    from frazil.backup.verify import verify_repository

    names = [find_record(repository, name).name for name in backups] if backups else None
    with stopping(run) as stop, shown_progress(run) as progress:
        progress.begin("verify")
        done = [0, 0]

        def count(files: int, total: int, size: int, total_size: int) -> None:
            if not any(done):
                progress.expect(total, total_size)
            progress.advance(files - done[0], size - done[1])
            done[:] = [files, size]

        report = verify_repository(
            repository,
            names=names,
            level="sample" if sample else "checksums" if level is Level.checksums else "listing",
            sample=_parse_sample(sample) if sample else (1, 1),
            on_checked=count,
            stop=stop,
        )
        progress.end()
    return report


def _parse_sample(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", text)
    if found is None:
        raise UsageError(f"sample '{text}' is invalid", hint="N/T with N from 1 to T, such as 1/7")
    return int(found[1]), int(found[2])


def _print_report(run: Run, repository: Repository, report: VerifyReport) -> None:
    from frazil.upkeep.plans.format_amounts import format_count, format_size

    if run.printer.json_output:
        run.printer.json(report.to_dict())
    else:
        none = f"no backups in {shown_root(repository)}"
        run.printer.rows(("backup", "state"), list(report.backups.items()), none=none)
        if report.findings:
            print()
            shown = report.findings[:_SHOWN]
            rows = [
                [each.key, each.problem, ", ".join(each.backups) or None, _detail(repository, each)] for each in shown
            ]
            run.printer.rows(("object", "problem", "needed by", "detail"), rows)
            if len(report.findings) > _SHOWN:
                print(f"… and {len(report.findings) - _SHOWN:,} more; --output json has all")
        read = "looked up" if report.level == "listing" else "read"
        print(f"\n{format_count(report.checked, 'object')} {read}, {format_size(report.checked_bytes)}")
        if report.unreferenced:
            size = format_size(report.unreferenced_bytes)
            print(
                f"{format_count(report.unreferenced, 'object')} with {size} are needed by no backup; prune frees them"
            )
    if report.error is not None:
        raise report.error


def _detail(repository: Repository, finding: Finding) -> str | None:
    """What the other columns do not say."""
    said = f"{repository.root}/{finding.key} is {finding.problem}"
    return finding.detail.removeprefix(said).strip() or None


# -- a restore in memory -----------------------------------------------------------------------------------------------


def _check_restores(
    run: Run,
    settings: Settings,
    repository: Repository,
    records: list[BackupRecord],
    table: str | None,
    engine: EngineChoice,
) -> list[RestorableReport]:
    from frazil.backup.restorable import add_lost, check_restorable
    from frazil.backup.selection import find_tables
    from frazil.tables.relocation.engine import open_engine

    # The restore in memory reads no data files, so whether they are there is found out by a listing.
    listing = _verify(run, repository, [record.name for record in records], Level.listing, None)
    lost = {each.key for each in listing.findings if each.problem != "erased"}
    chosen: list[tuple[BackupRecord, BackedUpTable]] = [(r, t) for r in records for t in find_tables(r, table)]
    with (
        stopping(run) as stop,
        open_engine(engine.value, settings, concurrency=settings.model.backup.concurrency, stop=stop) as opened,
        shown_progress(run) as progress,
    ):
        progress.begin("restore in memory", files=len(chosen))
        reports = []
        for record, each in chosen:
            report = check_restorable(repository, record, each, opened, stop)
            reports.append(add_lost(repository, each, lost, report) if lost else report)
            progress.advance()
        progress.end()
    return reports


def _print_restorable(run: Run, reports: list[RestorableReport]) -> None:
    if run.printer.json_output:
        run.printer.json([report.to_dict() for report in reports])
    else:
        columns = ("backup", "table", "snapshots", "manifests", "files", "can be restored")
        rows = [[r.backup, r.table, r.snapshots, r.manifests, r.files, r.is_restorable] for r in reports]
        run.printer.rows(columns, rows, none="no backups")
        for report in reports:
            for problem in report.problems[:_SHOWN]:
                print(f"{report.backup}, {report.table}: {problem}")
    failed = [report for report in reports if not report.is_restorable]
    if failed:
        raise IntegrityError(
            f"{len(failed)} of {len(reports)} tables cannot be restored as they were",
            cause=failed[0].problems[0],
            hint="restore another backup, or bring the objects back from a copy of the repository",
        )


# -- rows --------------------------------------------------------------------------------------------------------------


def _compare(run: Run, settings: Settings, record: BackupRecord, restored: str, table: str | None) -> RowComparison:
    from frazil.backup.compare import compare_rows
    from frazil.backup.selection import find_tables

    tables = find_tables(record, table)
    if len(tables) > 1:
        names = ", ".join(map(name_of, tables[:5]))
        raise UsageError(
            f"backup '{record.name}' has several tables; which one is the source of {restored}?",
            hint=f"--table with one of: {names}",
        )
    catalogs = settings.catalog_names()
    source = (tables[0].catalog if tables[0].catalog in catalogs else settings.catalog().name, *tables[0].identifier)
    first, _, rest = restored.partition(".")
    is_full = first in catalogs and "." in rest
    target = tuple(restored.split(".")) if is_full else (settings.catalog().name, *restored.split("."))
    with stoppable(run, settings, target[0]) as care:
        care.load(".".join(target[1:]))  # its error names similar tables
        with _waiting(run):
            return compare_rows(care.spark(), source, target, stop=care.stop)


def _waiting(run: Run) -> Any:
    import sys

    if run.printer.json_output or not sys.stderr.isatty():
        return nullcontext()
    from rich.console import Console

    return Console(stderr=True).status("comparing rows, snapshot by snapshot")


def _print_comparison(run: Run, found: RowComparison) -> None:
    if run.printer.json_output:
        run.printer.json(found.to_dict())
    else:
        rows = [[s.snapshot_id, s.source_rows, s.restored_rows, s.is_equal] for s in found.snapshots]
        run.printer.rows(("snapshot", f"rows of {found.source}", f"rows of {found.restored}", "equal"), rows)
        for snapshot in found.snapshots:
            for example in snapshot.examples:
                print(f"snapshot {snapshot.snapshot_id}, {example}")
        if found.skipped:
            from frazil.upkeep.plans.format_amounts import format_count

            many = format_count(len(found.skipped), "snapshot")
            run.printer.note(f"note: {many} of {found.restored} not compared: {found.source} does not have them")
    if not found.is_equal:
        raise DifferencesError(f"{found.restored} has not the rows of {found.source}", hint="frazil backup verify")
