"""Scans a table with a cache of manifests, and says what was read and what was skipped."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.dataset as ds

from frazil.settings import NetworkSettings
from frazil.tables.cache import LruCache
from frazil.tables.reading.measured_io import MeasuredFileIO, ReadCounts, ScanExplanation

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import DataScan, FileScanTask, Table

#: Bytes of manifests and manifest lists that a process keeps.
_MANIFEST_BYTES: Final = 64 << 20


class MeasuredScanner:
    """Reads rows of tables. Manifests are read once.

    Args:
        network: patience with the storage.
    """

    def __init__(self, network: NetworkSettings) -> None:
        self._network = network
        self._manifests: LruCache[str, bytes] = LruCache(_MANIFEST_BYTES)

    def scan(
        self, table: Table, row_filter: BooleanExpression, columns: Sequence[str], *, explains: bool
    ) -> tuple[pa.Table, ScanExplanation]:
        """Returns the rows that match a condition, and what was read for them.

        Args:
            table: the table.
            row_filter: the condition.
            columns: of the rows.
            explains: whether row groups are counted, which reads the footers of the files once more.
        """
        counts = ReadCounts()
        measured = self._measured(table, counts)
        scan = measured.scan(row_filter=row_filter, selected_fields=tuple(columns))
        tasks = list(scan.plan_files())
        rows = scan.to_arrow()
        explanation = self._explain(measured, tasks, counts)
        if explains:
            self._count_row_groups(self._measured(table, ReadCounts()), scan, tasks, explanation)
        return rows, explanation

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
