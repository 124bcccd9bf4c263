"""`frazil table expire|orphans|verify|pins`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, TableName
from frazil.errors import IntegrityError, PartialError, UsageError

if TYPE_CHECKING:
    from frazil.upkeep.expiry.orphans import Search
    from frazil.upkeep.expiry.verify import Verdict

_SECTIONS = (*CATALOG_SECTIONS, "topics", "upkeep", "spark")
#: Paths that text shows of each kind; JSON has all.
_SHOWN = 10
#: Seconds that an orphan must be old at least: a writer under way may not have committed yet.
_YOUNGEST_S = 3600.0

DryRun = Annotated[bool, typer.Option("--dry-run", help="only show what would be done")]


def expire(
    run: Run,
    table: TableName,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="snapshots older than this, such as 5d [default: the policy's]")
    ] = None,
    keep: Annotated[
        int | None, typer.Option(min=1, help="keep at most this many snapshots [default: the policy's]")
    ] = None,
    snapshot: Annotated[
        list[int] | None, typer.Option(metavar="ID", help="expire this snapshot, whatever its age; may be repeated")
    ] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="TIME", help="how long to keep their files after that [default: the policy's]")
    ] = None,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Expire old snapshots of a table, and delete files of expired snapshots after their grace period.

    Snapshots that a branch, tag or pin references are kept; the output names these pins and when they end. Files are
    deleted when their grace period is over, by a later run of this command or of upkeep. Exit codes: 3 if some files
    could not be deleted, 11 if other writers won every retry, or if pins hold all that --older-than and --keep choose,
    12 if another table has its files there, or references files that would be deleted.
    """
    from frazil.cli.amounts import seconds
    from frazil.upkeep.runs.expire_table import expire_table
    from frazil.upkeep.runs.open_context import open_context

    if snapshot and (older_than or keep):
        raise UsageError("--snapshot excludes --older-than and --keep", hint="give one of them")
    age = None if older_than is None else seconds(older_than)
    grace_s = None if grace is None else seconds(grace)
    with open_context(run.settings(*_SECTIONS), catalog) as care:
        report = expire_table(
            care,
            table,
            max_age_s=age,
            max_snapshots=keep,
            snapshots=snapshot or (),
            grace_s=grace_s,
            dry_run=dry_run,
        )
    _print_expiry(run, report.to_dict())
    for hold in report.pins:
        run.printer.note(str(hold))
    report.raise_failures()


def _print_expiry(run: Run, told: dict[str, Any]) -> None:
    from frazil.cli.amounts import shown_size

    if run.printer.json_output:
        run.printer.json(told)
        return
    verb = "are expired" if told["done"] else "would be expired"
    size = shown_size(told["bytes"])
    print(f"{len(told['snapshots'])} snapshots {verb}; {told['files']} files ({size}) are referenced only by them")
    if told["done"]:
        print(f"{told['reclaimed_files']} files ({shown_size(told['reclaimed_bytes'])}) are deleted")
    waits = told["waiting"]
    if waits["files"]:
        size, due = shown_size(waits["size"]), shown_size(waits["due_size"])
        print(
            f"{waits['files']} files ({size}) wait to be deleted; the grace period is over for {waits['due']} ({due})"
        )


def orphans(
    run: Run,
    table: TableName,
    older_than: Annotated[
        str | None, typer.Option(metavar="TIME", help="files older than this, such as 3d [default: the policy's]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="delete the files")] = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Find files in a table's folder that nothing references. With --yes, delete them.

    Searches only the table's own folder; ages are measured by the clock of the storage. Exit codes: 3 if some files
    could not be deleted, 12 if another table has, or may have, files there, or if the listing of the folder does not
    include the table's own files.
    """
    from frazil.cli.amounts import seconds
    from frazil.upkeep.expiry import orphans as search_for
    from frazil.upkeep.policy import policy_for
    from frazil.upkeep.runs.open_context import open_context

    if yes and dry_run:
        raise UsageError("--yes and --dry-run exclude each other", hint="give one of them")
    age = None if older_than is None else seconds(older_than)
    if age is not None and age < _YOUNGEST_S:
        raise UsageError(
            f"--older-than {older_than} is too short",
            cause="files of running writers are not referenced by a snapshot yet",
            hint="give 1h or more; the default is 3d",
        )
    removed = None
    with open_context(run.settings(*_SECTIONS), catalog) as care:
        found = care.load(table)
        age = policy_for(care.settings, found).orphan_age_s if age is None else age
        search = search_for.find(care, found, age, dry_run=not yes)
        if yes:
            removed = search_for.remove(care, search)
    _print_orphans(run, search, yes, removed.files if removed else 0, removed.size if removed else 0)
    if removed is not None and removed.error is not None:
        raise PartialError(
            f"{len(removed.left)} orphans could not be deleted", cause=removed.error.message, hint=removed.error.hint
        )


def _print_orphans(run: Run, search: Search, yes: bool, removed: int, removed_size: int) -> None:
    from frazil.cli.amounts import shown_size

    if run.printer.json_output:
        run.printer.json(
            {
                "table": ".".join(search.table.name()),
                "older_than_s": search.age_s,
                "seen": search.seen,
                "orphans": [vars(orphan) for orphan in search.orphans],
                "bytes": search.size,
                "young": search.young,
                "young_bytes": search.young_size,
                "expired": search.listed,
                "unknown": search.unknown,
                "done": yes,
                "removed": removed,
                "removed_bytes": removed_size,
            }
        )
        return
    kinds = {kind: [o for o in search.orphans if o.kind == kind] for kind in sorted({o.kind for o in search.orphans})}
    rows = [[kind, len(some), shown_size(sum(o.size for o in some))] for kind, some in kinds.items()]
    run.printer.rows(["orphans", "files", "size"], rows, none=f"no orphans among {search.seen} files")
    for orphan in search.orphans[:_SHOWN]:
        print(f"  {orphan.written:%Y-%m-%d %H:%M}  {orphan.uri}")
    if len(search.orphans) > _SHOWN:
        print(f"  and {len(search.orphans) - _SHOWN} more: --output json has all")
    others = {
        "not old enough yet": search.young,
        "of expired snapshots, deleted when their grace period is over": search.listed,
        "of other kinds than Iceberg's, which are kept": len(search.unknown),
    }
    for what, count in others.items():
        if count:
            print(f"{count} files {what}")
    if yes:
        print(f"{removed} files ({shown_size(removed_size)}) are deleted")
    elif search.orphans:
        run.printer.note("nothing was deleted; to delete them, run the same command with --yes")


def verify(run: Run, table: TableName, catalog: CatalogOption = None) -> None:
    """Check that every file of every snapshot, branch and tag exists with its size. Changes nothing, needs no JVM.

    Exit code 13 if a file is missing or has another size.
    """
    from frazil.upkeep.expiry.verify import verify as check
    from frazil.upkeep.runs.open_context import open_context

    with open_context(run.settings(*_SECTIONS), catalog) as care:
        verdict = check(care, care.load(table))
    _print_verdict(run, verdict)
    if not verdict.sound:
        count = sum(finding.severity == "error" for finding in verdict.findings)
        raise IntegrityError(
            f"the table {verdict.table} has {'1 fault' if count == 1 else f'{count} faults'}",
            hint=f"restore the files from a backup, or roll back to an intact snapshot: frazil table snapshots {table}",
        )


def _print_verdict(run: Run, verdict: Verdict) -> None:
    from frazil.cli.amounts import shown_size

    if run.printer.json_output:
        run.printer.json(verdict.to_dict())
        return
    print(f"{verdict.snapshots} snapshots, {verdict.refs} refs, {verdict.files} files, {shown_size(verdict.size)}")
    for finding in verdict.findings:
        users = f" (snapshots {', '.join(map(str, finding.snapshots))})" if finding.snapshots else ""
        print(f"{finding.severity}: {finding.uri}: {finding.message}{users}")
    if verdict.sound:
        print("sound")


def pins(run: Run, table: TableName, catalog: CatalogOption = None) -> None:
    """List which snapshots are pinned, by whom (such as a running backup), and until when."""
    from frazil.upkeep.expiry.pins import pins as pins_of
    from frazil.upkeep.runs.open_context import open_context

    with open_context(run.settings(*_SECTIONS), catalog) as care:
        found = [pin.to_dict() for pin in pins_of(care.load(table))]
    columns = ["purpose", "snapshot_id", "until", "tag"]
    run.printer.rows(columns, [[pin[c] for c in columns] for pin in found], none="no pins")
