"""`frazil config show|check`."""

from __future__ import annotations

from typing import Annotated

import typer

from frazil.cli.invocation import Run, command, new_app

app = new_app("Show and validate the settings.", example="frazil config show")


@command(app, example="frazil config show catalog")
def show(
    run: Run, key: Annotated[str | None, typer.Argument(help="a section or a setting [default: all]")] = None
) -> None:
    """Print every setting with its value and its source. Secrets are masked."""
    from frazil.settings import SettingsModel
    from frazil.settings.show import rows

    settings = run.settings(*([key.split(".")[0]] if key else SettingsModel.model_fields))
    table = [[row.key, row.value, row.source] for row in rows(settings, key)]
    run.printer.rows(["key", "value", "source"], table, none=f"no setting under {key} has a value")


@command(app, example="frazil config check --config prod.yaml")
def check(run: Run) -> None:
    """Read all sources and report whether they are valid, and which of them contradict or override others."""
    settings = run.settings()
    sources = settings.sources()
    notices = [notice.text for notice in settings.notices]
    if run.printer.json_output:
        run.printer.json({"valid": True, "sources": sources, "notices": notices})
        return
    print("the settings are valid")
    print(f"from: {', '.join(sources) or 'defaults only'}")
    for notice in notices:
        print(f"note: {notice}")
