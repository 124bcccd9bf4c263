"""What the commands of replicas share: which tables are meant, the catalog that a command names, and the output."""

from __future__ import annotations

import atexit
import shutil
import tempfile
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from frazil.cli.invocation import CATALOG_SECTIONS, Run
from frazil.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from frazil.replica.config import ReplicaConfig
    from frazil.settings import Settings
    from frazil.upkeep.context import UpkeepContext

SECTIONS = (*CATALOG_SECTIONS, "replica", "spark")
#: Missing files that text shows; JSON has more.
SHOWN = 10


class Level(StrEnum):
    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class Mode(StrEnum):
    metadata = "metadata"
    data_files = "data-files"


Tables = Annotated[list[str] | None, typer.Argument(metavar="TABLE…", help="namespace.table, one or several")]
LogLevel = Annotated[Level | None, typer.Option("--log-level", case_sensitive=False, help="what is logged, to stderr")]
ReplicatedPath = Annotated[
    str | None,
    typer.Option(metavar="URI", help="folder that the storage was copied to: that of the table, or one above it"),
]
Warehouse = Annotated[
    str | None, typer.Option(metavar="URI", help="where relocated metadata goes, outside the replicated path")
]
Namespace = Annotated[
    str | None, typer.Option("--database", "--namespace", metavar="NAME", help="namespace of the table")
]
TableInNamespace = Annotated[str | None, typer.Option("--table", metavar="NAME", help="the table in --database")]
ReplicaCatalog = Annotated[
    str | None,
    typer.Option(
        "--catalog",
        help="name of the replica's catalog; one that no setting defines is an embedded catalog in the warehouse",
    ),
]
SourcePrefix = Annotated[
    list[str] | None,
    typer.Option(metavar="FROM=TO", help="a prefix of paths in the source's metadata, and where it landed; repeatable"),
]
WitnessedOnly = Annotated[
    bool, typer.Option("--witnessed-only", help="serve only versions that are proven to be committed")
]
CurrentOnly = Annotated[
    bool, typer.Option("--current-only", help="without history, branches and tags: what Nessie can hold")
]
ModeOption = Annotated[
    Mode | None, typer.Option("--mode", help="data-files: bare Parquet files become a table, by their footers")
]
PartitionBy = Annotated[
    list[str] | None,
    typer.Option(metavar="TERM", help="data-files: partitioning of a new table, such as day(ts); repeatable"),
]
PruneMissing = Annotated[
    bool, typer.Option("--prune-missing", help="data-files: take files out of the table that are gone")
]
All = Annotated[bool, typer.Option("--all", help="all tables below --replicated-path; without it, all of the settings")]


@dataclass(frozen=True)
class Choice:
    """What the options of a command say about its tables."""

    tables: list[str] | None = None
    namespace: str | None = None
    table: str | None = None
    catalog: str | None = None
    replicated_path: str | None = None
    warehouse: str | None = None
    source_prefixes: list[str] | None = None
    mode: Mode | None = None
    partition: list[str] | None = None
    is_all: bool = False
    witnessed_only: bool = False
    current_only: bool = False
    prune_missing: bool = False

    @property
    def names(self) -> list[str]:
        """The tables by name.

        Raises:
            UsageError: they are named in two ways, or by halves.
        """
        if self.table is not None:
            if self.namespace is None and "." not in self.table:
                raise UsageError(f"--table {self.table} needs --database", hint=f"--database NAME --table {self.table}")
            return [*(self.tables or []), f"{self.namespace}.{self.table}" if self.namespace else self.table]
        if self.namespace is not None:
            raise UsageError(f"--database {self.namespace} needs --table", hint="--table NAME; or --all")
        return list(dict.fromkeys(self.tables or []))


def with_log_level(run: Run, level: Level | None) -> Run:
    return run if level is None else replace(run, set_=(*run.set_, f"logging.level={level.value}"))


def load(run: Run, choice: Choice, *, missing: Literal["create", "refuse", "imagine"]) -> tuple[Settings, Choice]:
    """Loads the settings; adds an embedded catalog, where `--catalog` names one that they do not define.

    Args:
        run: with the common options.
        choice: what the command says. The warehouse of the result is outside the replicated path.
        missing: what to do where an embedded catalog does not exist yet; `imagine` takes an empty one instead.

    Raises:
        NotFoundError: the catalog is not defined, and there is no warehouse; or it does not exist yet.
        UsageError: no place for relocated metadata is known beside the replicated path.
    """
    from frazil.replica.config import BESIDE, embed_catalog, move_beside

    settings = run.settings(*SECTIONS)
    choice = replace(choice, warehouse=_absolute(choice.warehouse), replicated_path=_absolute(choice.replicated_path))
    given, path = choice.warehouse, choice.replicated_path or settings.model.replica.replicated_path
    place = given or settings.model.replica.warehouse
    is_known = choice.catalog is None or choice.catalog in settings.catalog_names()
    if place is not None and path is not None and (moved := move_beside(path, place)) != place:
        run.printer.note(f"note: {place} is in the replicated path, which is never written to; {moved} is used instead")
        place = moved
    if is_known:
        return settings, replace(choice, warehouse=place if given is not None else None)
    assert choice.catalog is not None
    if place is None:
        settings.catalog(choice.catalog)  # raises
        raise AssertionError(choice.catalog)
    if missing == "refuse" and path is None and (beside := Path(f"{place.rstrip('/')}{BESIDE}")).is_dir():
        place = str(beside)  # where a sync put it whose warehouse was the replicated path
    settings = embed_catalog(settings, choice.catalog, place)
    catalog = settings.catalog(choice.catalog)
    if missing != "create" and not (file := Path((catalog.uri or "").removeprefix("sqlite:///"))).is_file():
        if missing == "refuse":
            raise NotFoundError(
                f"there is no embedded catalog in {place}",
                cause=f"{file} does not exist",
                hint="the same --catalog, --warehouse and --replicated-path as for `frazil replica sync`",
            )
        return _imagine(settings, catalog.name), replace(choice, warehouse=place)
    run.printer.note(
        f"note: no setting defines the catalog '{catalog.name}': an embedded one is used, {catalog.uri} "
        f"with its tables in {place}"
    )
    return settings, replace(choice, warehouse=place)


def _absolute(place: str | None) -> str | None:
    """A folder by its whole path: it goes into metadata."""
    return place if place is None or ":" in place.partition("/")[0] else str(Path(place).expanduser().absolute())


def _imagine(settings: Settings, name: str) -> Settings:
    """Returns the settings with an empty embedded catalog of this name, so that a plan creates none."""
    folder = tempfile.mkdtemp(prefix="frazil-plan-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    model = settings.model
    catalog = model.catalogs[name].model_copy(update={"uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder})
    return replace(settings, model=model.model_copy(update={"catalogs": {**model.catalogs, name: catalog}}))


def find_configs(settings: Settings, choice: Choice, care: UpkeepContext | None = None) -> list[ReplicaConfig]:
    """Returns how the chosen tables are replicated.

    Args:
        settings: all of them.
        choice: what the command says.
        care: of the catalog, for `--all` below a replicated path.

    Raises:
        UsageError: no table is named, or not what is needed for one.
        NotFoundError: there is no such table in the settings, or none below the replicated path.
    """
    from frazil.replica.config import discover_tables, list_configs, resolve_config
    from frazil.replica.many import open_files

    path, names = choice.replicated_path, choice.names
    if choice.is_all and names:
        raise UsageError("--all and tables are given", hint="one of the two")
    if not choice.is_all and not names:
        raise UsageError(
            "no table is named", hint="frazil replica sync sales.orders --replicated-path URI; or --all for all tables"
        )
    if choice.is_all and path is None:
        return [_apply(config, choice) for config in list_configs(settings)]
    if choice.is_all:
        assert care is not None
        assert path is not None
        found = [(name, _root_of(path, name, folder)) for name, folder in discover_tables(open_files(care, path))]
    else:
        found = [(name, path or "") for name in names]
    return [
        _apply(
            resolve_config(
                settings, name, catalog=choice.catalog, replicated_path=folder or None, warehouse=choice.warehouse
            ),
            choice,
        )
        for name, folder in found
    ]


def _root_of(path: str, name: str, folder: str) -> str:
    """The replicated path, as a command for this table alone would name it; else the folder of the table."""
    namespace, _, table = name.rpartition(".")
    is_usual = folder.endswith((f"/{namespace.replace('.', '/')}/{table}", f"/{namespace}.db/{table}"))
    return path if is_usual else folder


def _apply(config: ReplicaConfig, choice: Choice) -> ReplicaConfig:
    changes = {
        "source_prefixes": tuple(_split_prefix(text) for text in choice.source_prefixes or ()),
        "partition": tuple(choice.partition or ()),
        "witnessed_only": choice.witnessed_only,
        "current_only": choice.current_only,
        "prune_missing": choice.prune_missing,
        "mode": choice.mode and choice.mode.value,
    }
    found = replace(config, **{name: value for name, value in changes.items() if value})  # type: ignore[arg-type]
    if found.mode == "metadata" and (found.partition or found.prune_missing):
        raise UsageError(
            f"{found.name} is replicated by its metadata, which says how it is partitioned and which files it has",
            hint="--partition-by and --prune-missing are for --mode data-files",
        )
    return found


def _split_prefix(text: str) -> tuple[str, str]:
    source, sign, target = text.partition("=")
    if not (source and sign and target):
        raise UsageError(f"'{text}' is not a prefix map", hint="FROM=TO, such as s3://prod/warehouse=/ifs/dr/warehouse")
    return source, target
