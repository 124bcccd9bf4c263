"""`frazil config show|check`."""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli.common import Run, command, new_app

app = new_app("Show and check the settings.")


@command(app, example="frazil config show catalog")
def show(run: Run, key: Annotated[str | None, typer.Argument(help="a section or a setting [default: all]")] = None) -> None:
    """Print every setting with its value and where it comes from. Secrets are masked."""
    from frazil.settings.show import rows

    settings = run.settings("catalog", "catalogs", "s3", "database", "backup", "home")
    run.printer.rows(["key", "value", "source"], [[r.key, r.value, r.source] for r in rows(settings, key)])


@command(app, example="frazil config check --config prod.yaml")
def check(run: Run) -> None:
    """Read all sources and say whether they are valid; report what contradicts or overrides another."""
    from frazil.settings.sources import Layer

    settings = run.settings()
    used = sorted({o.layer for o in settings.origins.values()} - {Layer.DEFAULT})
    report = {"valid": True, "sources": [layer.name.lower() for layer in used], "notices": [n.text for n in settings.notices]}
    if run.printer.json_output:
        run.printer.json(report)
        return
    print("the settings are valid" + (f"; they come from: {', '.join(report['sources'])}" if used else "; all are defaults"))  # type: ignore[arg-type]
    for notice in settings.notices:
        print(f"note: {notice.text}")
