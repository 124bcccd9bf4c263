"""A backup repository in a folder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from frazil.backup.format import (
    FEATURES,
    BackupRecord,
    BlobRef,
    CopiedFile,
    DamagedRecord,
    compress,
    decompress,
    encode_files,
    parse_files,
    seal,
    unseal,
)
from frazil.backup.repository import DataSource, ErasedError, Repository
from frazil.backup.verify import verify_repository
from frazil.errors import (
    ConflictError,
    FrazilError,
    IntegrityError,
    NotFoundError,
    UnavailableError,
    UnsupportedError,
    UsageError,
)
from frazil.storage.bulk import FileSource, LocalBulk, read_file, write_file
from tests.repository_kit import (
    NETWORK,
    S3,
    back_up,
    files_of,
    open_local,
    record_of,
    store_table,
    write_sources,
)
from tests.small_disk import small_disk

CONTENTS = {"a.parquet": b"a" * 1000, "b.parquet": b"b" * 2000, "c.parquet": b"c" * 3000}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    return open_local(tmp_path / "repository")


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    return write_sources(tmp_path / "sources", CONTENTS)


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


# Blobs


def test_data_is_stored_once_under_its_size_and_digest(repository: Repository, sources: dict[str, Path]) -> None:
    source = DataSource(str(sources["a.parquet"]), 1000, S3, NETWORK)
    blob = repository.put_data(source)
    assert blob == BlobRef.of(CONTENTS["a.parquet"]) == repository.put_data(replace(source, size=None))
    assert repository.has_data(blob)
    assert b"".join(repository.open_data(blob)) == CONTENTS["a.parquet"]
    path = repository.location.path / f"data/{blob.sha256[:2]}/1000-{blob.sha256}"
    assert [path] == [p for p in files_of(repository.location.path) if "data" in p.parts]


@pytest.mark.parametrize("spelling", ["{}", "file:{}", "file://{}"])
def test_every_spelling_of_a_local_path_is_read(
    repository: Repository, sources: dict[str, Path], spelling: str
) -> None:
    blob = repository.put_data(DataSource(spelling.format(sources["b.parquet"]), None, S3, NETWORK))
    assert blob == BlobRef.of(CONTENTS["b.parquet"])


def test_a_missing_source_is_not_found_and_leaves_nothing(repository: Repository, tmp_path: Path) -> None:
    before = files_of(repository.location.path)
    with pytest.raises(NotFoundError, match=r"gone\.parquet"):
        repository.put_data(DataSource(str(tmp_path / "gone.parquet"), 10, S3, NETWORK))
    assert files_of(repository.location.path) == before


def test_two_creates_of_one_blob_at_once_leave_it_whole(repository: Repository, tmp_path: Path) -> None:
    content = os.urandom(3_000_000)
    source = write_sources(tmp_path / "more", {"x": content})["x"]
    others = [open_local(repository.location.path, create=False) for _ in range(8)]
    barrier = threading.Barrier(8)

    def put(one: Repository) -> BlobRef:
        barrier.wait()
        return one.put_data(DataSource(str(source), len(content), S3, NETWORK))

    with ThreadPoolExecutor(8) as threads:
        blobs = set(threads.map(put, others))
    assert blobs == {BlobRef.of(content)}
    assert b"".join(repository.open_data(blobs.pop())) == content


def test_a_damaged_copy_is_healed_by_the_next_copy_of_the_same_content(
    repository: Repository, sources: dict[str, Path]
) -> None:
    source = DataSource(str(sources["a.parquet"]), 1000, S3, NETWORK)
    blob = repository.put_data(source)
    path = repository.location.path / f"data/{blob.shard}/{blob}"
    path.write_bytes(b"b" * 1000)
    with pytest.raises(IntegrityError, match=str(blob)):
        list(repository.open_data(blob))
    repository.put_data(source)
    assert b"".join(repository.open_data(blob)) == CONTENTS["a.parquet"]


def test_copying_out_compares_every_byte(repository: Repository, sources: dict[str, Path], tmp_path: Path) -> None:
    blob = repository.put_data(DataSource(str(sources["a.parquet"]), 1000, S3, NETWORK))
    target = tmp_path / "restored/deep/a.parquet"
    repository.copy_data_to(blob, str(target), s3=S3, network=NETWORK)
    assert target.read_bytes() == CONTENTS["a.parquet"]
    (repository.location.path / f"data/{blob.shard}/{blob}").write_bytes(b"a" * 999 + b"b")
    with pytest.raises(IntegrityError, match=str(blob)):
        repository.copy_data_to(blob, str(target), s3=S3, network=NETWORK)
    assert target.read_bytes() == CONTENTS["a.parquet"]
    assert files_of(tmp_path / "restored") == [target]


def test_a_file_that_must_have_a_digest_is_not_written_with_another(tmp_path: Path) -> None:
    source = write_sources(tmp_path, {"x": b"content"})["x"]
    with pytest.raises(IntegrityError, match="target"):
        write_file(
            str(tmp_path / "target"), FileSource(str(source), 7, S3, NETWORK), 7, "0" * 64, s3=S3, network=NETWORK
        )
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize("content", [b"", b"x", b"metadata" * 100_000])
def test_metadata_is_kept_byte_for_byte_and_read_by_standard_tools(repository: Repository, content: bytes) -> None:
    blob = repository.put_meta(content)
    assert repository.has_meta(blob)
    assert repository.get_meta(blob) == content
    path = repository.location.path / f"meta/{blob.shard}/{blob}.zst"
    assert subprocess.run(["zstd", "-dc", path], capture_output=True, check=True).stdout == content


def test_a_flip_of_any_bit_of_compressed_metadata_is_noticed() -> None:
    data = compress(b"some metadata, some metadata, and more of it")
    for bit in range(len(data) * 8):
        with pytest.raises(IntegrityError):
            decompress(flipped(data, bit), "x")
    for length in range(len(data)):
        with pytest.raises(IntegrityError):
            decompress(data[:length], "x")


@pytest.mark.parametrize(
    "name", ["", "1", "../../x", "1-" + "A" * 64, "01-" + "a" * 64, "-1-" + "a" * 64, "1-" + "a" * 64 + "\n"]
)
def test_what_is_not_the_name_of_a_blob_is_refused(name: str) -> None:
    with pytest.raises(IntegrityError):
        BlobRef.parse(name)


def test_a_file_list_keeps_any_path() -> None:
    files = [
        CopiedFile(f"s3://b/{name}", 1, None, 2, "AVRO") for name in ("a b", "ü/日本", 'q"uote', "new\nline", "%2F")
    ]
    assert list(parse_files(encode_files(files), "x")) == files


@pytest.mark.parametrize("damaged", [b"{", b"[]\n", b'{"path": "x"}\n', b"null\n", b"\xff\n"])
def test_what_is_not_a_file_list_is_refused(damaged: bytes) -> None:
    with pytest.raises(IntegrityError):
        list(parse_files(damaged, "x"))


# Header and records


def test_a_repository_is_made_only_when_it_is_wanted(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no backup repository"):
        open_local(tmp_path / "r", create=False)
    assert not (tmp_path / "r").exists()
    made = open_local(tmp_path / "r")
    assert open_local(tmp_path / "r").id == open_local(tmp_path / "r", create=False).id == made.id


def test_two_that_make_a_repository_at_once_make_one(tmp_path: Path) -> None:
    barrier = threading.Barrier(6)

    def make(_: int) -> str:
        barrier.wait()
        return open_local(tmp_path / "r").id

    with ThreadPoolExecutor(6) as threads:
        assert len(set(threads.map(make, range(6)))) == 1


def test_a_lost_header_is_not_replaced_by_that_of_a_new_repository(
    repository: Repository, sources: dict[str, Path]
) -> None:
    back_up(repository, "one", sources)
    (repository.location.path / "repository.json").unlink()
    for create in (False, True):
        with pytest.raises(IntegrityError, match=r"repository\.json is missing"):
            open_local(repository.location.path, create=create)


def edited(sealed: bytes, **changes: object) -> bytes:
    """The same object with other fields, sealed anew."""
    fields = {k: v for k, v in json.loads(sealed).items() if k != "sha256"} | changes
    return seal(fields)


#: What may have become of a header or record, and the error that it leads to.
DAMAGES: dict[str, tuple[Callable[[bytes], bytes], type[FrazilError], str]] = {
    "empty": (lambda _: b"", IntegrityError, "cut off or damaged"),
    "truncated": (lambda data: data[: len(data) // 2], IntegrityError, "cut off or damaged"),
    "cut by a byte": (lambda data: data[:-1], IntegrityError, "not a .* of Frazil"),
    "flipped": (lambda data: flipped(data, 200), IntegrityError, "damaged"),
    "foreign": (lambda _: b'{"version": 2, "id": "restic"}\n', IntegrityError, "not a .* of Frazil"),
    "foreign binary": (lambda _: os.urandom(300), IntegrityError, "cut off or damaged"),
    "newer": (lambda data: edited(data, format=2), UnsupportedError, "format 2, which is newer"),
    "unknown feature": (lambda data: edited(data, features=["encrypted"]), UnsupportedError, "lacks: encrypted"),
    "without format": (lambda data: edited(data, format=None), IntegrityError, "states no format"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_header_is_refused_and_nothing_changes(repository: Repository, damage: str) -> None:
    change, error, message = DAMAGES[damage]
    path = repository.location.path / "repository.json"
    path.write_bytes(bad := change(path.read_bytes()))
    for create in (False, True):
        with pytest.raises(error, match=message) as caught:
            open_local(repository.location.path, create=create)
        assert caught.value.hint
        assert "repository.json" in caught.value.message
    assert path.read_bytes() == bad


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_bad_record_is_refused_and_the_others_are_listed(
    repository: Repository, sources: dict[str, Path], damage: str
) -> None:
    change, error, message = DAMAGES[damage]
    back_up(repository, "good", sources)
    back_up(repository, "bad", sources)
    path = repository.location.path / "backups/bad.json"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(error, match=message) as caught:
        repository.read_record("bad")
    assert caught.value.hint
    assert caught.value.exit_code == error.exit_code
    good, bad = repository.list_records()
    assert isinstance(good, BackupRecord)
    assert good.name == "good"
    assert isinstance(bad, DamagedRecord)
    assert isinstance(bad.error, error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "other"}, "record of another backup"),
        ({"repository": "another-id"}, "another repository"),
        ({"tables": [{}]}, "lacks a field"),
        ({"tables": 5}, "lacks a field"),
        ({"started_at": "yesterday"}, "lacks a field"),
        ({"data": "maybe"}, "lacks a field"),
        ({"name": "../x"}, "record of another backup"),
    ],
)
def test_a_sealed_record_with_wrong_content_is_refused(
    repository: Repository, sources: dict[str, Path], changes: dict[str, object], message: str
) -> None:
    back_up(repository, "one", sources)
    path = repository.location.path / "backups/one.json"
    path.write_bytes(edited(path.read_bytes(), **changes))
    with pytest.raises(IntegrityError, match=message):
        repository.read_record("one")
    assert isinstance(repository.list_records()[0], DamagedRecord)


def test_fields_that_a_later_version_adds_are_ignored(repository: Repository, sources: dict[str, Path]) -> None:
    record = back_up(repository, "one", sources)
    path = repository.location.path / "backups/one.json"
    path.write_bytes(edited(path.read_bytes(), note="added in 2027"))
    assert repository.read_record("one") == record


def test_the_seal_is_over_the_bytes_before_it() -> None:
    data = seal({"name": "ü"})
    assert unseal(data, "x", what="thing") == {"format": 1, "features": [], "name": "ü"}
    for bit in range(len(data) * 8):
        with pytest.raises(IntegrityError):
            unseal(flipped(data, bit), "x", what="thing")
    assert not FEATURES


@pytest.mark.parametrize("name", ["..", ".", "../x", "a/b", "/etc/passwd", "", "a\0b", "-x", "x" * 129, "a\n", "ü"])
def test_a_name_that_leads_elsewhere_is_refused(repository: Repository, sources: dict[str, Path], name: str) -> None:
    with pytest.raises(UsageError, match="is invalid") as caught:
        repository.read_record(name)
    assert caught.value.exit_code == 2
    table = store_table(repository, sources)
    with pytest.raises(UsageError):
        repository.write_record(record_of(repository, name, table))
    with pytest.raises(UsageError):
        repository.save_progress(name, "id", {})
    assert repository.list_names() == []


def test_an_unknown_backup_is_not_found_and_near_names_are_offered(
    repository: Repository, sources: dict[str, Path]
) -> None:
    back_up(repository, "nightly-1", sources)
    with pytest.raises(NotFoundError, match="nightly-2") as caught:
        repository.read_record("nightly-2")
    assert "nightly-1" in str(caught.value.hint)
    assert caught.value.exit_code == 10


def test_of_two_backups_with_one_name_the_first_stays(repository: Repository, sources: dict[str, Path]) -> None:
    first = back_up(repository, "one", sources)
    with pytest.raises(ConflictError, match="'one'") as caught:
        back_up(repository, "one", sources, uuid="other")
    assert caught.value.exit_code == 11
    assert repository.read_record("one") == first


def test_the_newest_backup_of_a_table_is_found(repository: Repository, sources: dict[str, Path]) -> None:
    assert repository.find_latest("table-1") is None
    back_up(repository, "z-older", sources)
    back_up(repository, "a-newer", sources)
    back_up(repository, "b-other", sources, uuid="table-2")
    found = repository.find_latest("table-1")
    assert found is not None
    assert (found[0].name, found[1].uuid) == ("a-newer", "table-1")


def test_records_are_read_once_and_again_when_they_change(repository: Repository, sources: dict[str, Path]) -> None:
    back_up(repository, "one", sources)
    second = back_up(repository, "two", sources)
    assert len(repository.list_records()) == 2
    path = repository.location.path / "backups/one.json"
    data = path.read_bytes()
    path.write_bytes(flipped(data, 300))
    assert [one.name for one in repository.list_records() if isinstance(one, DamagedRecord)] == ["one"]
    path.unlink()
    assert repository.list_records() == [second]


def test_progress_survives_until_it_is_cleared(repository: Repository) -> None:
    one, two = BlobRef.of(b"1"), BlobRef.of(b"2")
    repository.save_progress("table", "first", {"/a": one})
    repository.save_progress("table", "second", {"/b": two})
    repository.save_progress("other", "third", {"/c": two})
    assert repository.read_progress("table") == {"/a": one, "/b": two}
    (repository.location.path / "progress/table/first.json").write_bytes(b"damaged")
    assert repository.read_progress("table") == {"/b": two}
    repository.clear_progress("table", ["second"])
    assert repository.read_progress("table") == {}
    repository.clear_progress("table")
    assert repository.read_progress("other") == {"/c": two}


# Erased content


def test_erased_content_says_when_and_why(repository: Repository, sources: dict[str, Path], tmp_path: Path) -> None:
    back_up(repository, "one", sources)
    blob = BlobRef.of(CONTENTS["b.parquet"])
    tombstone = repository.erase(blob, "request 17")
    assert repository.read_tombstone(blob) == tombstone
    assert not repository.has_data(blob)
    with pytest.raises(ErasedError, match="was erased on") as caught:
        list(repository.open_data(blob))
    assert caught.value.cause == "request 17"
    with pytest.raises(ErasedError):
        repository.copy_data_to(blob, str(tmp_path / "x"), s3=S3, network=NETWORK)
    with pytest.raises(ErasedError):
        repository.erase(blob, "again")
    with pytest.raises(NotFoundError, match="is missing"):
        repository.erase(BlobRef.of(b"never there"), "why")
    report = verify_repository(repository, level="checksums")
    assert report.is_sound
    assert report.backups == {"one": "erased"}
    assert [(f.problem, f.backups) for f in report.findings] == [("erased", ("one",))]
    assert "request 17" in report.findings[0].detail


def test_a_damaged_tombstone_is_named(repository: Repository, sources: dict[str, Path]) -> None:
    back_up(repository, "one", sources)
    blob = BlobRef.of(CONTENTS["b.parquet"])
    repository.erase(blob, "request 17")
    path = repository.location.path / f"data/{blob.shard}/{blob}.erased"
    path.write_bytes(flipped(path.read_bytes(), 300))
    report = verify_repository(repository, level="checksums")
    assert not report.is_sound
    assert report.backups == {"one": "damaged"}


# Verify


def test_a_sound_repository_is_sound(repository: Repository, sources: dict[str, Path]) -> None:
    back_up(repository, "one", sources)
    back_up(repository, "two", sources, uuid="table-2")
    for level in ("listing", "checksums", "sample"):
        report = verify_repository(repository, level=level, sample=(1, 2))
        assert report.is_sound
        assert report.error is None
        assert report.backups == {"one": "sound", "two": "sound"}
        assert report.unreferenced == 0


def test_samples_together_read_everything(repository: Repository, sources: dict[str, Path]) -> None:
    back_up(repository, "one", sources)
    whole = verify_repository(repository, level="checksums")
    samples = [verify_repository(repository, level="sample", sample=(n, 3)) for n in (1, 2, 3)]
    assert sum(s.checked for s in samples) == whole.checked > 0
    assert sum(s.checked_bytes for s in samples) == whole.checked_bytes
    with pytest.raises(UsageError, match="4/3"):
        verify_repository(repository, level="sample", sample=(4, 3))


def test_verify_names_every_damaged_file_and_the_rest_still_reads(tmp_path: Path) -> None:
    """Each file of a small repository in turn: one flipped bit is found, and what does not need it is sound."""
    repository = open_local(tmp_path / "r")
    shared = write_sources(tmp_path / "s1", {"shared": b"s" * 500, "own-1": b"1" * 600})
    other = write_sources(tmp_path / "s2", {"shared": b"s" * 500, "own-2": b"2" * 700})
    back_up(repository, "one", shared)
    back_up(repository, "two", other, uuid="table-2")
    erased = write_sources(tmp_path / "s3", {"erased": b"e" * 100})
    back_up(repository, "three", erased, uuid="table-3")
    repository.erase(BlobRef.of(b"e" * 100), "why")
    repository.save_progress("table-1", "id", {})
    sound = {"one": "sound", "two": "sound", "three": "erased"}
    assert verify_repository(repository, level="checksums").backups == sound
    damaged_backups = set()
    for number, path in enumerate(files_of(tmp_path / "r")):
        data = path.read_bytes()
        path.write_bytes(flipped(data, (number * 7919) % (len(data) * 8)))
        key = str(path.relative_to(tmp_path / "r"))
        report = verify_repository(repository, level="checksums")
        assert isinstance(report.error, IntegrityError)
        assert report.error.exit_code == 13
        wrong = [f for f in report.findings if f.problem != "erased"]
        assert {f.key.removesuffix(".erased") for f in wrong} == {key.removesuffix(".erased")} or key in {
            f.key for f in wrong
        }
        damaged = {name for name, state in report.backups.items() if state == "damaged"}
        assert damaged == {name for f in wrong for name in f.backups}
        for name in set(sound) - damaged - {"three"}:
            for manifest in repository.read_state(repository.read_record(name).tables[0]).manifests:
                for file in repository.read_files(manifest):
                    assert file.blob is not None
                    assert len(b"".join(repository.open_data(file.blob))) == file.size
        damaged_backups |= damaged
        path.write_bytes(data)
    assert damaged_backups == set(sound)
    assert verify_repository(repository, level="checksums").backups == sound


def test_verify_names_every_missing_file(repository: Repository, sources: dict[str, Path]) -> None:
    back_up(repository, "one", sources)
    back_up(repository, "two", {"a.parquet": sources["a.parquet"]}, uuid="table-2")
    folder = repository.location.path
    for path in [*files_of(folder / "data"), *files_of(folder / "meta")]:
        data = path.read_bytes()
        path.unlink()
        report = verify_repository(repository)
        assert [(f.key, f.problem) for f in report.findings] == [(str(path.relative_to(folder)), "missing")]
        assert report.findings[0].backups
        path.write_bytes(data)
    assert verify_repository(repository).is_sound


def test_verify_of_one_backup_looks_at_nothing_else(repository: Repository, sources: dict[str, Path]) -> None:
    back_up(repository, "one", {"a.parquet": sources["a.parquet"]})
    back_up(repository, "two", {"b.parquet": sources["b.parquet"]}, uuid="table-2")
    blob = BlobRef.of(CONTENTS["b.parquet"])
    (repository.location.path / f"data/{blob.shard}/{blob}").write_bytes(b"x" * 2000)
    assert verify_repository(repository, names=["one"], level="checksums").is_sound
    assert not verify_repository(repository, names=["two"], level="checksums").is_sound
    with pytest.raises(NotFoundError):
        verify_repository(repository, names=["three"])


# Faults of the disk


def test_a_full_disk_leaves_nothing_half_made(tmp_path: Path) -> None:
    sources = write_sources(tmp_path, {"small": b"s" * 1000, "large": os.urandom(900_000)})
    with small_disk("1m") as folder:
        repository = open_local(folder / "r")
        first = back_up(repository, "first", {"small": sources["small"]})
        kept = repository.put_data(DataSource(str(sources["large"]), None, S3, NETWORK))
        more = write_sources(tmp_path, {"more": os.urandom(900_000)})["more"]
        before = files_of(folder)
        with pytest.raises(UnavailableError, match="no space left"):
            repository.put_data(DataSource(str(more), None, S3, NETWORK))
        assert files_of(folder) == before
        assert repository.list_records() == [first]
        assert verify_repository(repository, level="checksums").is_sound
        assert repository.has_data(kept)


def test_a_record_is_written_only_when_everything_it_needs_is_durable(
    repository: Repository, sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[set[Path]] = []

    def sync(_: Path) -> None:
        synced.append(set(files_of(repository.location.path)))

    monkeypatch.setattr("frazil.storage.bulk.sync_file_system", sync)
    back_up(repository, "one", sources)
    assert set(files_of(repository.location.path)) - synced[-1] == {repository.location.path / "backups/one.json"}
    repository.save_progress("table", "id", {})
    assert not [path for path in synced[-1] if "progress" in path.parts]

    def fail(_: Path) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr("frazil.storage.bulk.sync_file_system", fail)
    with pytest.raises(FrazilError, match="cannot read or write"):
        back_up(repository, "two", sources, uuid="other")
    assert repository.list_names() == ["one"]


def test_bulk_writes_refuse_keys_that_escape(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        LocalBulk(tmp_path / "r").write("../x", b"data")
    assert files_of(tmp_path) == []


def test_a_file_in_place_of_the_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "r").write_bytes(b"")
    with pytest.raises(FrazilError, match=str(tmp_path / "r")):
        open_local(tmp_path / "r")


def test_files_that_are_read_side_by_side_do_not_share_a_buffer(tmp_path: Path) -> None:
    one, other = (tmp_path / name for name in ("one", "other"))
    one.write_bytes(b"1" * 600_000)
    other.write_bytes(b"2" * 600_000)
    for _ in range(2):  # the second time with the buffers of the first
        pairs = [(bytes(a), bytes(b)) for a, b in zip(read_file(one), read_file(other), strict=True)]
        assert b"".join(a for a, _ in pairs) == one.read_bytes()
        assert b"".join(b for _, b in pairs) == other.read_bytes()
    reading = read_file(one)
    held = next(reading)
    assert bytes(next(read_file(other))) == other.read_bytes()[: len(held)]
    assert bytes(held) == one.read_bytes()[: len(held)]
