"""A SELECT on DuckDB: PyIceberg finds the tables, DuckDB reads them. No JVM, and nothing is downloaded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from frazil.catalogs import local_path, open_catalog, parse_name, translated
from frazil.catalogs.aws import with_keys
from frazil.catalogs.tables import Identifier, load_table, may_be_view
from frazil.errors import (
    CredentialsError,
    FrazilError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
    first_line,
)
from frazil.settings import CatalogSettings, NetworkSettings, S3Settings

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa
    from pyiceberg.catalog import Catalog
    from pyiceberg.table import Table


_TABLE_NAME = re.compile(r"""(?:(?:^|\.)(?:"(?:[^"]|"")+"|[^\s."]+))+""")
#: `SHOW TABLES` would list DuckDB's, of which there are none.
_SHOWS = re.compile(r"(?:\s|--[^\n]*\n|/\*.*?\*/)*SHOW\b", re.IGNORECASE | re.DOTALL)
_NAME_PART = re.compile(r'"((?:[^"]|"")+)"|([^."]+)')
#: DuckDB 1.5.5 mixes up the deletion vectors of one Puffin file if it caches parts of files (decision 0039).
_OPTIONS: dict[str, str | bool | int | float | list[str]] = {
    "enable_external_file_cache": False,
    "autoinstall_known_extensions": False,
}
#: The name of DuckDB's own database, in which schemas stand for namespaces.
_OWN = "memory"


class DialectError(UsageError):
    """DuckDB does not support a statement; Spark may."""


@dataclass
class DuckQuery:
    """A statement parsed by DuckDB, and the tables that it names.

    Attributes:
        statement: the SQL.
        settings: the catalog of names without one.
        network: time-outs of the catalog.
        tables: what the statement calls each table (two or three parts) → the table in the catalog.
    """

    statement: str
    settings: CatalogSettings
    network: NetworkSettings
    tables: dict[Identifier, Identifier] = field(default_factory=dict)

    @classmethod
    def parse(cls, statement: str, settings: CatalogSettings, network: NetworkSettings) -> DuckQuery:
        """Parses one SELECT.

        Raises:
            DialectError: DuckDB cannot parse the statement, or does not know a function in it.
            UnsupportedError: it is not a SELECT.
            UsageError: the name of a table is not complete.
        """
        import duckdb

        query = cls(statement, settings, network)
        with duckdb.connect(config=_OPTIONS) as connection:
            try:
                kinds = [found.type for found in connection.extract_statements(statement)]
                if kinds != [duckdb.StatementType.SELECT] or _SHOWS.match(statement):
                    raise UnsupportedError("the DuckDB engine runs only a single SELECT", hint="--engine spark")
                names = connection.get_table_names(statement, qualified=True)
            except duckdb.Error as error:
                raise DialectError(
                    "DuckDB cannot read this SQL", cause=_with_marked_place(error), hint="--engine spark"
                ) from error
        for typed in map(_parts, names):
            query.tables[typed] = parse_name(".".join(typed), settings.name)
        return query

    @cached_property
    def catalog(self) -> Catalog:
        return open_catalog(self.settings, self.network)

    @cached_property
    def _loaded(self) -> dict[Identifier, Table]:
        return {identifier: self._load(identifier) for identifier in set(self.tables.values())}

    def _load(self, identifier: Identifier) -> Table:
        name = ".".join(identifier)
        if len(identifier) != 2:
            raise UnsupportedError(
                f"the DuckDB engine cannot read '{name}'",
                cause="it reads tables named namespace.table; metadata tables and nested namespaces need Spark",
                hint="--engine spark",
            )
        try:
            table = load_table(self.catalog, self.settings, name)
        except NotFoundError:
            if may_be_view(self.catalog, self.settings, identifier):
                raise UnsupportedError(f"'{name}' is a view, which DuckDB cannot read", hint="--engine spark") from None
            raise
        with translated(self.settings):
            limit = find_limit(table)
        if limit is not None:
            raise UnsupportedError(f"DuckDB cannot read '{name}' correctly", cause=limit, hint="--engine spark")
        return table

    def require_readable(self) -> None:
        """Loads the tables.

        Raises:
            UnsupportedError: DuckDB cannot read one of them, or not correctly.
            NotFoundError: one does not exist, for no engine; names the nearest that does.
        """
        _ = self._loaded

    def run(self, limit: int | None) -> pa.Table:
        """Runs the statement.

        Raises:
            UnsupportedError: a file has a format or type that DuckDB cannot read.
        """
        import duckdb

        with duckdb.connect(config=_OPTIONS) as connection:
            try:
                connection.execute("SET TimeZone = 'UTC'")  # as Spark's: an answer must not depend on machine or engine
                self._attach(connection)
                relation = connection.sql(self.statement)
                return (relation.limit(limit) if limit is not None else relation).to_arrow_table()
            except duckdb.CatalogException as error:
                raise NotFoundError(first_line(error), cause="", hint="frazil table list, or --engine spark") from error
            except (duckdb.BinderException, duckdb.ParserException) as error:
                raise UsageError(
                    first_line(error), cause="", hint="frazil table show TABLE lists the columns"
                ) from error
            except duckdb.NotImplementedException as error:
                raise UnsupportedError("DuckDB cannot do this", hint="--engine spark") from error
            except duckdb.Error as error:
                raise _failure(error) from error

    def _attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        if not self.tables:
            return
        load_extensions(connection, "avro", "iceberg")
        if any(table.metadata_location.startswith("s3") for table in self._loaded.values()):
            load_extensions(connection, "httpfs")
            connection.execute(s3_secret(self.settings.s3 or S3Settings()))
        connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {_identifier(self.settings.name)}")
        made: dict[Identifier, Identifier] = {}
        for typed, identifier in self.tables.items():
            view = self._view_name(typed)
            other = made.setdefault(tuple(part.lower() for part in view), identifier)
            if other != identifier:
                raise UnsupportedError(
                    f"DuckDB cannot distinguish '{'.'.join(other)}' from '{'.'.join(identifier)}'",
                    hint="--engine spark",
                )
            _create_view(connection, view, self._loaded[identifier])

    def _view_name(self, typed: Identifier) -> Identifier:
        """Returns the place in DuckDB (database, schema, name) to which DuckDB resolves a name of the statement.

        DuckDB takes the first of two parts for a schema or a database, and refuses what could be both. So a namespace
        with the name of a database becomes that database's main schema.
        """
        if len(typed) == 3:
            return typed
        namespace, name = typed
        if namespace.lower() in (self.settings.name.lower(), _OWN):
            return namespace, "main", name
        return _OWN, namespace, name


def _parts(name: str) -> Identifier:
    """Splits a table's name as DuckDB reports it, with quotes and perhaps an alias: `"content".objects AS o`."""
    found = _TABLE_NAME.match(name)
    parts = _NAME_PART.findall(found[0] if found else name)
    return tuple(quoted.replace('""', '"') or plain for quoted, plain in parts)


def _with_marked_place(error: duckdb.Error) -> str:
    """Returns the first line of an error, and the line of the statement with a mark below it if DuckDB has one."""
    lines = [line for line in str(error).strip().splitlines() if line.strip()]
    marked = next((i for i, line in enumerate(lines) if line.strip() == "^"), None)
    return "\n".join([first_line(error), *(lines[marked - 1 : marked + 1] if marked else [])])


def find_limit(table: Table) -> str | None:
    """Returns why DuckDB 1.5.5 would not read the current snapshot correctly, or None if it does (decision 0039).

    Reads the manifests of delete files.
    """
    from pyiceberg.manifest import DataFileContent, ManifestContent

    for partition in (part for spec in table.specs().values() for part in spec.fields):
        if not partition.name.isascii():
            return f"the partition field '{partition.name}' contains characters that DuckDB does not accept there"
    snapshot = table.current_snapshot()
    for manifest in snapshot.manifests(table.io) if snapshot is not None else ():
        if manifest.content != ManifestContent.DELETES:
            continue
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True):
            if entry.data_file.content == DataFileContent.EQUALITY_DELETES:
                return "it has equality deletes, which DuckDB applies to all partitions"
    return None


def _failure(error: duckdb.Error) -> FrazilError:
    text = str(error)
    if "HTTP 403" in text or "HTTP 401" in text or "Forbidden" in text:
        return CredentialsError(
            "the storage rejects our credentials", cause=first_line(error), hint="check s3.access_key and s3.secret_key"
        )
    if ("Could not" in text and "onnect" in text) or "Connection" in text:
        return UnavailableError(
            "the storage does not respond", cause=first_line(error), hint="check s3.endpoint; frazil doctor"
        )
    return FrazilError(f"DuckDB failed: {first_line(error)}", cause="", hint="--engine spark")


def load_extensions(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """Loads the extensions from their Python packages."""
    import importlib.resources

    for name in names:
        folder = importlib.resources.files(f"duckdb_extension_{name}") / "extensions"
        file = next(entry for entry in _files(folder) if entry.name == f"{name}.duckdb_extension")
        connection.execute(f"LOAD '{_quoted(str(file))}'")


def _files(folder: Any) -> Any:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry)
        else:
            yield entry


def s3_secret(s3: S3Settings) -> str:
    """Returns the statement that gives DuckDB access to S3."""
    s3 = with_keys(s3)
    fields = {"REGION": s3.region, "URL_STYLE": "path" if s3.uses_path_style else "vhost"}
    if s3.access_key and s3.secret_key:
        fields |= {"KEY_ID": s3.access_key, "SECRET": s3.secret_key.get_secret_value()}
    if s3.session_token:
        fields["SESSION_TOKEN"] = s3.session_token.get_secret_value()
    if s3.endpoint:
        fields["ENDPOINT"] = s3.endpoint.split("://", 1)[1]
    listed = ", ".join(f"{key} '{_quoted(value)}'" for key, value in fields.items())
    ssl = "false" if s3.endpoint and s3.endpoint.startswith("http://") else "true"
    return f"CREATE SECRET (TYPE s3, {listed}, USE_SSL {ssl})"


def _create_view(connection: duckdb.DuckDBPyConnection, view: Identifier, table: Table) -> None:
    database, schema, name = (_identifier(part) for part in view)
    scan = f"iceberg_scan('{_quoted(_local_path(table.metadata_location))}')"
    connection.execute(f"CREATE SCHEMA IF NOT EXISTS {database}.{schema}")
    connection.execute(f"CREATE OR REPLACE VIEW {database}.{schema}.{name} AS SELECT * FROM {scan}")  # noqa: S608


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _local_path(location: str) -> str:
    """Converts Spark's file:/x, which DuckDB does not understand, to /x."""
    return local_path(location) or location.replace("s3a://", "s3://", 1)


def _quoted(text: str) -> str:
    return text.replace("'", "''")
