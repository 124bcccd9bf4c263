"""Puts the assignments of all sources together: who wins, what is said aloud, and the typed result."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from pydantic import ValidationError

from frazil.errors import ConfigError, NotFoundError, UsageError
from frazil.settings import ambient, keys
from frazil.settings.masking import masked
from frazil.settings.model import CatalogSettings, S3Settings, SettingsModel
from frazil.settings.sources import (
    CONFIG_VARIABLE,
    DEFAULT_ORIGIN,
    Assignment,
    Layer,
    Origin,
    PyIcebergCatalogs,
    find_project_file,
    from_environment,
    from_file,
    from_flags,
    from_pyiceberg,
)


@dataclass(frozen=True)
class Notice:
    """Something about the sources that a user should know: the section it concerns, and one sentence."""

    section: str
    text: str


@dataclass(frozen=True)
class Settings:
    """The settings in force, and where each came from."""

    model: SettingsModel
    origins: dict[keys.Path, Origin] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()

    def origin(self, path: keys.Path) -> Origin:
        return self.origins.get(path, DEFAULT_ORIGIN)

    def catalog(self, name: str | None = None) -> CatalogSettings:
        """A catalog by name, complete: embedded defaults filled in, S3 access of its own or the common one.

        Raises:
            NotFoundError: no catalog has that name.
        """
        if name is None or name == self.model.catalog.name:
            found = self.model.catalog
        elif name in self.model.catalogs:
            found = self.model.catalogs[name].model_copy(update={"name": name})
        else:
            names = ", ".join(self.catalog_names())
            raise NotFoundError(f"no catalog is named '{name}'", hint=f"one of: {names}; or add catalogs.{name} to frazil.yaml")
        return _completed(found, self.model)

    def catalog_names(self) -> list[str]:
        return sorted({self.model.catalog.name, *self.model.catalogs})


def _completed(catalog: CatalogSettings, model: SettingsModel) -> CatalogSettings:
    kind = catalog.resolved_kind
    update: dict[str, Any] = {"kind": kind, "s3": catalog.s3 or model.s3}
    if kind == "sql":
        update["uri"] = catalog.uri or f"sqlite:///{model.home / 'catalog.db'}"
        update["warehouse"] = catalog.warehouse or str(model.home / "warehouse")
    if kind == "glue":
        update["uri"] = None
    return catalog.model_copy(update=update)


def load_settings(
    *,
    flags: Mapping[str, str] | None = None,
    config: FilePath | None = None,
    environ: Mapping[str, str] | None = None,
    folder: FilePath | None = None,
) -> Settings:
    """Reads every source once.

    Args:
        flags: settings given on the command line, dotted.
        config: the project file, where the user named one.
        environ: instead of the process's environment.
        folder: instead of the current folder, to look for the project file from.
    """
    environ = os.environ if environ is None else environ
    folder = folder or FilePath.cwd()
    found = [*from_flags(flags or {}), *from_environment(environ)]
    if (project := _project_file(config, environ, folder)) is not None:
        found += from_file(project, Layer.PROJECT)
    if (user := ambient.user_file()).is_file():
        found += from_file(user, Layer.USER)
    pyiceberg = from_pyiceberg(environ, _pyiceberg_folders(environ, folder))
    found += _pyiceberg_catalogs(pyiceberg)
    notices = _adopt_pyiceberg(found, pyiceberg)
    chosen, contradictions = _choose(found)
    notices += contradictions + _announcements(chosen, found)
    model = _validated(chosen)
    return Settings(model, {a.path: a.origin for a in chosen}, tuple(notices))


def _project_file(config: FilePath | None, environ: Mapping[str, str], folder: FilePath) -> FilePath | None:
    named = config or (FilePath(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if named is None:
        return find_project_file(folder)
    if not named.is_file():
        raise UsageError(f"there is no settings file {named}", hint="look at --config and FRAZIL_CONFIG")
    return named.absolute()


def _pyiceberg_folders(environ: Mapping[str, str], folder: FilePath) -> list[FilePath]:
    home = environ.get("PYICEBERG_HOME")
    return [*([FilePath(home)] if home else []), FilePath.home(), folder]


def _pyiceberg_catalogs(found: PyIcebergCatalogs) -> list[Assignment]:
    return [_below(a, ("catalogs", name)) for name, entries in found.assignments.items() for a in entries]


def _below(assignment: Assignment, prefix: keys.Path) -> Assignment:
    return Assignment((*prefix, *assignment.path), assignment.value, assignment.origin, assignment.rank, assignment.family)


def _adopt_pyiceberg(found: list[Assignment], pyiceberg: PyIcebergCatalogs) -> list[Notice]:
    """Lets a catalog of PyIceberg be the default one, where it is named or nothing else says what the default is."""
    own = [a for a in found if a.path[0] == "catalog"]
    named = min((a for a in own if a.path == ("catalog", "name")), key=_strength, default=None)
    name = str(named.value) if named else (None if own else pyiceberg.only_or_default())
    if name is None or name not in pyiceberg.assignments:
        if not own and len(pyiceberg.assignments) > 1:
            names = ", ".join(sorted(pyiceberg.assignments))
            return [Notice("catalog", f"PyIceberg knows the catalogs {names}; none is used unless you choose it with --catalog")]
        return []
    entries = pyiceberg.assignments[name]
    found += [_below(a, ("catalog",)) for a in entries]
    if named:
        return []
    found.append(Assignment(("catalog", "name"), name, entries[0].origin, rank=500, family="pyiceberg"))
    return [Notice("catalog", f"the catalog '{name}' comes from PyIceberg's configuration ({entries[0].origin})")]


def _strength(assignment: Assignment) -> tuple[int, int]:
    return assignment.origin.layer, assignment.rank


def _choose(found: list[Assignment]) -> tuple[list[Assignment], list[Notice]]:
    by_path: dict[keys.Path, list[Assignment]] = {}
    for assignment in sorted(found, key=_strength):
        by_path.setdefault(assignment.path, []).append(assignment)
    chosen: list[Assignment] = []
    notices: list[Notice] = []
    for path, candidates in _keep_pairs(by_path).items():
        winner = candidates[0]
        chosen.append(winner)
        notices += _contradictions(path, winner, candidates[1:])
    return chosen, notices


def _keep_pairs(by_path: dict[keys.Path, list[Assignment]]) -> dict[keys.Path, list[Assignment]]:
    """A secret must come from where its access key came from: half of one pair with half of another opens nothing."""
    kept = dict(by_path)
    for path, candidates in by_path.items():
        if path[-2:] != ("s3", "access_key"):
            continue
        family = candidates[0].family
        for other in ("secret_key", "session_token"):
            of_family = [a for a in by_path.get((*path[:-1], other), ()) if a.family == family]
            kept.pop((*path[:-1], other), None)
            if of_family:
                kept[*path[:-1], other] = of_family
    return kept


def _contradictions(path: keys.Path, winner: Assignment, others: list[Assignment]) -> list[Notice]:
    notices = []
    for other in others:
        if other.origin.layer != winner.origin.layer or _same(other.value, winner.value):
            continue
        told = f"{keys.dotted(path)}: {winner.origin} says {_shown(winner)}, {other.origin} says {_shown(other)}"
        if winner.origin.layer in (Layer.PROJECT, Layer.USER) and not other.is_weak:
            raise ConfigError(told, hint="keep one of the two")
        notices.append(Notice(path[0], f"{told}; the first is used"))
    return notices


def _announcements(chosen: list[Assignment], found: list[Assignment]) -> list[Notice]:
    """Names that many programs share are said aloud when they are used, with what they override."""
    notices = []
    for winner in chosen:
        if winner.origin.layer is not Layer.ENVIRONMENT:
            continue
        hidden = min(
            (a for a in found if a.path == winner.path and a.origin.layer > Layer.ENVIRONMENT and not _same(a.value, winner.value)),
            key=_strength,
            default=None,
        )
        over = f", which overrides {_shown(hidden)} of {hidden.origin}" if hidden else ""
        if winner.origin.announce or (hidden and not winner.origin.name.startswith("FRAZIL_")):
            said = f"{keys.dotted(winner.path)} is {_shown(winner)}: from {winner.origin}{over}"
            notices.append(Notice(winner.path[0], said))
    return notices


def _same(one: Any, other: Any) -> bool:
    return str(one).rstrip("/") == str(other).rstrip("/")


def _shown(assignment: Assignment) -> str:
    return f"'{masked(assignment.path, assignment.value)}'"


def _validated(chosen: list[Assignment]) -> SettingsModel:
    tree: dict[str, Any] = {"home": ambient.default_home(), "cache": ambient.default_cache()}
    for assignment in chosen:
        node = tree
        for part in assignment.path[:-1]:
            node = node.setdefault(part, {})
        node[assignment.path[-1]] = _anchored(assignment)
    try:
        return SettingsModel.model_validate(tree)
    except ValidationError as error:
        raise _explained(error, chosen) from error


#: Settings that hold a path: relative to the file they stand in, or to the current folder.
_PATHS = {("home",), ("cache",), ("log", "directory"), ("spark", "java_home"), ("spark", "ivy_settings")}


def _anchored(assignment: Assignment) -> Any:
    folder = assignment.origin.folder or FilePath.cwd()
    text = str(assignment.value)
    if assignment.path in _PATHS:
        return folder / FilePath(text).expanduser()
    if assignment.path[-1] == "warehouse" and text.startswith(("./", "../", "~", "/")):
        return str(folder / FilePath(text).expanduser())
    if assignment.path[-1] == "uri" and text.startswith("sqlite:///") and not text.startswith("sqlite:////"):
        return f"sqlite:///{folder / FilePath(text.removeprefix('sqlite:///')).expanduser()}"
    return assignment.value


def _explained(error: ValidationError, chosen: list[Assignment]) -> ConfigError:
    first = error.errors(include_url=False)[0]
    path = tuple(str(part) for part in first["loc"])
    origins = [a.origin for a in chosen if a.path[: len(path)] == path]
    where = f" ({origins[0]})" if origins else ""
    expected = first.get("ctx", {}).get("expected")
    return ConfigError(
        f"{keys.dotted(path)}{where}: {first['msg'].removeprefix('Value error, ')}",
        hint=f"{keys.dotted(path)}: {expected}" if expected else f"frazil config show {path[0]}",
    )


__all__ = ["CatalogSettings", "Notice", "S3Settings", "Settings", "load_settings"]
