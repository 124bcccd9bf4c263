"""Puts the assignments of all sources together into the typed settings."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import Any

from frazil.errors import ConfigError, NotFoundError, UsageError
from frazil.settings import environment, keys
from frazil.settings.model import CatalogSettings, S3Settings, SettingsModel
from frazil.settings.paths import anchored, shown
from frazil.settings.permissions import require_trusted
from frazil.settings.precedence import Notice, choose
from frazil.settings.pyiceberg import PyIcebergCatalogs, from_pyiceberg
from frazil.settings.sources import (
    CONFIG_VARIABLE,
    DEFAULT_ORIGIN,
    FALLBACK,
    PROJECT_FILE,
    Assignment,
    Layer,
    Origin,
    find_project_file,
    from_environment,
    from_file,
    from_flags,
)
from frazil.settings.validate import validated


@dataclass(frozen=True)
class Settings:
    """The settings in force, and where each came from."""

    model: SettingsModel
    origins: dict[keys.Path, Origin] = field(default_factory=dict)
    notices: tuple[Notice, ...] = ()

    def origin(self, path: keys.Path) -> Origin:
        return self.origins.get(path, DEFAULT_ORIGIN)

    def sources(self) -> list[str]:
        """Returns the flags, variables and files that settings came from, strongest first."""
        used = sorted(set(self.origins.values()), key=lambda o: (o.layer, o.name))
        return list(dict.fromkeys(o.source for o in used))

    def catalog(self, name: str | None = None) -> CatalogSettings:
        """Returns a catalog by name, with embedded defaults and with its own S3 access or the common one.

        Raises:
            NotFoundError: no catalog has that name.
        """
        if name is None or name == self.model.catalog.name:
            return _completed(self.model.catalog, self.model)
        if name in self.model.catalogs:
            return _completed(self.model.catalogs[name], self.model)
        names = ", ".join(self.catalog_names())
        raise NotFoundError(f"unknown catalog '{name}'", hint=f"one of: {names}; or add catalogs.{name} to frazil.yaml")

    def catalog_names(self) -> list[str]:
        return sorted({self.model.catalog.name, *self.model.catalogs})


def _completed(catalog: CatalogSettings, model: SettingsModel) -> CatalogSettings:
    kind = catalog.resolved_kind
    update: dict[str, Any] = {"kind": kind, "s3": _s3_of(catalog, model.s3)}
    if kind == "sql":
        update["uri"] = catalog.uri or f"sqlite:///{model.home / 'catalog.db'}"
        update["warehouse"] = catalog.warehouse or str(model.home / "warehouse")
    if kind == "glue":
        update["uri"] = None
    return catalog.model_copy(update=update)


def _s3_of(catalog: CatalogSettings, common: S3Settings) -> S3Settings:
    """Returns a catalog's S3 access. Keys never go to another catalog's endpoint; the region is shared."""
    if catalog.s3 is None or "region" in catalog.s3.model_fields_set:
        return catalog.s3 or common
    return catalog.s3.model_copy(update={"region": common.region})


def load_settings(
    *,
    flags: Mapping[str, str] | None = None,
    config: FilePath | None = None,
    environ: Mapping[str, str] | None = None,
    folder: FilePath | None = None,
    option: str = "--set",
) -> Settings:
    """Reads every source once.

    Args:
        flags: settings given on the command line, dotted.
        config: the project file, where the user named one.
        environ: instead of the process's environment. Then neither the current folder nor the user's home are looked
            at, unless `folder` and HOME name them: `environ={}` with a `config` reads that file and nothing else.
        folder: instead of the current folder, to look for the project file from.
        option: how errors name the place where `flags` were given.
    """
    if environ is None:
        environ, folder = os.environ, folder or FilePath.cwd()
    found = [*from_flags(flags or {}, option), *from_environment(environ)]
    if (project := _project_file(config, environ, folder)) is not None:
        found += from_file(project, Layer.PROJECT, shown(project, folder))
    if (user := environment.user_file(environ)) is not None:
        require_trusted(user, hint=f"chown $USER {user} and chmod go-w {user}, and the same for its folder")
        found += from_file(user, Layer.USER, shown(user, folder))
    pyiceberg = from_pyiceberg(environ, folder)
    found, notices = _with_pyiceberg(_spelled_as_in_files(found, pyiceberg), pyiceberg)
    found, more = _with_default_catalog(found, pyiceberg)
    chosen, contradictions = choose(found)
    model = validated(anchored(chosen, folder or FilePath.cwd()))
    return Settings(model, {a.path: a.origin for a in chosen}, tuple(notices + more + contradictions))


def _project_file(config: FilePath | None, environ: Mapping[str, str], folder: FilePath | None) -> FilePath | None:
    named = config or (FilePath(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if named is None:
        found = find_project_file(folder.absolute()) if folder else None
        if found is not None:
            require_trusted(
                found, hint=f"--config {found}, if you trust its content; or create your own {PROJECT_FILE}"
            )
        return found
    named = (folder or FilePath.cwd()) / named
    if not environment.sees(named):
        raise UsageError(f"settings file not found: {named}", hint=f"check --config and {CONFIG_VARIABLE}")
    return named


def _spelled_as_in_files(found: list[Assignment], pyiceberg: PyIcebergCatalogs) -> list[Assignment]:
    """Maps names of variables to those in files: FRAZIL_CATALOGS__PROD_EU__URI belongs to `prod-eu`."""
    in_files = [a.path[1] for a in found if a.path[0] == "catalogs" and a.origin.layer is not Layer.ENVIRONMENT]
    known = {_plain(name): name for name in (*pyiceberg.usable, *in_files)}
    return [
        a.at(("catalogs", known.get(_plain(a.path[1]), a.path[1]), *a.path[2:]))
        if a.path[0] == "catalogs" and a.origin.layer is Layer.ENVIRONMENT
        else a
        for a in found
    ]


def _plain(name: str) -> str:
    return name.lower().replace("-", "_")


def _with_pyiceberg(found: list[Assignment], pyiceberg: PyIcebergCatalogs) -> tuple[list[Assignment], list[Notice]]:
    """Adds PyIceberg's catalogs, but not to one of ours that lies elsewhere: its token is not for that server."""
    added = list(found)
    default = pyiceberg.only_or_default()
    notices = [
        Notice("catalog" if name == default else "pyiceberg", f"PyIceberg's catalog '{name}' is ignored: {reason}")
        for name, reason in pyiceberg.unusable.items()
    ]
    for name, entries in pyiceberg.usable.items():
        own = [a for a in found if a.path in _uri_paths(name, found)]
        theirs = [a.value.rstrip("/") for a in entries if a.path == ("uri",)]
        other = next((a for a in own if theirs and a.value.rstrip("/") not in theirs), None)
        if other is None:
            added += [a.at(("catalogs", name, *a.path)) for a in entries]
        else:
            said = f"PyIceberg's catalog '{name}' ({entries[0].origin}) is ignored: {other.origin} has a different uri"
            notices.append(Notice(other.path[0], said))
    return added, notices


def _uri_paths(name: str, found: list[Assignment]) -> list[keys.Path]:
    """Returns the paths of Frazil's settings that set the uri of this catalog."""
    default = _named(found)
    return [("catalogs", name, "uri"), *([("catalog", "uri")] if default and default.value == name else [])]


def _named(found: list[Assignment]) -> Assignment | None:
    return min((a for a in found if a.path == ("catalog", "name")), key=lambda a: a.strength, default=None)


def _with_default_catalog(
    found: list[Assignment], pyiceberg: PyIcebergCatalogs
) -> tuple[list[Assignment], list[Notice]]:
    """Makes an entry of `catalogs` the default: the one that `catalog.name` names, or else PyIceberg's."""
    own = [a for a in found if a.path[0] == "catalog" and not _is_only_a_bucket(a)]
    named = _named(found)
    name = named.value if named else (None if own else pyiceberg.only_or_default())
    entries = [a for a in found if name and a.path[:2] == ("catalogs", name)]
    theirs = [a for a in entries if a.family.startswith("pyiceberg")]
    if named and not entries and own == [named] and named.value in pyiceberg.unusable:
        raise ConfigError(
            f"{named.origin}: PyIceberg's catalog '{name}' cannot be used",
            cause=pyiceberg.unusable[named.value],
            hint="set catalog.uri, or choose another catalog",
        )
    moved = [a.at(("catalog", *a.path[2:])) if a in entries else a for a in found]
    if named:
        return moved, []
    if name and theirs:
        moved.append(Assignment(("catalog", "name"), name, theirs[0].origin, FALLBACK))
        said = f"catalog '{name}' comes from PyIceberg's configuration ({theirs[0].origin})"
        return moved, [Notice("catalog", said)]
    if not own and len(pyiceberg.usable) > 1:
        names = ", ".join(sorted(pyiceberg.usable))
        said = (
            f"PyIceberg's configuration has the catalogs {names}; Frazil uses one only if you choose it with --catalog"
        )
        return found, [Notice("catalog", said)]
    return found, []


def _is_only_a_bucket(assignment: Assignment) -> bool:
    """Whether it is a bucket that another program may have been meant to use: it does not say which catalog."""
    return assignment.path == ("catalog", "warehouse") and assignment.origin.announce
