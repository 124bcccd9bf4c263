"""A small sink on the keyed-table sink, as an author of sinks would write one: amounts, and their sums by name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from frazil.tables import ensure_table
from frazil.tables.writing.type_conversion import RejectedRow
from frazil.topics.sinks.keyed import KeyedTableSink
from frazil.topics.sinks.keyed_bounds import measure_bounds
from frazil.topics.sinks.keyed_tasks import PLACE, Fetch, KeyedLayout, Merged, ParsedMessages
from frazil.topics.sinks.sink import Plan

if TYPE_CHECKING:
    from pyiceberg.table import Table

_AMOUNT = pa.schema([("offset", pa.int64()), ("name", pa.string()), ("amount", pa.int64())])
_COUNTER = pa.schema([("name", pa.string()), ("total", pa.int64())])
LAYOUT = KeyedLayout("counters", pa.schema([*_AMOUNT, *PLACE]), ("name",), rows="counters", side="amounts")


def read_amounts(messages: pa.Table) -> ParsedMessages:
    """Reads messages such as {"name": "a", "amount": 3}."""
    rows: list[dict[str, Any]] = []
    rejected = []
    for number, message in enumerate(messages.select(["offset", "payload"]).to_pylist()):
        try:
            rows.append({**json.loads(message["payload"]), "offset": message["offset"]})
        except ValueError as error:
            rejected.append(RejectedRow(number, "no_json", str(error)))
    amounts = pa.Table.from_pylist(rows, schema=_AMOUNT)
    changes = pa.Table.from_pylist(rows, schema=LAYOUT.changes)
    return ParsedMessages(changes, amounts.num_rows, measure_bounds(amounts, ["name"]), amounts, rejected)


@dataclass(frozen=True)
class Adding:
    """Adds amounts to stored totals; a total of zero goes."""

    def __call__(self, rows: pa.Table, fetch: Fetch, columns: pa.Schema) -> Merged | None:
        totals: dict[str, int] = {}
        stored = rows.filter(rows.column("_file").is_valid()).select(["_file", "_pos"]).combine_chunks()
        places = [stored.column(name).combine_chunks() for name in stored.column_names]
        for row in [*rows.select(["name", "amount"]).to_pylist(), *fetch(_COUNTER, *places).to_pylist()]:
            totals[row["name"]] = totals.get(row["name"], 0) + (row.get("amount") or row.get("total") or 0)
        made = [{"name": name, "total": total} for name, total in totals.items() if total]
        return Merged(pa.Table.from_pylist(made, schema=_COUNTER), *places)


class CounterSink(KeyedTableSink):
    name = "counters"
    layout = LAYOUT
    namespace = "counted"
    partition: Sequence[str] = ()

    def ensure_table(self) -> Table:
        return ensure_table(
            self._store, f"{self.namespace}.counters", _COUNTER, partition=self.partition, sort=["name"]
        )

    def ensure_side_table(self) -> Table:
        return ensure_table(self._store, f"{self.namespace}.amounts", _AMOUNT)

    def table_names(self) -> Sequence[str]:
        return f"{self.namespace}.amounts", f"{self.namespace}.counters"

    def kept_snapshots(self) -> int:
        return 10

    def make_reader(self, table: Table, plan: Plan) -> Any:
        return read_amounts

    def make_decider(self, table: Table, side: Table | None) -> Adding:
        return Adding()
