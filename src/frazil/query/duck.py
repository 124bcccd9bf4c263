"""A SELECT on DuckDB: PyIceberg finds the tables, DuckDB reads them. No JVM, and nothing is downloaded."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from frazil.catalogs import local_path, open_catalog, parse_name, translated
from frazil.catalogs.aws import with_keys
from frazil.catalogs.tables import Identifier, load_table
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


@dataclass
class DuckQuery:
    """A statement that DuckDB has read, and the tables it names."""

    statement: str
    settings: CatalogSettings
    network: NetworkSettings
    tables: dict[str, Identifier] = field(default_factory=dict)
    refused: FrazilError | None = None

    @classmethod
    def parse(cls, statement: str, settings: CatalogSettings, network: NetworkSettings) -> DuckQuery:
        """Never raises: what DuckDB cannot do is kept in `refused`, because Spark may be able to."""
        import duckdb

        query = cls(statement, settings, network)
        with duckdb.connect() as connection:
            try:
                statements = connection.extract_statements(statement)
                if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
                    raise UnsupportedError("DuckDB here only runs one SELECT", hint="--engine spark")
                for name in connection.get_table_names(statement, qualified=True):
                    query.tables[name] = parse_name(_without_alias(name), settings.name)
            except duckdb.Error as error:
                query.refused = UsageError(
                    "DuckDB cannot read this SQL", cause=first_line(error), hint="--engine spark"
                )
            except FrazilError as error:
                query.refused = error
        return query

    @cached_property
    def catalog(self) -> Catalog:
        return open_catalog(self.settings, self.network)

    def can_run(self) -> bool:
        """True where every table is one that DuckDB reads. Views, metadata tables and odd types are Spark's."""
        if self.refused is not None:
            return False
        return all(len(t) == 2 and self._exists(t) for t in self.tables.values())

    def _exists(self, identifier: Identifier) -> bool:
        with translated(self.settings):
            return self.catalog.table_exists(identifier)

    def run(self, limit: int | None) -> pa.Table:
        if self.refused is not None:
            raise self.refused
        import duckdb

        with duckdb.connect() as connection:
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
            except duckdb.Error as error:
                raise _failure(error) from error

    def _attach(self, connection: duckdb.DuckDBPyConnection) -> None:
        if not self.tables:
            return
        found = [load_table(self.catalog, self.settings, ".".join(t)) for t in self.tables.values()]
        load_extensions(connection, "avro", "iceberg")
        if any(table.metadata_location.startswith("s3") for table in found):
            load_extensions(connection, "httpfs")
            connection.execute(s3_secret(self.settings.s3 or S3Settings()))
        for table in found:
            _create_view(connection, self.settings.name, table)


def _without_alias(name: str) -> str:
    """DuckDB tells a table as the statement has it: `"content".objects AS o TABLESAMPLE …`."""
    found = _TABLE_NAME.match(name)
    return found[0] if found else name


def _failure(error: duckdb.Error) -> FrazilError:
    text = str(error)
    if "HTTP 403" in text or "HTTP 401" in text or "Forbidden" in text:
        return CredentialsError(
            "the storage refuses our keys", cause=first_line(error), hint="look at s3.access_key and s3.secret_key"
        )
    if ("Could not" in text and "onnect" in text) or "Connection" in text:
        return UnavailableError(
            "the storage does not answer", cause=first_line(error), hint="look at s3.endpoint; frazil doctor"
        )
    return FrazilError(f"DuckDB failed: {first_line(error)}", cause="", hint="--engine spark")


def load_extensions(connection: duckdb.DuckDBPyConnection, *names: str) -> None:
    """The extensions come as Python packages; DuckDB loads them from there."""
    import importlib.resources

    connection.execute("SET autoinstall_known_extensions = false")
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
    """The statement that gives DuckDB our access to S3."""
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


def _create_view(connection: duckdb.DuckDBPyConnection, catalog: str, table: Table) -> None:
    """Gives a table its name in DuckDB, with the catalog's name before it and without."""
    namespace, name = (_identifier(part) for part in table.name())
    scan = f"iceberg_scan('{_quoted(_local_path(table.metadata_location))}')"
    connection.execute(f"ATTACH IF NOT EXISTS ':memory:' AS {_identifier(catalog)}")
    for prefix in ("", f"{_identifier(catalog)}."):
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {prefix}{namespace}")
        connection.execute(f"CREATE OR REPLACE VIEW {prefix}{namespace}.{name} AS SELECT * FROM {scan}")  # noqa: S608


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _local_path(location: str) -> str:
    """DuckDB knows /x and file:///x, but not the file:/x that Spark writes."""
    return local_path(location) or location.replace("s3a://", "s3://", 1)


def _quoted(text: str) -> str:
    return text.replace("'", "''")
