"""What is promised to be on disk is on disk when it is promised, as the kernel saw it (`tests/witness.py`).

One run of `tests/witness_work.py` is watched, and each test asks its trace.
"""

from __future__ import annotations

import re

import pytest

from tests.witness import Disk, Trace, at_the_end, moments, points, witnessed

SEGMENT, TABLES = r"/topics/[^/]+/\d{20}\.seg$", r"/home/(warehouse/|catalog\.db)"
#: SQLite's index of its write-ahead log; it is made anew after a crash.
NOT_KEPT = r"catalog\.db-shm$"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    root = tmp_path_factory.mktemp("witness") / "root"
    root.mkdir()
    return witnessed(root, "-m", "tests.witness_work", str(root))


def lost(disk: Disk, pattern: str) -> list[str]:
    return [what for what in disk.lost(pattern) if not re.search(NOT_KEPT, what)]


def test_an_acknowledged_message_is_on_disk_and_so_is_the_name_of_its_segment(trace: Trace) -> None:
    told = [(name, lost(disk, SEGMENT), len(disk.seen(SEGMENT))) for name, disk in points(trace)]
    published = [t for t in told if t[0].startswith(("published", "appended"))]
    assert len(published) > 20
    assert published[-1][2] > 4, "several segments"
    assert [t[:2] for t in published if t[1]] == []


def test_what_a_topic_was_told_is_on_disk(trace: Trace) -> None:
    names = {"created", "registered", "subscribed", "configured"}
    told = {name: lost(disk, r"/log/topics") for name, disk in points(trace) if name in names}
    assert set(told) == names
    # The synced mark need not be exact after a power cut.
    assert [what for whole in told.values() for what in whole if not what.endswith("/synced")] == []


def test_a_segment_is_on_disk_before_the_next_one_begins(trace: Trace) -> None:
    begun = list(moments(trace, lambda c: c.name == "openat" and "O_EXCL" in c.arguments and ".seg" in c.arguments))
    assert len(begun) > 5
    assert [lost(disk, SEGMENT) for _, disk in begun] == [[]] * len(begun)


def test_the_mark_never_runs_ahead_of_what_it_vouches_for(trace: Trace) -> None:
    written = list(moments(trace, lambda c: c.name == "pwrite64" and c.handle.endswith("/orders/synced")))
    assert len(written) > 20
    assert [lost(disk, SEGMENT) for _, disk in written] == [[]] * len(written)


def test_the_catalog_points_only_to_what_is_on_disk(trace: Trace) -> None:
    """Data files, delete files, manifests and metadata.json are; a server writes its metadata.json itself."""
    assert at_the_end(trace).seen(r"-deletes\.parquet$")
    kinds = {r"\.parquet$", r"/snap-[^/]*\.avro$", r"-m\d+\.avro$", r"\.metadata\.json$"}
    for name, disk in points(trace):
        if name == "committed":
            assert all(disk.seen(kind) for kind in kinds)
            break
    moved = list(moments(trace, lambda c: c.name == "pwrite64" and c.handle.endswith("catalog.db-wal")))
    assert len(moved) > 20
    assert {what for _, disk in moved for what in lost(disk, r"/warehouse/.*(parquet|avro)$")} == set()
    first = [disk for name, disk in points(trace) if name == "committed"][:1]
    assert [lost(disk, TABLES) for disk in first] == [[]]


@pytest.mark.parametrize("how", ["committed by a server", "committed by a server whose answer was lost"])
def test_what_a_server_on_this_machine_wrote_is_on_disk_when_the_commit_returns(trace: Trace, how: str) -> None:
    (disk,) = [disk.seen(r"metadata\.json$") and lost(disk, TABLES) for name, disk in points(trace) if name == how]
    assert disk == []


def test_the_log_lets_go_of_messages_only_when_their_table_is_on_disk(trace: Trace) -> None:
    removed = list(moments(trace, lambda c: c.name.startswith("unlink") and c.paths[0].endswith(".seg")))
    assert len(removed) >= 5, "after each kind of commit"
    for call, disk in removed:
        assert lost(disk, TABLES) == [], call.paths


def test_segments_are_removed_one_by_one(trace: Trace) -> None:
    """A power cut must not leave a hole: the name of the one before is gone for good."""
    for _, disk in moments(trace, lambda c: c.name.startswith("unlink") and c.paths[0].endswith(".seg")):
        gone = [name for names in disk.removed.values() for name in names if name.endswith(".seg")]
        assert gone == []


def test_a_put_is_on_disk_when_it_returns(trace: Trace) -> None:
    names = ["put", "put over", "put where nothing was", "put where the etag fits", "copied"]
    told = [(name, lost(disk, "/store/"), bool(disk.seen("/store/"))) for name, disk in points(trace)]
    assert [t for t in told if t[0] in names] == [(name, [], True) for name in names]
