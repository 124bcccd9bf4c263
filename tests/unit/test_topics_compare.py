"""Messages of a log against rows of a table: whatever pieces they come in, only what differs is told."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.topics.admin.compare import _COLUMNS, _differences

_NOW = datetime(2026, 1, 1, tzinfo=UTC)
_SIDE = st.dictionaries(st.integers(0, 30), st.sampled_from([b"a", b"b"]))


def pieces(side: dict[int, bytes], cuts: list[int]) -> list[pa.Table]:
    rows = sorted(side.items())
    whole = pa.table([[o for o, _ in rows], [_NOW] * len(rows), [p for _, p in rows]], schema=_COLUMNS)
    places = sorted({min(cut, len(rows)) for cut in cuts} | {0, len(rows)})
    return [whole.slice(a, b - a) for a, b in pairwise(places)] + [whole.slice(0, 0)]


@settings(deadline=None, max_examples=200)
@given(_SIDE, _SIDE, st.lists(st.integers(0, 30), max_size=6), st.lists(st.integers(0, 30), max_size=6))
def test_only_what_both_have_and_differs_is_told(log, table, cuts, other_cuts):
    found = [np.zeros(0, np.int64), *_differences(iter(pieces(log, cuts)), iter(pieces(table, other_cuts)))]
    expected = sorted(o for o in log.keys() & table.keys() if log[o] != table[o])
    assert np.concatenate(found).tolist() == expected


def test_another_time_is_another_message():
    one = pa.table([[1], [_NOW], [b"a"]], schema=_COLUMNS)
    other = pa.table([[1], [_NOW.replace(year=2025)], [b"a"]], schema=_COLUMNS)
    assert np.concatenate(list(_differences(iter([one]), iter([other])))).tolist() == [1]
