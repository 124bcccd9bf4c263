"""The settings as types. What a field means to a user is its description, which the docs print."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator

# The key is given: `content.schema`. Pydantic has a deprecated method of that name, which nobody here calls.
warnings.filterwarnings("ignore", message='Field name "schema" in "ContentSettings" shadows')

CatalogKind = Literal["sql", "rest", "glue", "hive"]

_MIB = 1024 * 1024
_GIB = 1024 * _MIB


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)


class S3Settings(Section):
    """How to reach S3, or a server that speaks its protocol."""

    endpoint: str | None = Field(None, description="URL of the S3 server; empty for AWS itself")
    region: str = Field("us-east-1", description="region, also for signing")
    access_key: str | None = Field(None, description="access key ID; empty: the AWS credential chain (profile, role)")
    secret_key: SecretStr | None = Field(None, description="secret access key")
    session_token: SecretStr | None = Field(None, description="session token of temporary credentials")
    profile: str | None = Field(None, description="profile in the AWS configuration files that holds the credentials")
    path_style: bool | None = Field(None, description="path-style requests; by default only with an endpoint")

    @field_validator("endpoint")
    @classmethod
    def _has_scheme(cls, value: str | None) -> str | None:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return value.rstrip("/") if value else None

    @model_validator(mode="after")
    def _has_both_keys(self) -> S3Settings:
        if (self.access_key is None) != (self.secret_key is None):
            given, missing = ("secret_key", "access_key") if self.access_key is None else ("access_key", "secret_key")
            raise ValueError(f"{given} is given without {missing}")
        return self

    @property
    def uses_path_style(self) -> bool:
        return bool(self.endpoint) if self.path_style is None else self.path_style


class CatalogSettings(Section):
    """One Iceberg catalog, as both Spark and PyIceberg will see it."""

    name: str = Field("frazil", description="name in SQL: name.namespace.table")
    kind: CatalogKind | None = Field(None, description="sql, rest, glue or hive; by default derived from the uri")
    uri: str | None = Field(None, description="sqlite:///file, http(s)://…, thrift://host:port, or 'glue'")
    warehouse: str | None = Field(
        None, description="location of tables: a folder or s3://bucket/prefix; REST: name of the warehouse"
    )
    token: SecretStr | None = Field(None, description="bearer token (REST)")
    credential: SecretStr | None = Field(None, description="OAuth2 client credentials, id:secret (REST)")
    oauth2_uri: str | None = Field(None, description="token endpoint for the credential (REST)")
    scope: str | None = Field(None, description="OAuth2 scope (REST)")
    sigv4: bool = Field(False, description="sign requests with AWS SigV4 (REST)")
    signing_name: str | None = Field(None, description="service name in the signature: s3tables, glue, execute-api")
    endpoint: str | None = Field(None, description="Glue endpoint; empty for AWS itself")
    properties: dict[str, str] = Field(
        default_factory=dict, description="further catalog properties, passed to both engines"
    )
    s3: S3Settings | None = Field(None, description="S3 access to this catalog's files; replaces `s3` entirely")

    @field_validator("properties", mode="before")
    @classmethod
    def _as_strings(cls, value: Any) -> Any:
        return {k: _property_text(v) for k, v in value.items()} if isinstance(value, dict) else value

    @field_validator("name")
    @classmethod
    def _is_a_name(cls, value: str) -> str:
        return check_name(value)

    @model_validator(mode="after")
    def _kind_and_uri_fit(self) -> CatalogSettings:
        if self.uri:
            told = kind_of_uri(self.uri)
            if told is None:
                raise ValueError("uri is not one of sqlite:///file, http(s)://…, thrift://host:port, or 'glue'")
            if self.kind and told != self.kind:
                raise ValueError(f"kind '{self.kind}' does not match the uri, which is that of a {told} catalog")
        elif self.kind in ("rest", "hive"):
            raise ValueError(f"a catalog of kind '{self.kind}' needs a uri")
        return self

    @property
    def resolved_kind(self) -> CatalogKind:
        return self.kind or kind_of_uri(self.uri or "") or "sql"


def check_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        raise ValueError("a catalog name consists of letters, digits, '_' and '-', and begins with a letter or '_'")
    return name


def _property_text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def kind_of_uri(uri: str) -> CatalogKind | None:
    """Returns the kind of catalog that a URI implies, or None."""
    lowered = uri.lower()
    if lowered == "glue":
        return "glue"
    for prefix, kind in _KIND_BY_PREFIX:
        if lowered.startswith(prefix):
            return kind
    return None


_KIND_BY_PREFIX: tuple[tuple[str, CatalogKind], ...] = (
    ("http://", "rest"),
    ("https://", "rest"),
    ("thrift://", "hive"),
    ("sqlite:///", "sql"),
)


class SparkSettings(Section):
    master: str = Field("local[*]", description="local[*], local[N], spark://host:port, yarn, k8s://…")
    driver_memory: str = Field(
        "1g", pattern=r"^\d+[kmgKMG]$", description="heap of the driver, which does all work in local mode"
    )
    java_home: Path | None = Field(None, description="JDK 17 or 21 to use; by default, Frazil searches for one")
    ivy_settings: Path | None = Field(None, description="Ivy settings file, for a mirror of Maven Central")
    conf: dict[str, str] = Field(default_factory=dict, description="further spark.* properties, with Spark's names")

    @field_validator("conf", mode="before")
    @classmethod
    def _as_strings(cls, value: Any) -> Any:
        return {k: _property_text(v) for k, v in value.items()} if isinstance(value, dict) else value


class DatabaseSettings(Section):
    url: str | None = Field(None, description="store of the documents: sqlite:///…, mysql://…, postgresql://…, iceberg")


class BackupPolicySettings(Section):
    """One policy: what `frazil backup run` backs up, when, and which of these backups it keeps."""

    tables: list[str] = Field(
        default_factory=lambda: ["*"], description="tables, as names or patterns such as `sales.*`; `*` is every table"
    )
    catalog: str | None = Field(None, description="name of their catalog; by default the one of the settings")
    every_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds between two backups; by default a day, unless `at` says when"
    )
    at: list[str] = Field(
        default_factory=list, description="instead: times in UTC, such as 02:30, or sun 02:30 for one day of the week"
    )
    data: Literal["copy", "reference"] = Field(
        "copy", description="reference: data files are not copied, and the backup needs them where they are"
    )
    keep_last: Annotated[int, Field(ge=1)] | None = Field(None, description="keep the newest N backups")
    keep_daily: Annotated[int, Field(ge=1)] | None = Field(None, description="keep the newest of each of N days")
    keep_weekly: Annotated[int, Field(ge=1)] | None = Field(None, description="keep the newest of each of N weeks")
    keep_monthly: Annotated[int, Field(ge=1)] | None = Field(None, description="keep the newest of each of N months")
    keep_yearly: Annotated[int, Field(ge=1)] | None = Field(None, description="keep the newest of each of N years")
    keep_within_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="keep every backup that is not older; without any keep_… all backups stay"
    )

    @field_validator("tables", "at", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value

    @field_validator("at")
    @classmethod
    def _are_times(cls, value: list[str]) -> list[str]:
        for text in value:
            if not re.fullmatch(r"((mon|tue|wed|thu|fri|sat|sun) )?([01]\d|2[0-3]):[0-5]\d", text.lower()):
                raise ValueError(f"'{text}' is not a time such as 02:30 or sun 02:30")
        return [text.lower() for text in value]

    @model_validator(mode="after")
    def _has_one_schedule(self) -> BackupPolicySettings:
        if self.every_s is not None and self.at:
            raise ValueError("every_s and at are both given; a policy has one schedule")
        return self


class BackupSettings(Section):
    """Backups of tables."""

    bucket: str | None = Field(
        None,
        description="where backups go: a bucket name, s3://bucket/prefix, or a folder; by default `backups` in home",
    )
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="files that are copied at once; by default 4 per processor core in local storage, 16 on S3"
    )
    lock_days: Annotated[int, Field(ge=1)] | None = Field(
        None, description="days for which S3 Object Lock (compliance mode) protects every object that is written"
    )
    prune_wait_s: Annotated[float, Field(gt=0)] = Field(
        86400.0,
        description="seconds between the two phases of prune; a backup that takes longer than that fails",
    )
    metrics_file: Path | None = Field(
        None, description="file that `frazil backup run` writes its metrics to, for Prometheus' textfile collector"
    )
    policies: dict[str, BackupPolicySettings] = Field(
        default_factory=dict, description="what `frazil backup run` does, by name of the policy"
    )

    @field_validator("policies")
    @classmethod
    def _have_names(cls, policies: dict[str, BackupPolicySettings]) -> dict[str, BackupPolicySettings]:
        for name in policies:
            if not re.fullmatch(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?", name):
                raise ValueError(f"'{name}' is not a policy's name: small letters, digits, '-' and '_'")
        return policies


class ReplicaTableSettings(Section):
    """One table that `frazil replica run` keeps up to date; its key is its name in the replica's catalog."""

    replicated_path: str | None = Field(
        None,
        description="folder that its storage is copied to, or one above it; by default that of `replica`",
    )
    catalog: str | None = Field(None, description="name of the replica's catalog; by default the one of the settings")
    warehouse: str | None = Field(
        None, description="where its relocated metadata goes, by namespace and table; by default that of `replica`"
    )
    mode: Literal["metadata", "data-files"] = Field(
        "metadata", description="data-files: bare Parquet files become a table, by their footers"
    )
    source_prefixes: dict[str, str] = Field(
        default_factory=dict,
        description="prefixes of paths in the source's metadata, and where they landed; that of the table's own folder "
        "is found",
    )
    witnessed_only: bool | None = Field(None, description="by default that of `replica`")
    partition: list[str] = Field(
        default_factory=list,
        description="data-files: partitioning of a new table, such as day(ts); by default by folders like `year=2026`",
    )
    prune_missing: bool = Field(False, description="data-files: take files out of the table that are gone")
    compact: bool | None = Field(None, description="data-files: by default that of `replica`")
    max_lag_s: Annotated[float, Field(gt=0)] | None = Field(None, description="by default that of `replica`")

    @field_validator("partition", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return split_columns(value)


class ReplicaSettings(Section):
    """Replicas: tables served from a copy of their storage."""

    replicated_path: str | None = Field(
        None, description="folder that storage is copied to; a folder, s3://… or hdfs://…"
    )
    warehouse: str | None = Field(
        None,
        description="where relocated metadata goes, not in the replicated path; by default the catalog's warehouse",
    )
    tables_at_once: Annotated[int, Field(ge=1, le=64)] = Field(4, description="tables that are synced at once")
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="metadata files that are relocated at once; by default 4 per processor core, 16 at most"
    )
    witnessed_only: bool = Field(
        False, description="serve only versions that a later log, a beacon or a version hint proves to be committed"
    )
    compact: bool = Field(
        False,
        description="data-files: after a sync that changed something, compact small files and merge manifests, as the "
        "policy of upkeep asks; needs Spark, and copies what it compacts to the warehouse",
    )
    max_lag_s: Annotated[float, Field(gt=0)] = Field(
        3600.0, description="seconds after which the alert rules call a replica late"
    )
    metrics_file: Path | None = Field(
        None, description="file that `frazil replica run` writes its metrics to, for Prometheus' textfile collector"
    )
    tables: dict[str, ReplicaTableSettings] = Field(
        default_factory=dict,
        description="what `frazil replica run` keeps up to date, by namespace.table",
        json_schema_extra={"dotted_names": True},
    )


class LogSettings(Section):
    """The durable topic log."""

    directory: Path | None = Field(None, description="folder of the log; by default `log` in home")
    broker: str | None = Field(
        None,
        description="address of a running broker, grpc://host:port; by default, the one that has the log's "
        "folder open, if any",
    )
    key: SecretStr | None = Field(
        None,
        description="proves to `frazil serve` that a client is a component of the same installation; by default the "
        "file `KEY` in the log's folder; set the same value on both sides if they do not share that folder",
    )
    max_file_size: Annotated[int, Field(ge=4096)] = Field(
        64 * 1024 * 1024, description="size in bytes at which a segment is rolled"
    )
    sync_mode: Literal["always", "periodic", "none"] = Field(
        "always", description="when appended bytes are synced to disk"
    )
    sync_interval_ms: Annotated[int, Field(ge=1)] = Field(
        1000,
        description="interval of background work: syncs of sync_mode periodic, writes of level memory, syncs of the "
        "synced mark, updates of metrics; retention runs about every 10 s, or at this interval if it is longer",
    )
    max_message_size: Annotated[int, Field(ge=1, le=256 * _MIB)] = Field(
        8 * _MIB, description="maximum size of a message, in bytes"
    )
    max_batch_size: Annotated[int, Field(ge=1, le=2**31 - 1)] = Field(
        64 * _MIB, description="maximum size of a batch, in bytes; a single message of the maximum size always fits"
    )
    max_buffer: Annotated[int, Field(ge=1024)] = Field(
        64 * _MIB, description="bytes that may be buffered for the disk before publishers block"
    )
    size_limit: Annotated[int, Field(ge=4096)] = Field(
        64 * _GIB, description="size of a topic's log, in bytes, at which producers are rejected"
    )
    min_free: Annotated[int, Field(ge=0)] = Field(
        256 * _MIB, description="free bytes on the disk below which producers are rejected"
    )
    retention_age_s: Annotated[float, Field(ge=0)] | None = Field(
        86400.0, description="seconds that messages stay in the log after every sink has committed them"
    )
    retention_bytes: Annotated[int, Field(ge=0)] | None = Field(
        _GIB, description="maximum bytes of committed messages in a topic's log"
    )

    @property
    def batch_limit(self) -> int:
        """Bytes of a batch's body, with some for the headers of one message that is as large as it may be."""
        return max(self.max_batch_size, self.max_message_size + 64 * 1024)

    @field_validator("broker")
    @classmethod
    def _is_flight(cls, value: str | None) -> str | None:
        if value and not re.fullmatch(r"grpc(\+tls)?://[^/:]+:\d+/?", value):
            raise ValueError("must have the form grpc://host:port")
        return value.rstrip("/") if value else None


class ServeSettings(Section):
    """The broker, `frazil serve`."""

    host: str = Field(
        "127.0.0.1", description="address to bind; any address but loopback is reachable from the network"
    )
    flight_port: Annotated[int, Field(ge=0, le=65535)] = Field(
        8815, description="port of Arrow Flight; 0: any free one"
    )
    http_port: Annotated[int, Field(ge=0, le=65535)] = Field(8000, description="port of HTTP; 0: any free one")
    max_streams: Annotated[int, Field(ge=1)] = Field(
        1000, description="maximum concurrent producer streams and reads over Arrow Flight; further ones are rejected"
    )


class TopicsSettings(Section):
    namespace: str = Field("topics", description="namespace of the topics' tables")
    storage: Literal["iceberg", "log"] = Field(
        "iceberg", description="where new topics store messages: iceberg (log, then table) or only the log"
    )
    partition: list[str] = Field(
        default_factory=lambda: ["day(publish_time)"], description="partitioning of new tables, as in SQL"
    )
    sort: list[str] = Field(default_factory=lambda: ["offset"], description="sort order of rows in data files")
    compression: Literal["zstd", "snappy", "gzip", "lz4", "uncompressed"] = Field(
        "zstd", description="compression of the Parquet files"
    )
    keep_snapshots: Annotated[int, Field(ge=1)] = Field(
        50,
        description="snapshots of Frazil's own commits to keep per table, or more if its upkeep policy says so; "
        "commits remove older ones",
    )
    retention_age_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds after which messages are removed from the table; empty: never"
    )
    retention_bytes: Annotated[int, Field(gt=0)] | None = Field(
        None, description="size of a topic's table, in bytes, above which its oldest files are removed; empty: no limit"
    )

    @field_validator("partition", "sort", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return split_columns(value)


def split_columns(value: Any) -> Any:
    """Splits a text from a flag or variable at its commas, except inside brackets."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in re.split(r",(?![^(]*\))", value) if part.strip()]


class PipelineSettings(Section):
    """How the sinks take messages from the log: a batch is ready at `target_bytes`, or after `max_lag_ms`."""

    target_bytes: Annotated[int, Field(ge=1)] = Field(
        128 * _MIB, description="bytes per batch; if more messages are waiting, up to four times as much"
    )
    max_lag_ms: Annotated[int, Field(ge=0)] = Field(
        1000, description="maximum milliseconds that a message waits for its batch"
    )
    tasks: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Spark tasks per batch; by default Spark's parallelism"
    )
    read_segments: Literal["auto", "never"] = Field(
        "auto",
        description="auto: executors on the broker's machine read the log's files directly; never: all read "
        "through the broker",
    )
    stop_s: Annotated[float, Field(gt=0)] = Field(
        45.0,
        description="seconds after a signal to finish running batches and write what is left; 15 seconds later "
        "the process exits in any case",
    )
    metrics_port: Annotated[int, Field(ge=0, le=65535)] | None = Field(
        None, description="port for Prometheus metrics of the pipeline, on serve.host; empty: none"
    )


class PolicySettings(Section):
    """How one table, or all that a pattern names, are cared for. What is empty is taken from the next wider pattern."""

    compact: bool | None = Field(None, description="merge small files and files with many deleted rows")
    strategy: Literal["auto", "binpack", "sort", "zorder"] | None = Field(
        None, description="auto: by the table's sort order; binpack; sort or zorder: by `sort_by`"
    )
    sort_by: list[str] | None = Field(None, description="columns for sort or zorder; by default the table's own order")
    target_file_size: Annotated[int, Field(ge=_MIB)] | None = Field(
        None, description="size of a merged file, in bytes; by default the table's write.target-file-size-bytes"
    )
    min_input_files: Annotated[int, Field(ge=2)] | None = Field(
        None, description="number of small files of similar size that triggers a merge"
    )
    delete_ratio: Annotated[float, Field(gt=0, le=1)] | None = Field(
        None, description="fraction of deleted rows at which a file is rewritten"
    )
    delete_files: Annotated[int, Field(ge=2)] | None = Field(
        None, description="number of position-delete files in a partition that triggers a merge"
    )
    manifests: Annotated[int, Field(ge=2)] | None = Field(
        None, description="number of small manifests that triggers a rewrite"
    )
    max_snapshot_age_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds after which a snapshot is expired"
    )
    max_snapshots: Annotated[int, Field(ge=1)] | None = Field(
        None, description="maximum number of snapshots, regardless of age"
    )
    min_snapshots: Annotated[int, Field(ge=1)] | None = Field(
        None, description="minimum number of snapshots to keep, regardless of age"
    )
    file_grace_s: Annotated[float, Field(ge=0)] | None = Field(
        None, description="seconds to keep files after their last snapshot was expired, for running readers"
    )
    metadata_versions: Annotated[int, Field(ge=1)] | None = Field(
        None, description="number of previous metadata files to keep"
    )
    orphans: bool | None = Field(
        None, description="find and remove files that no snapshot references; by default only for Frazil's own tables"
    )
    orphan_age_s: Annotated[float, Field(ge=3600)] | None = Field(
        None, description="minimum age of an orphan file to be removed, in seconds by the storage's clock"
    )
    orphan_every_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds between two searches for orphans"
    )
    statistics: bool | None = Field(None, description="keep statistics for query planners (compute_table_stats)")
    statistics_every_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="seconds between two computations"
    )
    retention_column: str | None = Field(None, description="time column that determines the age of rows for retention")
    retention_age_s: Annotated[float, Field(gt=0)] | None = Field(
        None, description="age at which rows are removed, in seconds"
    )

    @field_validator("sort_by", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class UpkeepSettings(Section):
    """Upkeep: what the pipeline does for its tables between batches, and `frazil upkeep run` for any."""

    enabled: bool = Field(True, description="whether the pipeline maintains the tables of its sinks")
    share: Annotated[float, Field(gt=0, le=1)] = Field(
        0.1, description="maximum fraction of a sink's time for upkeep, unless upkeep is urgent"
    )
    turn_s: Annotated[float, Field(gt=0)] = Field(
        30.0,
        description="target duration of one upkeep run between batches, in seconds; at twice as many it is stopped",
    )
    every_s: Annotated[float, Field(gt=0)] = Field(
        20.0, description="minimum seconds between two inspections of a table"
    )
    history: str = Field("frazil.upkeep_history", description="table that records every step; none: no record")
    policy: PolicySettings = Field(default_factory=PolicySettings, description="policy for all tables")
    tables: dict[str, PolicySettings] = Field(
        default_factory=dict,
        description="policies for the tables that match a pattern, such as `topics.*`; the longest pattern takes "
        "precedence",
        json_schema_extra={"dotted_names": True},
    )

    @field_validator("history")
    @classmethod
    def _table_or_none(cls, value: str) -> str:
        if value == "none":
            return ""
        if "." not in value.strip("."):
            raise ValueError("namespace.table, or none")
        return value


class ExtractSettings(Section):
    """How objects are looked into: by whom, how many at once, and how much one of them may take."""

    extractors: list[str] = Field(
        default_factory=list, description="names of the extractors to run; empty: all that run by default"
    )
    concurrency: Annotated[int, Field(ge=1, le=256)] | None = Field(
        None, description="objects that a task extracts at once; by default 8 for a bucket, 2 for a folder"
    )
    timeout_s: Annotated[float, Field(gt=0)] = Field(
        30.0, description="timeout of one extractor for one object in seconds, not counting time spent in storage"
    )
    max_bytes: Annotated[int, Field(ge=0)] = Field(
        256 * _MIB, description="maximum size of an object that may be read completely, in bytes"
    )
    max_range_bytes: Annotated[int, Field(ge=0)] = Field(
        16 * _MIB, description="maximum bytes of an object that an extractor may read by ranges"
    )
    max_pixels: Annotated[int, Field(ge=1)] = Field(
        200_000_000, description="maximum number of pixels of an image that is decoded"
    )
    max_json_bytes: Annotated[int, Field(ge=1024)] = Field(
        _MIB, description="maximum size of one extractor's result for one object, in bytes of JSON"
    )
    max_memory_bytes: Annotated[int, Field(ge=64 * _MIB)] = Field(
        2 * _GIB, description="maximum memory of an extractor process, in bytes beyond its initial memory"
    )
    thumbnails: str | None = Field(
        None, description="location of thumbnails: a folder or s3://bucket/prefix; by default `thumbnails` in home"
    )

    @field_validator("extractors", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class FieldSettings(Section):
    """One custom column."""

    type: str | None = Field(None, description="SQL type: INTEGER, STRING, ARRAY<STRING>, …")
    jpath: str | None = Field(None, description="JSONPath of the value in `metadata`, such as $.exif.ISOSpeedRatings")


class SchemaSettings(Section):
    """Custom columns of `objects`. They are looked at by the commands that use them."""

    include_raw_metadata: bool = Field(
        True,
        description="keep all extracted metadata as JSON in `metadata`; without it, no column can be computed later",
    )
    custom_metadata_fields: list[str] = Field(
        default_factory=list,
        description="names of the custom columns, separated by commas; each has a type and a jpath",
    )
    field: dict[str, FieldSettings] = Field(default_factory=dict, description="the custom columns, by name")
    cast: Literal["lenient", "strict"] = Field(
        "lenient",
        description='lenient: values with the same meaning are converted, such as "12" to 12; strict: they are not',
    )

    @field_validator("custom_metadata_fields", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class ContentSettings(Section):
    """What is in the buckets: object events, scans of buckets and folders."""

    namespace: str = Field("content", description="namespace of the tables `journal` and `objects`")
    topic: str = Field("content_events", description="topic of object events and observations")
    dialect: Literal["auto", "aws", "minio", "ceph", "versitygw", "other"] = Field(
        "auto",
        description="dialect of the events: detected per event, or fixed; events of `other` have no order, so "
        "the bucket is asked",
    )
    token: SecretStr | None = Field(
        None, description="shared token that POST /events/s3 and POST /content/edits require; empty: none"
    )
    skew_s: Annotated[float, Field(ge=0)] = Field(
        5.0,
        description="maximum clock difference between a store's servers, in seconds; for events closer than "
        "that, the bucket is asked again",
    )
    lateness_s: Annotated[float, Field(gt=0)] | None = Field(
        None,
        description="seconds after which tombstones are removed; an event that arrives later resurrects its "
        "object; empty: never",
    )
    partition: list[str] = Field(
        default_factory=list, description="partitioning of a new `objects`, as in SQL, such as bucket(16, key)"
    )
    buckets: list[str] | None = Field(
        None,
        description="which buckets and folders may be read, as patterns: photos, logs-*, /srv/photos, /srv/*; by "
        "default every bucket, and the folders that a scan or watch of yours has listed",
    )
    keep_snapshots: Annotated[int, Field(ge=1)] = Field(
        50, description="snapshots of Frazil's own commits to keep per table, or more if the upkeep policy says so"
    )
    extract: ExtractSettings = Field(default_factory=ExtractSettings, description="extraction of metadata from objects")
    schema: SchemaSettings = Field(default_factory=SchemaSettings, description="custom columns")  # type: ignore[assignment]

    @field_validator("partition", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return split_columns(value)

    @field_validator("buckets", mode="before")
    @classmethod
    def _as_patterns(cls, value: Any) -> Any:
        return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


class FollowedBucketSettings(Section):
    """What the events of one bucket do to documents. Restores and transitions of tiers are always followed."""

    provider: str | None = Field(None, description="provider of the documents that are created; by default `aws`")
    create: bool = Field(False, description="an object that comes up makes a document")
    delete: bool = Field(False, description="an object that is removed deletes its document")


class DocumentsSettings(Section):
    """The store of documents in Iceberg; `database.url` chooses the store."""

    namespace: str = Field(
        "document_archive", description="namespace of the tables `document_metadata` and `document_history`"
    )
    topic: str = Field("documents", description="topic that every change of a document goes through")
    partition: list[str] = Field(
        default_factory=lambda: ["month(created_at)"],
        description="partitioning of a new `document_metadata`, by transforms of created_at",
    )
    keep_snapshots: Annotated[int, Field(ge=1)] = Field(
        50, description="snapshots of Frazil's own commits to keep per table, or more if the upkeep policy says so"
    )
    follow_buckets: dict[str, FollowedBucketSettings] = Field(
        default_factory=dict,
        description="buckets whose object events update documents, by name",
        json_schema_extra={"dotted_names": True},
    )

    @field_validator("partition", mode="before")
    @classmethod
    def _as_list(cls, value: Any) -> Any:
        return split_columns(value)


class NetworkSettings(Section):
    """Patience with servers."""

    connect_timeout: Annotated[float, Field(gt=0)] = Field(
        3.0, description="timeout of a connection attempt, in seconds"
    )
    read_timeout: Annotated[float, Field(gt=0)] = Field(60.0, description="timeout of a response, in seconds")
    retry_attempts: Annotated[int, Field(ge=1)] = Field(4, description="attempts for a retryable operation")
    retry_timeout: Annotated[float, Field(gt=0)] = Field(
        6.0, description="seconds after which no further attempt starts"
    )
    breaker_failures: Annotated[int, Field(ge=1)] = Field(
        5, description="consecutive failures that open the circuit breaker"
    )
    breaker_reset: Annotated[float, Field(gt=0)] = Field(
        30.0, description="seconds until an open circuit breaker allows one attempt"
    )


class LoggingSettings(Section):
    level: Literal["debug", "info", "warning", "error"] = Field(
        "warning", description="lowest level that is logged, to stderr"
    )
    format: Literal["text", "json"] = Field("text", description="text for people, json for log collectors")


class SettingsModel(Section):
    """Every setting there is."""

    home: Path = Field(description="folder of the embedded catalog, its warehouse and the log")
    cache: Path = Field(description="folder of downloaded jars")
    catalog: CatalogSettings = Field(default_factory=CatalogSettings, description="the catalog used by default")
    catalogs: dict[str, CatalogSettings] = Field(default_factory=dict, description="further catalogs, by name")
    s3: S3Settings = Field(default_factory=S3Settings, description="S3 access")
    database: DatabaseSettings = Field(default_factory=DatabaseSettings, description="the store of documents")
    documents: DocumentsSettings = Field(default_factory=DocumentsSettings, description="documents in Iceberg")
    backup: BackupSettings = Field(default_factory=BackupSettings, description="backups")
    replica: ReplicaSettings = Field(default_factory=ReplicaSettings, description="replicas")
    log: LogSettings = Field(default_factory=LogSettings, description="the durable topic log")
    serve: ServeSettings = Field(default_factory=ServeSettings, description="the broker")
    topics: TopicsSettings = Field(default_factory=TopicsSettings, description="topic tables")
    pipeline: PipelineSettings = Field(default_factory=PipelineSettings, description="the sinks")
    content: ContentSettings = Field(
        default_factory=ContentSettings, description="catalog of objects in buckets and folders"
    )
    upkeep: UpkeepSettings = Field(default_factory=UpkeepSettings, description="maintenance of tables")
    spark: SparkSettings = Field(default_factory=SparkSettings, description="Spark")
    network: NetworkSettings = Field(default_factory=NetworkSettings, description="timeouts and retries")
    logging: LoggingSettings = Field(default_factory=LoggingSettings, description="log output")

    @field_validator("catalogs")
    @classmethod
    def _named_by_their_keys(cls, catalogs: dict[str, CatalogSettings]) -> dict[str, CatalogSettings]:
        for name, catalog in catalogs.items():
            check_name(name)
            if "name" in catalog.model_fields_set and catalog.name != name:
                raise ValueError(f"catalogs.{name} has a different name, '{catalog.name}'")
        return {name: catalog.model_copy(update={"name": name}) for name, catalog in catalogs.items()}
