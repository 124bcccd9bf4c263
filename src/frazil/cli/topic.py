"""`frazil topic …`."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from frazil.cli import dead_letters
from frazil.cli.invocation import CatalogOption, Run, command, new_app
from frazil.cli.topic_care import adopt, migrate, retain, verify
from frazil.cli.topic_publish import publish
from frazil.cli.topic_read import replay, tail
from frazil.cli.topic_session import DryRun, Session, TopicName, Yes, confirmed, session

if TYPE_CHECKING:
    from frazil.log.access import TopicInfo

app = new_app(
    "Publish to topics, read them, and take care of them. Works with a broker, and without one.",
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
        StorageChoice | None, typer.Option(help="iceberg: log, then table; log: log alone [default: topics.storage]")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="TIME", help="messages older than this may leave the log, such as 7d")
    ] = None,
    keep_size: Annotated[
        str | None, typer.Option(metavar="SIZE", help="beyond this the oldest may leave the log, such as 10GB")
    ] = None,
    exist_ok: Annotated[bool, typer.Option("--exist-ok", help="no error if it is there already")] = False,
) -> None:
    """Create a topic. Publishing does not: a misspelt name would make one."""
    from frazil.cli.amounts import seconds, size

    changes: dict[str, Any] = {}
    if keep is not None:
        changes["retention_age_s"] = seconds(keep)
    if keep_size is not None:
        changes["retention_bytes"] = size(keep_size)
    with session(run) as at:
        chosen = storage.value if storage is not None else at.settings.model.topics.storage
        made = at.access.create_topic(topic, storage=chosen, exist_ok=exist_ok)
        if changes:
            made = at.access.configure(topic, changes)
    if run.printer.json_output:
        run.printer.json(_shown(made))
    else:
        print(f"topic '{topic}' is there, storage {made.storage}")


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
    """Show a topic: its log, its table, sinks and how far they are behind, columns, and subscriptions."""
    from frazil.cli.amounts import shown_size
    from frazil.topics.care.describe import describe_topic

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
    for name, none in (("sinks", "no sinks"), ("columns", "no columns of producers"), ("subscriptions", "")):
        rows = described[name]
        if rows or none:
            print()
            run.printer.rows(list(rows[0]) if rows else [], [list(row.values()) for row in rows], none=none)


@command(app, example="frazil topic delete orders --dry-run")
def delete(
    run: Run,
    topic: TopicName,
    table: Annotated[bool, typer.Option("--table", help="its table too, with all files")] = False,
    force: Annotated[bool, typer.Option("--force", help="also if messages are not in the table yet")] = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    catalog: CatalogOption = None,
) -> None:
    """Delete a topic's log with all its messages. Its table stays, unless --table is given.

    Exit code 12 where --table would delete files that another table refers to, or another catalog shows the same table.
    The files stay where the table is damaged, refers to files outside its folder, or has gc.enabled=false.
    """
    from frazil.errors import NotFoundError

    with session(run, catalog) as at:
        info = next((i for i in at.access.topics() if i.name == topic), None)
        if info is None:
            raise NotFoundError(**_unknown(at, topic))
        if not force:
            _require_deletable(at, info, table)
        left = _require_table_free(at, info) if table and info.storage == "iceberg" else None
        plan = {
            "topic": topic,
            "storage": info.storage,
            "log": f"delete offsets {info.start} to {info.end}, {info.size:,} bytes",
            "table": _planned_for_table(info, table, left),
        }
        with confirmed(run, plan, yes=yes, dry_run=dry_run, what="deleting") as go:
            if go:
                _delete(at, info, with_table=table, purge=left is None)
                run.printer.note(f"topic '{topic}' is deleted" + (f"; {left}" if left else ""))


def _unknown(at: Session, topic: str) -> dict[str, Any]:
    import difflib

    close = difflib.get_close_matches(topic, [i.name for i in at.access.topics()], n=1)
    hint = f"frazil topic delete {close[0]}" if close else "frazil topic list"
    return {"message": f"there is no topic '{topic}' in the {at.access.where}", "hint": hint}


def _planned_for_table(info: TopicInfo, with_table: bool, left: str | None) -> str:
    if left is not None:
        return f"drop; {left}"
    if info.storage == "log":
        return "none: the topic has only its log"
    return "delete, with all its files" if with_table else "keep; a new topic of that name has to adopt it"


def _require_deletable(at: Session, info: TopicInfo, with_table: bool) -> None:
    from frazil.errors import IntegrityError
    from frazil.topics.storage import IcebergStorage, require_all_in_table

    if info.problem is not None:
        raise IntegrityError(
            f"topic '{info.name}' cannot be opened, so nobody knows what is in it",
            cause=info.problem,
            hint=f"frazil topic verify {info.name}, or --force",
        )
    if info.storage == "iceberg" and not with_table:
        require_all_in_table(IcebergStorage(at.access, info.name, at.settings, at.store))


def _require_table_free(at: Session, info: TopicInfo) -> str | None:
    """Requires that no other table is, or refers to, this one, because purging a table deletes all its files.

    Returns:
        Which files are left behind and why: the manifests cannot be read, so that nobody can check the files; or some
        of them may belong to others.
    """
    import threading

    from frazil.errors import IntegrityError, NotFoundError
    from frazil.tables.metadata.locations import filter_own_files
    from frazil.tables.metadata.reachable import find_reachable_files
    from frazil.topics.storage import IcebergStorage
    from frazil.upkeep.care import Care
    from frazil.upkeep.expiry.neighbours import require_sole_owner

    store = at.store.store()
    found = IcebergStorage(at.access, info.name, at.settings, at.store).find_table()
    if found is None:
        return None
    left = f"its files are left in {found.location()}"
    if found.metadata.properties.get("gc.enabled", "true").lower() == "false":
        return f"{left}, because its property gc.enabled is false"
    try:
        files = find_reachable_files(store, found)
    except (IntegrityError, NotFoundError) as error:
        return f"{left}, because they cannot be checked: {error.message}"
    if elsewhere := files.keys() - filter_own_files(found, files):
        return f"{left}, because it refers to files elsewhere, such as {files[min(elsewhere)].uri}"

    def no_spark() -> NoReturn:
        raise AssertionError("checking other tables needs no Spark")

    require_sole_owner(Care(at.settings, store.settings, store, no_spark, threading.Event()), found, files)
    return None


def _delete(at: Session, info: TopicInfo, *, with_table: bool, purge: bool) -> None:
    from frazil.topics.storage import IcebergStorage

    if with_table and info.storage == "iceberg":
        IcebergStorage(at.access, info.name, at.settings, at.store).delete(purge=purge)
    else:
        at.access.delete_topic(info.name)


command(app, example="frazil topic publish orders 'first order' --header source=shop")(publish)
command(app, example="frazil topic tail orders -n 5 --follow")(tail)
command(app, example="frazil topic replay orders --from 2026-01-31T12:00:00Z --follow")(replay)
command(app, example="frazil topic migrate orders --to iceberg")(migrate)
command(app, example="frazil topic retain orders --older-than 7d --dry-run")(retain)
command(app, example="frazil topic adopt orders --rewind --yes")(adopt)
command(app, example="frazil topic verify orders --output json")(verify)
app.add_typer(dead_letters.app, name="dead-letters")
