"""`frazil table`: list, show, snapshots, files, history; and what the modules `table_…` have."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from frazil.cli import table_care, table_expire, table_rewrite
from frazil.cli.invocation import CATALOG_SECTIONS, CatalogOption, Run, TableName, command, new_app

if TYPE_CHECKING:
    from pyiceberg.table import Table

T = TypeVar("T")

app = new_app("List, inspect and maintain tables.", example="frazil table list")

_SNAPSHOT_COLUMNS = {
    "snapshot_id": "snapshot_id",
    "committed_at": "committed_at",
    "operation": "operation",
    "added": "added_rows",
    "removed": "removed_rows",
    "total": "total_rows",
    "refs": "refs",
}


def _look(run: Run, name: str, catalog: str | None, ask: Callable[[Table], T]) -> T:
    """What `ask` finds in a table; errors of its files come out in our words too."""
    from frazil.catalogs import load_table, open_catalog, translated

    settings = run.settings(*CATALOG_SECTIONS)
    chosen = settings.catalog(catalog)
    with translated(chosen):
        return ask(load_table(open_catalog(chosen, settings.model.network), chosen, name))


@command(app, "list", example="frazil table list demo --output json")
def list_(
    run: Run,
    namespace: Annotated[str | None, typer.Argument(help="only this namespace")] = None,
    catalog: CatalogOption = None,
) -> None:
    """List the tables of a catalog."""
    from frazil.catalogs import list_tables, open_catalog

    settings = run.settings(*CATALOG_SECTIONS)
    chosen = settings.catalog(catalog)
    found = list_tables(open_catalog(chosen, settings.model.network), chosen, namespace)
    rows = [[".".join(t[:-1]), t[-1]] for t in found]
    run.printer.rows(["namespace", "table"], rows, none=f"no tables in catalog '{chosen.name}'")


@command(app, example="frazil table show demo.photos")
def show(run: Run, table: TableName, catalog: CatalogOption = None) -> None:
    """Show a table: its columns, partitioning, location, size and properties."""
    from frazil.catalogs.describe import describe

    described = _look(run, table, catalog, describe)
    if run.printer.json_output:
        run.printer.json(described)
        return
    columns = described.pop("columns")
    properties = described.pop("properties")
    run.printer.record(described)
    print()
    run.printer.rows(["id", "column", "type", "required", "doc"], [list(c.values()) for c in columns])
    if properties:
        print()
        run.printer.rows(["property", "value"], sorted(properties.items()))


@command(app, example="frazil table snapshots demo.photos")
def snapshots(run: Run, table: TableName, catalog: CatalogOption = None) -> None:
    """List a table's snapshots, oldest first, with what each added and removed."""
    from frazil.catalogs.describe import snapshot_rows

    rows = _look(run, table, catalog, snapshot_rows)
    if not run.printer.json_output:  # what fits a screen; JSON has the rest
        rows = [{name: row[key] for name, key in _SNAPSHOT_COLUMNS.items()} for row in rows]
    _print(run, rows, none="no snapshots: nothing has been written yet")


@command(app, example="frazil table history demo.photos")
def history(run: Run, table: TableName, catalog: CatalogOption = None) -> None:
    """Show which snapshot was current when. A rollback appears as an older snapshot that became current again."""
    from frazil.catalogs.describe import history_rows

    _print(run, _look(run, table, catalog, history_rows), none="no history: nothing has been written yet")


@command(app, example="frazil table files demo.photos --snapshot 4358109269873137077")
def files(
    run: Run,
    table: TableName,
    snapshot: Annotated[int | None, typer.Option(help="as of this snapshot [default: the current one]")] = None,
    catalog: CatalogOption = None,
) -> None:
    """List the data and delete files of a snapshot."""
    from frazil.catalogs.describe import file_rows

    _print(run, _look(run, table, catalog, lambda found: file_rows(found, snapshot)), none="no files")


def _print(run: Run, rows: list[dict[str, object]], none: str) -> None:
    columns = list(rows[0]) if rows else []
    run.printer.rows(columns, [list(row.values()) for row in rows], none=none)


command(app, example="frazil table health demo.photos --policy")(table_care.health)
command(app, example="frazil table expire demo.photos --older-than 7d --dry-run")(table_expire.expire)
command(app, example="frazil table orphans demo.photos --yes")(table_expire.orphans)
command(app, example="frazil table verify demo.photos")(table_expire.verify)
command(app, example="frazil table pins demo.photos")(table_expire.pins)
command(app, example="frazil table compact demo.photos --dry-run")(table_rewrite.compact)
command(app, example="frazil table manifests demo.photos")(table_rewrite.manifests)
command(app, example="frazil table stats demo.photos --column name")(table_rewrite.stats)
app.add_typer(table_rewrite.partition_app, name="partition")
