"""`frazil doctor`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, command, new_app

if TYPE_CHECKING:
    from frazil.doctor import Check

app = new_app("Check this machine and the services that the settings name.")


@command(app, example="frazil doctor --no-spark --output json")
def doctor(
    run: Run,
    catalog: CatalogOption = None,
    spark: Annotated[bool, typer.Option(help="also start Spark, which takes some seconds")] = True,
) -> None:
    """Check Java, jars, Spark, catalog, storage, bucket, backups, disk, log, privacy and clock.

    Exit code 1 if a check failed.
    """
    from frazil.doctor import examine

    settings = run.settings(*CATALOG_SECTIONS)
    checks = []
    for check in examine(settings, catalog=catalog, spark=spark):
        checks.append(check)
        if not run.printer.json_output:
            _print(check)
    if run.printer.json_output:
        run.printer.json({"ok": all(c.ok for c in checks), "checks": [c.to_dict() for c in checks]})
    if not all(c.ok for c in checks):
        raise typer.Exit(1)


def _print(check: Check) -> None:
    mark = "ok    " if check.ok else "failed"
    if sys.stdout.isatty():
        mark = f"\x1b[{'32' if check.ok else '31'}m{mark}\x1b[0m"
    print(f"{mark}  {check.name:<8} {check.detail}  ({check.seconds:.1f} s)", flush=True)
    if check.hint:
        print(f"                 Try: {check.hint}", flush=True)
