"""A migration carries over every revision, proves it, and can be killed at any point."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import cache, partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import delete, update

from frazil.documents.fingerprint import Sum, hash_record
from frazil.documents.migration import MigrationReport, plan_migration, run_migration
from frazil.documents.migration_stores import open_present, open_source, resolve_stores
from frazil.documents.model import Revision
from frazil.documents.open import open_store
from frazil.documents.sql import reads
from frazil.documents.sql.schema import document_history, documents
from frazil.documents.sql.store import SqlDocumentStore
from frazil.documents.store import DocumentStore, Write
from frazil.errors import ConflictError, IntegrityError, NotFoundError, UsageError
from frazil.settings import load_settings
from tests.documents_kit import PLACES, Chance, Clock, Oracle, outcome, place_of, require_same_past

NAMES = ("the source", "the target")
_SHOWN = [("sqlite", "sqlite"), ("sqlite", "iceberg")]
_FURTHER = [(a, b) for a in PLACES for b in PLACES if a != b and (a, b) not in _SHOWN and ("sqlite" in (a, b) or a < b)]
_PAIRS = [*_SHOWN, *(pytest.param(*pair, marks=pytest.mark.deep) for pair in _FURTHER)]


@pytest.fixture(autouse=True)
def _small_batches(monkeypatch) -> None:
    """So that a few documents are several batches."""
    monkeypatch.setattr(reads, "_HISTORY_BATCH", 7)
    monkeypatch.setattr(reads, "_TABLE_BATCH", 7)


@cache
def written(seed: int, steps: int) -> tuple[Oracle, list[list[Revision]], datetime]:
    """Random writes to a store; some documents get many revisions, some are deleted."""
    chance, oracle, clock = Chance(seed, 20), Oracle(), Clock()
    with tempfile.TemporaryDirectory() as folder, SqlDocumentStore(f"sqlite:///{folder}/a.db", now=clock) as store:
        oracle.columns = {"pages": store.add_column("pages", "long"), "seen": store.add_column("seen", "timestamp")}
        for step in range(steps):
            clock.advance(seconds=1)
            latest = {i: history[-1].revision for i, history in oracle.histories.items()}
            batch = [chance.write(latest)]
            done = outcome(partial(store.write, batch))
            if isinstance(done, list):
                oracle.apply(batch, done)
            if step % 15 == 0:
                batch = [Write("put", f"added-{step}", {"filename": "a", "pages": step, "seen": 1_700_000_000.5})]
                oracle.apply(batch, store.write(batch))
        return oracle, [list(revisions) for revisions in store.revisions()], clock.now


def fill(store: DocumentStore, clock: Clock, steps: int = 150) -> Oracle:
    """Brings random documents into a store, quickly."""
    oracle, revisions, now = written(1, steps)
    clock.now = now
    for column in oracle.columns.values():
        store.add_column(column.name, column.type)
    store.load_revisions(revisions)
    return copy.deepcopy(oracle)


def migrate(source: Any, target: DocumentStore) -> MigrationReport:
    return run_migration(source, target, plan_migration(source, target, NAMES))


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def source(services, tmp_path: Path, clock: Clock) -> Iterator[SqlDocumentStore]:
    with place_of("sqlite", services, tmp_path, "source").open(now=clock) as store:
        yield store


@pytest.fixture
def target(services, tmp_path: Path, clock: Clock) -> Iterator[SqlDocumentStore]:
    with place_of("sqlite", services, tmp_path, "target").open(now=clock) as store:
        yield store


@pytest.mark.parametrize(("from_kind", "to_kind"), _PAIRS)
def test_every_revision_arrives_on_every_kind_of_store(services, tmp_path, clock, from_kind: str, to_kind: str):
    with (
        place_of(from_kind, services, tmp_path, "source").open(now=clock) as source,
        place_of(to_kind, services, tmp_path, "target").open(now=clock) as target,
    ):
        oracle = fill(source, clock)
        before = source.fingerprint()
        report = migrate(source, target)
        assert report.loaded == report.fingerprint.revisions.count == sum(map(len, oracle.histories.values())) > 40
        require_same_past(target, oracle)
        assert target.columns() == source.columns()
        assert target.fingerprint() == source.fingerprint() == before
        assert target.get_statistics() == source.get_statistics() == oracle.statistics()
        again = migrate(source, target)
        assert (again.loaded, again.fingerprint) == (0, report.fingerprint)


def test_whatever_can_be_put_can_be_migrated(source, target, clock):
    odd = "\u00a0\u202e\u2028\u200b\ufeff\U000e0001\ufffe \u0301"
    source.add_column("note", "string")
    source.put_metadata(
        {
            "document_id": "a", "filename": odd, "bucket": odd, "object_key": " ", "version_id": "",
            "size_bytes": 2**63 - 1,
            "content_type": "text/plain; charset=utf-8", "checksum": "md5:" + "a" * 256, "provider": "a_b-1",
            "tags": {odd: odd, **{f"t{n}": "ü" * 128 for n in range(255)}}, "created_at": "0001-01-02T00:00:00.000001Z",
            "attributes": {odd: [1e300, -0.0, 2**64 - 1, -(2**63), None, {"": "\u0000"}], "long": "x" * 60_000},
            "storage_tier": "archive", "restore_status": "restored", "restore_expiry": "9999-12-30T00:00:00Z",
            "note": odd + "\u0085" + "y" * 60_000,
        }
    )  # fmt: skip
    migrate(source, target)
    assert target.get_metadata("a") == source.get_metadata("a")


def test_the_past_is_the_same_in_both_stores(source, target, clock):
    fill(source, clock)
    migrate(source, target)
    for moment in sorted({r.valid_from for batch in source.revisions() for r in batch})[::7]:
        assert target.list_metadata(as_of=moment) == source.list_metadata(as_of=moment)
        assert target.get_statistics(as_of=moment) == source.get_statistics(as_of=moment)


def test_writes_go_on_in_the_target_after_the_last_moment_of_the_source(source, target, clock):
    source.put_metadata({"document_id": "a", "filename": "a"})
    migrate(source, target)
    clock.advance(seconds=-3600)
    made = target.update_metadata("a", {"filename": "b"})
    assert made["revision"] == 2
    assert target.history("a")[1].valid_from > source.history("a")[0].valid_from


# -- the target --------------------------------------------------------------------------------------------------------


def test_a_target_with_a_part_gets_the_rest_and_nothing_is_copied_twice(source, target, clock):
    fill(source, clock)
    histories = {}
    for batch in source.revisions():
        for revision in batch:
            histories.setdefault(revision.document_id, []).append(revision)
    for column in source.columns().values():
        target.add_column(column.name, column.type)
    ids = sorted(histories)
    target.load_revisions([histories[ids[0]] + histories[ids[1]], histories[ids[4]]])
    plan = plan_migration(source, target, NAMES)
    assert plan.after == ids[1]
    assert plan.present == len(histories[ids[0]]) + len(histories[ids[1]]) + len(histories[ids[4]])
    report = run_migration(source, target, plan)
    assert report.loaded == report.fingerprint.revisions.count - plan.present
    assert target.fingerprint() == source.fingerprint()


def test_a_second_migration_copies_what_is_new_in_the_source(source, target, clock):
    fill(source, clock)
    migrate(source, target)
    clock.advance(seconds=1)
    source.write([Write("put", "0-first", {"filename": "f"}), Write("put", "zz-last", {"filename": "l"})])
    source.write([Write("delete", "added-0")])
    assert migrate(source, target).loaded == 3
    assert target.fingerprint() == source.fingerprint()


@pytest.mark.parametrize("document_id", ["0-first", "doc-5x", "zz-last"])
def test_a_target_with_another_document_is_refused_and_not_changed(source, target, clock, document_id: str):
    fill(source, clock)
    target.put_metadata({"document_id": document_id, "filename": "x"})
    before = target.fingerprint()
    with pytest.raises(ConflictError, match=f"the target has document '{document_id}', which is not in the source"):
        plan_migration(source, target, NAMES)
    assert target.fingerprint() == before


def test_a_target_with_another_past_is_refused_and_not_changed(source, target, clock):
    fill(source, clock)
    migrate(source, target)
    target.put_metadata({"document_id": "added-15", "filename": "changed in the target"})
    before = target.fingerprint()
    with pytest.raises(ConflictError, match="the target has another past of document 'added-15'"):
        plan_migration(source, target, NAMES)
    assert target.fingerprint() == before


def test_a_column_of_another_type_is_refused(source, target):
    source.add_column("pages", "long")
    target.add_column("pages", "string")
    with pytest.raises(ConflictError, match="column 'pages' has type long in the source, and string in the target"):
        plan_migration(source, target, NAMES)


# -- what goes wrong meanwhile -----------------------------------------------------------------------------------------


class Disturbed:
    """A source that is changed by others after so many batches were read, or after its fingerprint was taken."""

    def __init__(self, store: SqlDocumentStore, after: int | None, change: Callable[[], Any]) -> None:
        self._store, self._after, self._change = store, after, change

    def history_tables(self, after: str | None = None) -> Iterator[pa.Table]:
        for batch in self._store.history_tables(after):
            if self._after is not None:
                self._after -= 1
                if self._after == 0:
                    self._change()
            yield batch

    def fingerprint(self, *given: Any, **more: Any) -> Any:
        made = self._store.fingerprint(*given, **more)
        if self._after is None:
            self._change()
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(
    ("after", "write"),
    [
        (1, Write("update", "0-first", {"filename": "changed"})),
        (3, Write("put", "0-new", {"filename": "new"})),
        (None, Write("put", "zzz-new", {"filename": "new"})),
        (None, Write("delete", "added-75")),
    ],
)
def test_a_source_that_changes_is_named_with_its_documents_and_a_repetition_succeeds(
    source, target, clock, after: int | None, write: Write
):
    fill(source, clock)
    source.put_metadata({"document_id": "0-first", "filename": "first"})

    def change() -> None:
        clock.advance(seconds=1)
        source.write([write])

    # All are copied, and then all are read again, where a change may come too late.
    with pytest.raises(ConflictError) as refused:
        migrate(Disturbed(source, after, change), target)
    assert "the source was changed during the migration: 1 document differs" in refused.value.message
    assert str(write.document_id) in refused.value.message
    migrate(source, target)
    assert target.fingerprint() == source.fingerprint()


def test_a_change_that_the_copy_has_seen_is_no_fault(source, target, clock):
    fill(source, clock)
    first = next(iter(source.revisions()))[-1].document_id
    disturbed = Disturbed(source, 1, lambda: source.put_metadata({"document_id": "zzz", "filename": "new"}))
    assert first < "zzz"
    assert migrate(disturbed, target).loaded == source.fingerprint().revisions.count


def test_a_target_that_loses_revisions_is_found_out(source, target, clock, monkeypatch):
    fill(source, clock)
    plain = target.load_table

    def load(revisions: pa.Table) -> int:
        count = plain(revisions)
        with target._engine.begin() as connection:
            connection.execute(delete(document_history).where(document_history.c.document_id == "added-30"))
        return count

    monkeypatch.setattr(target, "load_table", load)
    with pytest.raises(IntegrityError, match=r"has not what was written to it: 1 document differs \(added-30\)"):
        migrate(source, target)


def test_a_target_whose_listing_differs_from_its_history_is_found_out(source, target, clock):
    fill(source, clock)
    migrate(source, target)
    with target._engine.begin() as connection:
        connection.execute(update(documents).where(documents.c.document_id == "added-30").values(filename="other"))
    with pytest.raises(IntegrityError, match="lists other documents than its history has"):
        migrate(source, target)


def test_the_source_is_opened_without_a_change_to_its_file(source, target, clock, tmp_path):
    fill(source, clock)
    source.close()
    (file,) = [f for f in tmp_path.rglob("documents.db") if str(f) in source._engine.url.database]
    before = hashlib.sha256(file.read_bytes()).hexdigest()
    file.chmod(0o400)
    with open_source(load_settings(environ={}, folder=tmp_path), f"sqlite:///{file}") as opened:
        migrate(opened, target)
    assert hashlib.sha256(file.read_bytes()).hexdigest() == before


def _killed(tmp_path: Path, source: Path, first: int, every: int) -> list[dict[str, Any]]:
    """What each kill left behind, and what came of the repetition."""
    command = [sys.executable, "-m", "tests.migration_victim", "sqlite", source, tmp_path, str(first), str(every)]
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=250)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_migration_that_is_killed_at_any_step_is_finished_by_its_repetition(source, clock, tmp_path, every: int):
    fill(source, clock, steps=60)
    total = source.fingerprint().revisions.count
    seen = _killed(tmp_path, Path(source._engine.url.database), 1, every)
    assert len(seen) > 100 / every
    assert all(step["same"] for step in seen), seen
    assert all(step["killed"] for step in seen[:-1])
    assert not seen[-1]["killed"]
    assert all(step["present"] + step["loaded"] == total for step in seen)
    assert len({step["present"] for step in seen}) > 3, "kills in the middle of the copy"


@pytest.mark.parametrize(
    "every",
    [pytest.param(70, marks=pytest.mark.deep), pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])],
)
def test_a_migration_to_iceberg_that_is_killed_at_any_step_is_finished_by_its_repetition(
    source, clock, tmp_path, every: int
):
    fill(source, clock, steps=60)
    file = source._engine.url.database
    present = set()
    for step in range(1, 10_000, every):
        home = tmp_path / f"home-{step}"
        command = [sys.executable, "-m", "tests.migration_victim", "iceberg", file, home, str(step)]
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, timeout=100)
        assert done.returncode in (0, -9), done.stderr
        with open_store(load_settings(flags={"home": str(home)}, environ={}, folder=tmp_path), "iceberg") as target:
            plan = plan_migration(source, target, NAMES)
            present.add(plan.present)
            run_migration(source, target, plan)
            assert target.fingerprint() == source.fingerprint(), f"after a kill at step {step}"
        if done.returncode == 0:
            break
    assert len(present) > 3, "kills in the middle of the copy"


# -- which stores ------------------------------------------------------------------------------------------------------


def settings(tmp_path: Path, url: str | None = None) -> Any:
    flags = {"home": str(tmp_path / "home")} | ({"database.url": url} if url else {})
    return load_settings(flags=flags, environ={}, folder=tmp_path)


def test_kinds_take_their_urls_from_settings_or_defaults(tmp_path):
    own = settings(tmp_path, "mysql://user@host/documents")
    default = f"sqlite:///{tmp_path / 'home' / 'documents.db'}"
    assert resolve_stores(own, "sqlite", "iceberg") == (default, "iceberg")
    assert resolve_stores(own, "mysql", "sqlite") == ("mysql://user@host/documents", default)
    assert resolve_stores(own, "mysql", "postgresql://h/d")[1] == "postgresql://h/d"
    other = settings(tmp_path, f"sqlite:///{tmp_path / 'other.db'}")
    assert resolve_stores(other, "sqlite", "iceberg")[0] == f"sqlite:///{tmp_path / 'other.db'}"


@pytest.mark.parametrize(
    ("source", "target", "says"),
    [
        ("sqlite", "sqlite", "the same store"),
        ("iceberg", "iceberg", "the same store"),
        ("sqlite", "postgresql", "the URL of the postgresql store is not known"),
        ("mysql", "sqlite", "the URL of the mysql store is not known"),
        ("oracle", "sqlite", "'oracle' is no store"),
    ],
)
def test_stores_that_cannot_be_meant_are_refused(tmp_path, source: str, target: str, says: str):
    with pytest.raises(UsageError, match=says):
        resolve_stores(settings(tmp_path), source, target)


def test_a_source_that_does_not_exist_is_not_created(tmp_path):
    missing = tmp_path / "missing.db"
    with pytest.raises(NotFoundError), open_source(settings(tmp_path), f"sqlite:///{missing}"):
        pass
    assert not missing.exists()


def test_a_database_of_somebody_else_is_no_source_and_gets_no_tables(tmp_path):
    import sqlite3

    file = tmp_path / "other.db"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE documents (id INTEGER)")
    before = file.read_bytes()
    with pytest.raises(NotFoundError, match="has no documents"), open_source(settings(tmp_path), f"sqlite:///{file}"):
        pass
    assert file.read_bytes() == before


def test_a_plan_does_not_create_its_target(tmp_path, source, clock):
    fill(source, clock, steps=5)
    missing = tmp_path / "target.db"
    with open_present(settings(tmp_path), f"sqlite:///{missing}") as present:
        plan = plan_migration(source, present, NAMES)
    assert (plan.present, plan.after) == (0, None)
    assert [column.name for column in plan.columns] == ["pages", "seen"]
    assert not missing.exists()


@pytest.mark.deep
def test_a_plan_to_a_server_without_the_database_is_refused(services, tmp_path):
    url = f"{services.postgres.url.rpartition('/')[0]}/no_such_database"
    with pytest.raises(NotFoundError, match="no_such_database does not exist"), open_present(settings(tmp_path), url):
        pass


# -- the fingerprint ---------------------------------------------------------------------------------------------------


_CHANGES = [
    {"filename": "A"}, {"size_bytes": 0}, {"bucket": ""}, {"tags": '{"x":"1","y":"3"}'}, {"attributes": '{"a":1}'},
    {"created_at": 1}, {"updated_at": 1}, {"revision": 7}, {"columns": '{"pages":2}'}, {"columns": None},
    {"operation": "update"}, {"valid_from": 1}, {"storage_tier": "archive"}, {"restore_expiry": 1}, {"checksum": "x"},
]  # fmt: skip


@pytest.mark.parametrize("change", _CHANGES, ids=lambda change: "-".join(change))
def test_a_fingerprint_depends_on_every_field(source, clock, change: dict[str, Any]):
    source.add_column("pages", "long")
    source.write([Write("put", i, {"filename": i, "tags": {"x": "1", "y": "2"}, "pages": 1}) for i in "abc"])
    before = source.fingerprint()
    assert before.listed == before.documents
    for table, names in ((document_history, ("revisions", "documents")), (documents, ("listed",))):
        with source._engine.begin() as connection:
            connection.execute(update(table).where(table.c.document_id == "b").values(**change))
        after = source.fingerprint()
        assert [n for n in ("revisions", "documents") if getattr(after, n) != getattr(before, n)] == [
            "revisions", "documents",
        ]  # fmt: skip
        assert (after.listed != before.listed) == (names == ("listed",))


def test_a_fingerprint_does_not_depend_on_the_order_of_rows_or_keys(source, target, clock):
    rows = [Write("put", i, {"filename": i, "tags": {"x": "1", "y": "2"}}) for i in "abc"]
    source.write(rows)
    (revisions,) = [list(batch) for batch in source.revisions()]
    target.load_revisions([[revision] for revision in reversed(revisions)])
    assert target.fingerprint() == source.fingerprint()
    with target._engine.begin() as connection:
        connection.execute(update(document_history).values(tags='{"y":"2","x":"1"}'))
        connection.execute(update(documents).values(tags='{"y":"2","x":"1"}'))
    assert target.fingerprint() != source.fingerprint()
    assert target.fingerprint(canonical=True) == source.fingerprint(canonical=True)
    assert migrate(source, target).loaded == 0, "the order of keys means nothing"


def test_doubled_records_do_not_cancel_out():
    """As they would with XOR."""
    once, three = Sum(), Sum()
    once.add([hash_record(("a", None, 1))])
    three.add([hash_record(("a", None, 1))] * 3)
    assert once.hash != three.hash


def test_neighbouring_values_cannot_be_mistaken_for_each_other():
    records = [("ab", "c"), ("a", "bc"), ("abc", None), ("a', 'b", "c"), ("None", None), (None, "None"), ("1", 1)]
    assert len(set(map(hash_record, records))) == len(records)
