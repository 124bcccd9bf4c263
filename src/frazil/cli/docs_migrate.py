"""`frazil docs migrate|verify`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli.docs_session import SECTIONS, opened_store, progress
from frazil.cli.invocation import Run
from frazil.cli.topic_session import DryRun, Yes, confirmed
from frazil.errors import IntegrityError, mask_urls

if TYPE_CHECKING:
    from frazil.documents.migration import MigrationPlan, MigrationReport

Place = "sqlite, mysql, postgresql or iceberg, as the settings or defaults say where; or a URL"


def migrate(
    run: Run,
    from_: Annotated[str, typer.Option("--from", metavar="STORE", help=f"the source: {Place}")],
    to: Annotated[str, typer.Option("--to", metavar="STORE", help="the target, likewise")],
    yes: Yes = False,
    dry_run: DryRun = False,
) -> None:
    """Copy all documents with their history to another store, and verify that both are the same.

    The source is only read. The target is empty, or has a part of the same: what was interrupted goes on when it is
    repeated, and a repetition copies what is new in the source since then. Nothing is reported as done before counts
    and hashes over all documents and all revisions are equal.
    """
    from frazil.documents.migration import plan_migration, run_migration
    from frazil.documents.migration_stores import open_present, open_source, resolve_stores
    from frazil.documents.open import open_store

    settings = run.settings(*SECTIONS)
    source_url, target_url = resolve_stores(settings, from_, to)
    names = (mask_urls(from_), mask_urls(to))
    with open_source(settings, source_url) as source, progress(run, "compare", "copy", "verify") as show:
        with open_present(settings, target_url) as present:
            plan = plan_migration(source, present, names, show)
        shown = plan.to_dict() if run.printer.json_output else _shown(plan)
        with confirmed(run, shown, yes=yes, dry_run=dry_run, what="a migration") as go:
            if not go:
                return
            with open_store(settings, target_url) as target:
                report = run_migration(source, target, plan, show)
            shown |= report.to_dict()
            if not run.printer.json_output:
                _print_report(report, names[1])


def _shown(plan: MigrationPlan) -> dict[str, Any]:
    from frazil.cli.amounts import shown_size

    shown: dict[str, Any] = {
        "from": plan.source,
        "to": plan.target,
        "documents": f"{plan.documents:,} ({shown_size(plan.size_bytes)}), with their history",
        "in the target": f"{plan.present:,} revisions, all as in the source" if plan.present else "nothing",
    }
    if plan.after is not None:
        shown["continues after"] = plan.after
    if plan.columns:
        shown["columns to add"] = ", ".join(f"{column.name} {column.type}" for column in plan.columns)
    return shown


def _print_report(report: MigrationReport, to: str) -> None:
    documents, revisions = report.fingerprint.documents, report.fingerprint.revisions
    print(f"\n{report.loaded:,} revisions were copied")
    print(f"verified: {documents.count:,} documents, hash {documents.hash:032x}")
    print(f"          {revisions.count:,} revisions, hash {revisions.hash:032x}")
    print(f"Both stores are the same. To use the new one, set database.url to {to!r}")


def verify(run: Run) -> None:
    """Check that the parts of the store agree: documents, their history, statistics; on Iceberg also table and log.

    Exit code 13 where they do not.
    """
    with opened_store(run) as store, progress(run, "verify") as show:
        report = store.verify(lambda count: show("verify", count))
    if run.printer.json_output:
        run.printer.json(report.to_dict())
    else:
        print(f"{report.documents:,} documents, {report.revisions:,} revisions")
        for finding in report.findings:
            print(f"error: {finding}")
        if report.is_sound:
            print("sound")
    if not report.is_sound:
        count = len(report.findings)
        raise IntegrityError(
            f"the store has {'1 fault' if count == 1 else f'{count} faults'}", hint="restore it from a backup"
        )
