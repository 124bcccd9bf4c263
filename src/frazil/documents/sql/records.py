"""Reads and writes records on an open connection. The caller decides what to write, and holds the transaction.

`SqlDocumentStore` and the projection of the Iceberg store use the same functions.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any, cast

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, tuple_, update

from frazil.documents.decide import KEY_AGE
from frazil.documents.decide import StoredRevision as StoredRevision
from frazil.documents.model import Column, Revision, from_micros, to_micros
from frazil.documents.sql.bulk import chunks, copy_rows, insert_rows, is_among
from frazil.documents.sql.counts import add_counts, counts_of
from frazil.documents.sql.rows import to_revision, to_row
from frazil.documents.sql.schema import (
    FOREVER,
    REVISION_COLUMNS,
    document_columns,
    document_history,
    documents,
    store_state,
)
from frazil.errors import IntegrityError

_IDS_AT_ONCE = 500
_CLOCK, _SWEPT_UNTIL = "clock", "keys_swept_until"
#: Keys that one look for old ones takes.
_SWEPT = 64
_WITHOUT_KEY = {"idempotency_key": None, "digest": None}

_close_revision = (
    update(document_history)
    .where(
        document_history.c.document_id == bindparam("of_id"), document_history.c.revision == bindparam("of_revision")
    )
    .values(valid_to=bindparam("until"))
)


def load_current(connection: Connection, ids: Collection[str]) -> dict[str, Revision]:
    """Returns the latest revisions of documents, as far as they ever existed; a deleted one's is its delete."""
    found: dict[str, Revision] = {}
    present = select(*(documents.c[name] for name in REVISION_COLUMNS))
    present = present.where(is_among(connection.dialect.name, documents.c.document_id))
    for some in chunks(sorted(ids), _IDS_AT_ONCE):
        for row in connection.execute(present, {"ids": some}):
            found[row[0]] = to_revision(row)
    history = document_history.c
    last = select(*(history[name] for name in REVISION_COLUMNS)).where(history.valid_to == FOREVER)
    last = last.where(is_among(connection.dialect.name, history.document_id))
    for some in chunks(sorted(set(ids) - found.keys()), _IDS_AT_ONCE):
        for row in connection.execute(last, {"ids": some}):
            found[row[0]] = to_revision(row)
    return found


def load_revision(connection: Connection, document_id: str, revision: int) -> Revision | None:
    """Returns one revision of a document."""
    history = document_history.c
    query = select(*(history[name] for name in REVISION_COLUMNS))
    row = connection.execute(query.where(history.document_id == document_id, history.revision == revision)).first()
    return None if row is None else to_revision(row)


def find_repeats(connection: Connection, keys: Collection[str], moment: datetime) -> dict[str, StoredRevision]:
    """Returns what requests with these idempotency keys have made, by key. Keys that are too old are freed.

    Args:
        connection: in the transaction of a write.
        keys: the keys.
        moment: of the write.
    """
    found: dict[str, StoredRevision] = {}
    query = _stored().where(is_among(connection.dialect.name, document_history.c.idempotency_key))
    for some in chunks(sorted(keys), _IDS_AT_ONCE):
        for row in connection.execute(query, {"ids": some}):
            stored = _to_stored(row)
            found[cast("str", stored.idempotency_key)] = stored
    old = [key for key, stored in found.items() if stored.revision.valid_from < moment - KEY_AGE]
    _free_keys(connection, old)
    return {key: found[key] for key in found.keys() - set(old)}


def free_old_keys(connection: Connection, keys: Collection[str], moment: datetime) -> None:
    """Frees those of some idempotency keys that are too old at a moment, so that they can be stored again."""
    _free_keys(connection, keys, before=moment - KEY_AGE)


def drop_old_keys(connection: Connection, moment: datetime) -> None:
    """Frees all idempotency keys that are too old at a moment. It reads the whole history."""
    history = document_history.c
    is_old = history.idempotency_key.is_not(None) & (history.valid_from < to_micros(moment - KEY_AGE))
    connection.execute(update(document_history).where(is_old).values(_WITHOUT_KEY))


def _free_keys(connection: Connection, keys: Collection[str], before: datetime | None = None) -> None:
    history = document_history.c
    change = update(document_history).where(is_among(connection.dialect.name, history.idempotency_key))
    if before is not None:
        change = change.where(history.valid_from < to_micros(before))
    for some in chunks(sorted(keys), _IDS_AT_ONCE):
        connection.execute(change.values(_WITHOUT_KEY), {"ids": some})


def apply_decided(connection: Connection, revisions: Sequence[StoredRevision]) -> None:
    """Does what `apply_revisions` does with revisions decided now, and looks for idempotency keys that are too old."""
    apply_revisions(connection, revisions)
    # By the digest, some sixteenth of the keyed writes look at several times as many keys as came since the last one.
    looks = sum(stored.digest[0] == "0" for stored in revisions if stored.digest)
    if looks:
        _sweep_keys(connection, max(stored.revision.valid_from for stored in revisions), looks * _SWEPT)


def _sweep_keys(connection: Connection, moment: datetime, count: int) -> None:
    """Frees the old ones of the next keys, in the order of the keys, from where the last call has ended."""
    history, oldest = document_history.c, to_micros(moment - KEY_AGE)
    after = read_state(connection, _SWEPT_UNTIL) or ""
    query = select(history.idempotency_key, history.valid_from).where(history.idempotency_key > after)
    rows = connection.execute(query.order_by(history.idempotency_key).limit(count)).all()
    _free_keys(connection, [key for key, valid_from in rows if valid_from < oldest])
    write_state(connection, _SWEPT_UNTIL, rows[-1][0] if len(rows) == count else "")


def apply_revisions(connection: Connection, revisions: Sequence[StoredRevision]) -> None:
    """Stores decided revisions: in the history, in the current documents and in the statistics.

    Args:
        connection: in a transaction that holds the lock of writers.
        revisions: in their order. The revisions of one document follow each other and what is stored, without a gap.

    Raises:
        IntegrityError: they do not.
    """
    if not revisions:
        return
    following: dict[str, StoredRevision] = {}  # by id, the revision after the one at hand
    last: dict[str, tuple[Any, ...] | None] = {}  # by id, the row after them all; None: deleted
    history = []
    for stored in reversed(revisions):
        document_id = stored.revision.document.document_id
        later = following.get(document_id)
        row = to_row(stored.revision)
        if later is None:
            last[document_id] = None if stored.revision.is_deleted else row
            until = FOREVER
        else:
            until = to_micros(later.revision.valid_from)
            if later.revision.revision != stored.revision.revision + 1:
                raise _gap(document_id, later.revision)
        following[document_id] = stored
        history.append((*row, until, stored.idempotency_key, stored.digest))
    history.sort(key=_id_and_revision)  # nearly sequential inserts into the index
    _close(connection, [stored.revision for stored in following.values()])
    insert_rows(connection, document_history, history)
    _replace_current(connection, following, last)


def load_columns(connection: Connection) -> dict[str, Column]:
    """Returns the columns that were added to the store, by name, in the order of their names."""
    rows = connection.execute(select(document_columns).order_by(document_columns.c.name))
    return {row[0]: Column(row[0], row[1]) for row in rows}


def insert_column(connection: Connection, column: Column) -> None:
    connection.execute(insert(document_columns).values(name=column.name, type=column.type))


def read_state(connection: Connection, key: str, *, lock: bool = False) -> str | None:
    """Returns a value of the store itself.

    Args:
        connection: open.
        key: its name.
        lock: on servers, others that lock it wait until this transaction ends.
    """
    query = select(store_state.c.value).where(store_state.c.name == key)
    found: str | None = connection.scalar(query.with_for_update() if lock else query)
    return found


def write_state(connection: Connection, key: str, value: str) -> None:
    insert_rows(connection, store_state, [(key, value)], replace=True)


def read_clock(connection: Connection, *, lock: bool = False) -> datetime | None:
    """Returns the moment of the last acknowledgement."""
    micros = read_state(connection, _CLOCK, lock=lock)
    return from_micros(int(micros)) if micros else None


def write_clock(connection: Connection, moment: datetime) -> None:
    write_state(connection, _CLOCK, str(to_micros(moment)))


def read_histories(connection: Connection, after: str | None, limit: int) -> list[StoredRevision]:
    """Returns about so many revisions of the documents that follow an id, by id and revision; no document is split."""
    history = document_history.c
    query = _stored().order_by(history.document_id, history.revision)
    rows = connection.execute((query if after is None else query.where(history.document_id > after)).limit(limit)).all()
    if len(rows) < limit:
        return [_to_stored(row) for row in rows]
    cut = rows[-1][0]  # more of its revisions may follow
    whole = [row for row in rows if row[0] != cut]
    return [_to_stored(row) for row in whole or connection.execute(query.where(history.document_id == cut)).all()]


def load_histories(connection: Connection, ids: Collection[str]) -> dict[str, list[StoredRevision]]:
    """Returns all revisions of documents, oldest first, as far as they ever existed."""
    found: dict[str, list[StoredRevision]] = {}
    history = document_history.c
    query = (
        _stored()
        .order_by(history.document_id, history.revision)
        .where(is_among(connection.dialect.name, history.document_id))
    )
    for some in chunks(sorted(ids), _IDS_AT_ONCE):
        for row in connection.execute(query, {"ids": some}):
            found.setdefault(row[0], []).append(_to_stored(row))
    return found


def _close(connection: Connection, first: Iterable[Revision]) -> None:
    """Ends the stored revisions that these follow."""
    ends = [(r.document_id, r.revision - 1, to_micros(r.valid_from)) for r in first if r.revision > 1]
    if not ends:
        return
    if connection.dialect.name == "sqlite":
        names = ("of_id", "of_revision", "until")
        closed = connection.execute(_close_revision, [dict(zip(names, end, strict=True)) for end in ends]).rowcount
    else:
        closed = _close_by_moment(connection, ends)
    if closed != len(ends):
        raise IntegrityError(
            f"{len(ends) - closed} revisions do not follow the ones that are stored", hint="frazil docs verify"
        )


def _close_by_moment(connection: Connection, ends: Iterable[tuple[str, int, int]]) -> int:
    """One statement for many rows: drivers of servers send the rows of `executemany` one by one."""
    by_moment: dict[int, list[tuple[str, int]]] = {}
    for document_id, revision, until in ends:
        by_moment.setdefault(until, []).append((document_id, revision))
    history = document_history.c
    key, closed = tuple_(history.document_id, history.revision), 0
    for until, keys in by_moment.items():
        for some in chunks(keys, _IDS_AT_ONCE):
            # MariaDB uses no index for pairs alone.
            ids = history.document_id.in_([document_id for document_id, _ in some])
            change = update(document_history).where(ids, key.in_(some)).values(valid_to=until)
            closed += connection.execute(change).rowcount
    return closed


def _replace_current(
    connection: Connection, first: Mapping[str, StoredRevision], last: Mapping[str, tuple[Any, ...] | None]
) -> None:
    known = [document_id for document_id, stored in first.items() if stored.revision.revision > 1]
    changes = counts_of(connection, known)
    removed, present = [], []
    for document_id, row in last.items():
        if row is None:
            removed.append(document_id)
        else:
            present.append(document_id)
            changes.add(row)
    removal = delete(documents).where(is_among(connection.dialect.name, documents.c.document_id))
    for some in chunks(removed, _IDS_AT_ONCE):
        connection.execute(removal, {"ids": some})
    # Copying what is in the history already costs half of sending it again.
    copy = _copy_latest(connection.dialect.name)
    for some in chunks(sorted(present), _IDS_AT_ONCE):
        connection.execute(copy, {"ids": some})
    add_counts(connection, changes)


def _id_and_revision(row: Sequence[Any]) -> tuple[str, int]:
    return row[0], row[17]


@cache
def _copy_latest(dialect: str) -> Any:
    history = document_history.c
    source = select(*(history[column.name] for column in documents.columns)).where(
        is_among(dialect, history.document_id), history.valid_to == FOREVER, history.operation != "delete"
    )
    return copy_rows(dialect, documents, source)


def _gap(document_id: str, revision: Revision) -> IntegrityError:
    return IntegrityError(f"revision {revision.revision} of document '{document_id}' does not follow the one before it")


def _stored() -> Any:
    history = document_history.c
    return select(*(history[name] for name in REVISION_COLUMNS), history.idempotency_key, history.digest)


def _to_stored(row: Row[Any]) -> StoredRevision:
    return StoredRevision(to_revision(row), row.idempotency_key, row.digest)
