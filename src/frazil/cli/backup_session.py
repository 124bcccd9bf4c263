"""What the commands of backups share: the repository and its records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, Run

if TYPE_CHECKING:
    from frazil.backup.format import BackedUpTable, BackupRecord
    from frazil.backup.repository import Repository
    from frazil.settings import Settings

SECTIONS = (*CATALOG_SECTIONS, "backup", "spark")

BackupName = Annotated[str, typer.Argument(metavar="BACKUP", help="the backup's name; `latest` is the newest one")]
TableOption = Annotated[
    str | None, typer.Option("--table", metavar="TABLE", help="only this table of the backup, as namespace.table")
]


def settings_of(run: Run) -> Settings:
    return run.settings(*SECTIONS)


def find_record(repository: Repository, name: str) -> BackupRecord:
    """`selection.find_record`, imported when it is needed."""
    from frazil.backup import selection

    return selection.find_record(repository, name)


def find_tables_of(repository: Repository, record: BackupRecord, name: str | None) -> list[BackedUpTable]:
    """Returns the tables of a backup, or the one of this name; the error names the newest other backup that has it."""
    from frazil.backup.format import BackupRecord
    from frazil.backup.selection import find_tables, has_table
    from frazil.errors import NotFoundError

    try:
        return find_tables(record, name)
    except NotFoundError as error:
        records = [one for one in repository.list_records() if isinstance(one, BackupRecord)]
        others = [one.name for one in records if name is not None and has_table(one, name)]
        if not others:
            raise
        raise NotFoundError(error.message, hint=f"backup '{others[-1]}' has it: frazil backup list {name}") from None


def shown_root(repository: Repository) -> str:
    """Where the repository is; a folder as a path that can be typed."""
    return repository.root.removeprefix("file://")


def name_of(table: BackedUpTable) -> str:
    return ".".join(table.identifier)


def totals(record: BackupRecord) -> dict[str, int]:
    """The sums over all tables of a backup."""
    names = ("snapshots", "files", "bytes", "new_files", "new_bytes", "metadata_bytes")
    return {name: sum(getattr(table, name) for table in record.tables) for name in names}
