"""Scans a table of documents: prunes by partitions and bounds, and says what it has read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.dataset as ds

from frazil.documents.arrow import DOCUMENT_SCHEMA, OFFSET, STAMP_SCHEMA
from frazil.documents.iceberg.measured_io import MeasuredFileIO, ReadCounts, ScanExplanation
from frazil.documents.sql.query import Listing
from frazil.settings import NetworkSettings
from frazil.tables.cache import LruCache

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import DataScan, FileScanTask, Table

#: Bytes of manifests and manifest lists that a process keeps.
_MANIFEST_BYTES: Final = 64 << 20
_TYPES: Final = {field.name: field for field in (*DOCUMENT_SCHEMA, *STAMP_SCHEMA, OFFSET)}


class TableScanner:
    """Reads rows of tables. Manifests are read once.

    Args:
        network: patience with the storage.
    """

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network
        self._manifests: LruCache[str, bytes] = LruCache(_MANIFEST_BYTES)

    def scan(
        self, table: Table, listing: Listing, columns: Sequence[str], *, explains: bool
    ) -> tuple[pa.Table, ScanExplanation]:
        """Returns the rows that may match a listing, and what was read for them.

        Args:
            table: of present documents, or of their history if the listing is of a moment.
            listing: the listing.
            columns: of the rows.
            explains: whether row groups are counted, which reads the footers of the files once more.
        """
        counts = ReadCounts()
        measured = self._measured(table, counts)
        scan = measured.scan(row_filter=prunable(listing), selected_fields=tuple(columns))
        tasks = list(scan.plan_files())
        rows = scan.to_arrow()
        explanation = self._explain(measured, tasks, counts)
        if explains:
            self._count_row_groups(self._measured(table, ReadCounts()), scan, tasks, explanation)
        return _with_our_types(rows), explanation

    def _measured(self, table: Table, counts: ReadCounts) -> Table:
        from pyiceberg.table import Table

        io = MeasuredFileIO(table.io, self._manifests, self._network, counts)
        return Table(table.name(), table.metadata, table.metadata_location, io, table.catalog, table.config)

    def _explain(self, measured: Table, tasks: Sequence[FileScanTask], counts: ReadCounts) -> ScanExplanation:
        snapshot = measured.current_snapshot()
        made = ScanExplanation(
            manifests_fetched=counts.requests["manifest"] + counts.requests["manifest_list"],
            requests=sum(counts.requests.values()),
            bytes=counts.bytes,
        )
        if snapshot is not None and snapshot.summary is not None:
            manifests = [manifest.manifest_path for manifest in snapshot.manifests(measured.io)]
            made.manifests = len(manifests)
            made.manifests_skipped = sum(path not in counts.opened for path in manifests)
            made.files = int(snapshot.summary.get("total-data-files") or len(tasks))
            made.files_skipped = made.files - len(tasks)
        return made

    def _count_row_groups(
        self, measured: Table, scan: DataScan, tasks: Sequence[FileScanTask], explanation: ScanExplanation
    ) -> None:
        from pyiceberg.expressions.visitors import bind
        from pyiceberg.io.pyarrow import expression_to_pyarrow

        condition = expression_to_pyarrow(bind(measured.schema(), scan.row_filter, case_sensitive=True))
        total = read = 0
        for task in tasks:
            with measured.io.new_input(task.file.file_path).open() as stream:
                fragment = ds.ParquetFileFormat().make_fragment(stream)
                total += fragment.num_row_groups
                read += len(fragment.split_by_row_group(condition, schema=fragment.physical_schema))
        explanation.row_groups, explanation.row_groups_skipped = total, total - read


def prunable(listing: Listing) -> BooleanExpression:
    """Returns the conditions by which files can be left out.

    Of a moment in the past these are the ones that hold for all revisions of a document alike.
    """
    from pyiceberg.expressions import (
        AlwaysTrue,
        And,
        EqualTo,
        GreaterThanOrEqual,
        LessThan,
        LessThanOrEqual,
        StartsWith,
    )

    made: list[BooleanExpression] = []
    if listing.as_of is not None:
        made.append(LessThanOrEqual(term="valid_from", value=listing.as_of))
    kinds: dict[str, Callable[[Any], BooleanExpression]] = {
        "start_date": lambda value: GreaterThanOrEqual(term="created_at", value=value),
        "end_date": lambda value: LessThan(term="created_at", value=value),
    }
    if listing.as_of is None:
        kinds |= {
            "min_size": lambda value: GreaterThanOrEqual(term="size_bytes", value=value),
            "max_size": lambda value: LessThanOrEqual(term="size_bytes", value=value),
            "name_prefix": lambda value: StartsWith(term="filename", value=value),
        }
    for name, value in listing.conditions.items():
        if name in kinds:
            made.append(kinds[name](value))
        elif listing.as_of is None and name not in ("tags", "words", *kinds):
            made.append(EqualTo(term=name, value=value))
    condition: BooleanExpression = AlwaysTrue()
    for one in made:
        condition = And(condition, one)
    return condition


def _with_our_types(rows: pa.Table) -> pa.Table:
    """The columns of the record in the types that revisions of the log have."""
    fields = [_TYPES[f.name].with_nullable(True) if f.name in _TYPES else f for f in rows.schema]
    return rows.cast(pa.schema(fields))
