"""`frazil content views`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.content_read import SECTIONS
from frazil.cli.invocation import CatalogOption, Run
from frazil.errors import UsageError

if TYPE_CHECKING:
    from frazil.content.views import Queries
    from frazil.settings import Settings
    from frazil.tables import TableStore


class DialectChoice(StrEnum):
    spark = "spark"
    duckdb = "duckdb"


def views(
    run: Run,
    sql: Annotated[str | None, typer.Option("--sql", metavar="NAME", help="print the SQL of this view")] = None,
    dialect: Annotated[DialectChoice, typer.Option(help="dialect of the printed SQL")] = DialectChoice.duckdb,
    journal: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="journal or inventory table of S3 Metadata to use instead of Frazil's own [default: content.journal]",
        ),
    ] = None,
    tombstones: Annotated[
        bool, typer.Option("--tombstones", help="include deleted objects and delete markers")
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="create them as Iceberg views, with Spark")] = False,
    catalog: CatalogOption = None,
) -> None:
    """Show the queries that read the tables, with their names and SQL, or create them as views."""
    from frazil.content.coalesced import Dialect, Source
    from frazil.content.names import journal_name, objects_name
    from frazil.content.views import ABOUT, Queries, source_of
    from frazil.tables.store import LazyStore

    if create and sql is not None:
        raise UsageError("--create creates all views and --sql prints one", hint="give one of them")
    settings = run.settings(*SECTIONS)
    if not create and sql is None:
        run.printer.rows(["name", "about"], list(ABOUT.items()))
        return
    with LazyStore(settings, catalog) as opened:
        source = source_of(opened.store(), journal) if journal is not None else Source(journal_name(settings))
        chosen: Dialect = "spark" if create or dialect is DialectChoice.spark else "duckdb"
        queries = Queries(objects_name(settings), source, chosen, tombstones)
        if sql is not None:
            text = queries.text(sql)
            if run.printer.json_output:
                run.printer.json({"name": sql, "dialect": dialect.value, "sql": text})
            else:
                print(text)
            return
        made = _create(run, settings, catalog, opened.store(), queries)
    if run.printer.json_output:
        run.printer.json({"views": made})
    else:
        print("\n".join(f"{name} created" for name in made))


def _create(run: Run, settings: Settings, catalog: str | None, store: TableStore, queries: Queries) -> list[str]:
    from frazil.content.views import create_views, require_views
    from frazil.query.on_spark import spark_errors
    from frazil.spark import spark_session
    from frazil.spark.session import check_ready

    require_views(store, queries.objects)
    check_ready(settings)
    run.printer.note("starting Spark to create the views")
    name = settings.catalog(catalog).name
    with spark_session(settings) as session, spark_errors():
        return create_views(session, name, settings.model.content.namespace, queries)
