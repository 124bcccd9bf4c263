"""`frazil docs schema …`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from frazil.cli.docs_session import opened_store
from frazil.cli.invocation import Run, command, new_app

app = new_app("Show the fields of documents, and add columns.", example="frazil docs schema add-column pages long")


class ColumnTypeChoice(StrEnum):
    string = "string"
    long = "long"
    double = "double"
    boolean = "boolean"
    timestamp = "timestamp"


@command(app, example="frazil docs schema show")
def show(run: Run) -> None:
    """Show all fields with their types: those of every store, and the columns that were added to this one."""
    from frazil.documents.arrow import DOCUMENT_SCHEMA

    with opened_store(run) as store:
        columns = store.columns()
    names = {"large_string": "string", "int64": "long", "map<string, string>": "map"}
    rows = []
    for field in DOCUMENT_SCHEMA:
        kind = str(field.type)
        kind = "json" if field.name == "attributes" else "timestamp" if kind.startswith("timestamp") else kind
        rows.append([field.name, names.get(kind, kind), False])
    rows += [[column.name, column.type, True] for column in columns.values()]
    run.printer.rows(["field", "type", "added"], rows)


@command(app, "add-column", example="frazil docs schema add-column pages long")
def add_column(
    run: Run,
    name: Annotated[str, typer.Argument(metavar="NAME", help="lower-case letters, digits and '_'")],
    kind: Annotated[ColumnTypeChoice, typer.Argument(metavar="TYPE", help="string, long, double, boolean, timestamp")],
) -> None:
    """Add a metadata column to the live store. No data is rewritten, and clients that do not know it keep working."""
    with opened_store(run) as store:
        column = store.add_column(name, kind.value)
    if run.printer.json_output:
        run.printer.json({"field": column.name, "type": column.type, "added": True})
    else:
        print(f"column '{column.name}' of type {column.type} exists")
