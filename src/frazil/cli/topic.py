"""`frazil topic …`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from frazil.cli import dead_letters
from frazil.cli.invocation import CatalogOption, Run, command, new_app
from frazil.cli.topic_care import adopt, migrate, retain, verify
from frazil.cli.topic_publish import publish
from frazil.cli.topic_read import replay, tail
from frazil.cli.topic_session import DryRun, TopicName, Yes, confirmed, session

if TYPE_CHECKING:
    from frazil.log.protocol import TopicInfo

app = new_app(
    "Publish to, read and administer topics. Works with and without a broker.",
    example="frazil topic publish orders 'first order'",
)


class StorageChoice(StrEnum):
    iceberg = "iceberg"
    log = "log"


@command(app, example="frazil topic create orders --storage iceberg")
def create(
    run: Run,
    topic: TopicName,
    storage: Annotated[
        StorageChoice | None, typer.Option(help="iceberg: log, then table; log: only the log [default: topics.storage]")
    ] = None,
    keep: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="retention: remove messages older than this from the log, such as 7d"),
    ] = None,
    keep_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="retention: remove the oldest messages beyond this size from the log, such as 10GB"
        ),
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="do not fail if the topic exists")] = False,
) -> None:
    """Create a topic. Publishing does not create topics, so that a misspelt name is an error."""
    from frazil.cli.amounts import seconds, size
    from frazil.topics.admin.create import create_topic

    age = None if keep is None else seconds(keep)
    most = None if keep_size is None else size(keep_size)
    with session(run) as at:
        made = create_topic(
            at.access,
            at.settings,
            topic,
            storage=None if storage is None else storage.value,
            retention_age_s=age,
            retention_bytes=most,
            exist_ok=exist_ok,
        )
    if run.printer.json_output:
        run.printer.json(_shown(made))
    else:
        print(f"topic '{topic}' exists, storage {made.storage}")


@command(app, "list", example="frazil topic list --output json")
def list_(run: Run) -> None:
    """List the topics."""
    from frazil.cli.amounts import shown_size

    with session(run) as at:
        found = at.access.topics()
    if run.printer.json_output:
        run.printer.json([_shown(info) for info in found])
        return
    rows = [[i.name, i.storage, i.start, i.end, shown_size(i.size), _lag(i), i.problem or i.refuses] for i in found]
    columns = ["topic", "storage", "start", "end", "size", "lag", "problem"]
    if not any(info.problem or info.refuses for info in found):
        columns, rows = columns[:-1], [row[:-1] for row in rows]
    run.printer.rows(columns, rows, none="no topics: frazil topic create NAME")


def _shown(info: TopicInfo) -> dict[str, Any]:
    described = info.to_dict()
    del described["schema"]  # for Python clients, which come by Flight
    return described


def _lag(info: TopicInfo) -> str:
    return ", ".join(f"{s}: {'unknown' if o is None else info.end - o}" for s, o in info.sinks.items()) or "-"


@command(app, example="frazil topic show orders")
def show(run: Run, topic: TopicName, catalog: CatalogOption = None) -> None:
    """Show a topic: its log, table, sinks with their lag, columns and subscriptions."""
    from frazil.cli.amounts import shown_size
    from frazil.topics.admin.describe import describe_topic

    with session(run, catalog) as at:
        described = describe_topic(at.access, at.settings, topic, at.store)
    if run.printer.json_output:
        run.printer.json(described)
        return
    log, table = described["log"], described["table"]
    run.printer.record({"topic": topic, "storage": described["storage"], **log, "size": shown_size(log["size"])})
    print()
    if table is None:
        print("(no table)")
    else:
        run.printer.record({**table, "size": shown_size(table["size"])})
    for name, none in (("sinks", "no sinks"), ("columns", "no producer columns"), ("subscriptions", "")):
        rows = described[name]
        if rows or none:
            print()
            run.printer.rows(list(rows[0]) if rows else [], [list(row.values()) for row in rows], none=none)


@command(app, example="frazil topic delete orders --dry-run")
def delete(
    run: Run,
    topic: TopicName,
    table: Annotated[bool, typer.Option("--table", help="also delete its table with all files")] = False,
    force: Annotated[bool, typer.Option("--force", help="delete even if messages are not in the table yet")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Delete a topic's log with all its messages. Its table stays, unless --table is given.

    Exit code 12 if --table would delete files that another table references, or if another catalog has the same table.
    The files are kept if the table is damaged, references files outside its folder, or has gc.enabled=false.
    """
    from frazil.upkeep.topic_deletion import delete_topic, plan_topic_deletion

    with session(run, catalog) as at:
        planned = plan_topic_deletion(at.access, at.settings, at.store, topic, with_table=table, force=force)
        with confirmed(run, planned.to_dict(), yes=yes, dry_run=dry_run, what="deleting") as go:
            if go:
                delete_topic(at.access, at.settings, at.store, planned)
                run.printer.note(f"topic '{topic}' is deleted" + (f"; {planned.left}" if planned.left else ""))


command(app, example="frazil topic publish orders 'first order' --header source=shop")(publish)
command(app, example="frazil topic tail orders -n 5 --follow")(tail)
command(app, example="frazil topic replay orders --from 2026-01-31T12:00:00Z --follow")(replay)
command(app, example="frazil topic migrate orders --to iceberg")(migrate)
command(app, example="frazil topic retain orders --older-than 7d --dry-run")(retain)
command(app, example="frazil topic adopt orders --rewind --yes")(adopt)
command(app, example="frazil topic verify orders --output json")(verify)
app.add_typer(dead_letters.app, name="dead-letters")
