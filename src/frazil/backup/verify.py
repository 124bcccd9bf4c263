"""Verifies a repository: that everything is there, and that every byte is as it was written."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from frazil.backup.format import BackupRecord, BlobRef, DamagedRecord, Tombstone, decompress, unseal
from frazil.backup.references import KINDS, Kind, References, collect_references, iterate_references, key_of, parse_key
from frazil.backup.repository import HEADER, ErasedError, Repository
from frazil.errors import FrazilError, IntegrityError, NotFoundError, UnsupportedError, UsageError
from frazil.observe.cancellation import raise_if_stopped
from frazil.upkeep.plans.format_amounts import format_count

Level = Literal["listing", "checksums", "sample"]
Problem = Literal["missing", "damaged", "erased", "unreadable"]
#: Called with the number and bytes of blobs that were checked, of how many.
OnChecked = Callable[[int, int, int, int], None]


@dataclass(frozen=True)
class Finding:
    """An object that is not as it should be.

    Attributes:
        key: below the root of the repository.
        problem: erased content is missing on purpose; unreadable is what a newer version wrote.
        detail: what is known.
        backups: those that need it.
    """

    key: str
    problem: Problem
    detail: str
    backups: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        return {"object": self.key, "problem": self.problem, "detail": self.detail, "backups": list(self.backups)}


@dataclass
class VerifyReport:
    """What a verification found.

    Attributes:
        backups: each that was looked at: `sound`, `erased` (sound but for erased content) or `damaged`.
        checked: blobs that were looked at; with their content, unless the level is `listing`.
        unreferenced: blobs that no backup needs; prune removes them.
    """

    level: Level
    backups: dict[str, Literal["sound", "erased", "damaged"]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    checked: int = 0
    checked_bytes: int = 0
    unreferenced: int = 0
    unreferenced_bytes: int = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing is wrong; content that was erased on purpose is not."""
        return all(finding.problem == "erased" for finding in self.findings)

    @property
    def error(self) -> FrazilError | None:
        """The error that these findings are; None: the repository is sound."""
        wrong = [finding for finding in self.findings if finding.problem != "erased"]
        if not wrong:
            return None
        damaged = [name for name, state in self.backups.items() if state == "damaged"]
        hint = "restore these objects from a copy of the repository, or make a new backup of the same tables"
        if all(finding.problem == "unreadable" for finding in wrong):
            return UnsupportedError(f"{wrong[0].key} cannot be read", cause=wrong[0].detail, hint="a newer Frazil")
        return IntegrityError(
            f"damaged or missing in the repository: {format_count(len(wrong), 'object')}, such as {wrong[0].key}",
            cause=f"damaged backups: {', '.join(damaged)}" if damaged else "no backup needs them",
            hint=hint,
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "level": self.level,
            "sound": self.is_sound,
            "backups": self.backups,
            "findings": [finding.to_dict() for finding in self.findings],
            "checked": {"blobs": self.checked, "bytes": self.checked_bytes},
            "unreferenced": {"blobs": self.unreferenced, "bytes": self.unreferenced_bytes},
        }


def verify_repository(
    repository: Repository,
    *,
    names: Collection[str] | None = None,
    level: Level = "listing",
    sample: tuple[int, int] = (1, 1),
    on_checked: OnChecked | None = None,
    stop: threading.Event | None = None,
) -> VerifyReport:
    """Verifies backups.

    Args:
        repository: the repository.
        names: only these backups; None: all, and everything else that lies in the repository.
        level: `listing` looks for every object and its size, and reads records, table states and file lists.
            `checksums` reads everything. `sample` reads the blobs of group n of t, so that t runs read all.
        sample: n and t.
        on_checked: is called now and then, by several threads.
        stop: ends the work.

    Raises:
        NotFoundError: there is no such backup.
        UsageError: n is not from 1 to t.
        StoppedError: `stop` was set.
    """
    if level not in get_args(Level):
        raise UsageError(f"level {level!r} is invalid", hint=f"one of {', '.join(get_args(Level))}")
    group, groups = sample if level == "sample" else (1, 1)
    if not 1 <= group <= groups:
        raise UsageError(f"sample {group}/{groups} is invalid", hint="N/T with N from 1 to T, such as 1/7")
    return _Verification(repository, names, level, group, groups, on_checked, stop).run()


@dataclass
class _Verification:
    repository: Repository
    names: Collection[str] | None
    level: Level
    group: int
    groups: int
    on_checked: OnChecked | None
    stop: threading.Event | None
    problems: dict[str, tuple[Problem, str]] = field(default_factory=dict)

    def run(self) -> VerifyReport:
        self.report = VerifyReport(self.level)
        records = self._records()
        references = collect_references(self.repository, records, self._note)
        there = self._list(references)
        self._look_for(records, there)
        if self.level != "listing":
            self._read_blobs(references)
        if self.names is None and self.level == "checksums":
            self._read_others()
        self._attribute(records)
        return self.report

    def _note(self, key: str, error: FrazilError) -> None:
        problem: Problem = "damaged"
        if isinstance(error, ErasedError):
            problem = "erased"
        elif isinstance(error, NotFoundError):
            problem = "missing"
        elif isinstance(error, UnsupportedError):
            problem = "unreadable"
        self.problems.setdefault(key, (problem, error.in_one_line))

    def _records(self) -> list[BackupRecord]:
        if self.names is not None:
            return [self.repository.read_record(name) for name in dict.fromkeys(self.names)]
        records = []
        for one in self.repository.list_records():
            if isinstance(one, DamagedRecord):
                self._note(f"backups/{one.name}.json", one.error)
                self.report.backups[one.name] = "damaged"
            else:
                records.append(one)
        return records

    def _list(self, references: References) -> References:
        """What is there, with the right size as far as the listing tells it."""
        there = References()
        for kind in KINDS:
            for info in self.repository.store.list(kind):
                raise_if_stopped(self.stop)
                blob = parse_key(kind, info.key)
                if blob is None:
                    continue  # a tombstone, or not Frazil's
                if not references.has(kind, blob):
                    if self.names is not None:
                        continue
                    self.report.unreferenced += 1
                    self.report.unreferenced_bytes += blob.size
                there.add(kind, blob)
                if kind == "data" and info.size != blob.size:
                    self.problems[info.key] = ("damaged", f"it has {info.size:,} bytes instead of {blob.size:,}")
                if self.level == "listing":
                    self.report.checked += 1
                    self.report.checked_bytes += blob.size
        return there

    def _look_for(self, records: Iterable[BackupRecord], there: References) -> None:
        seen = References()
        for record in records:
            for kind, blob in iterate_references(self.repository, record.tables, seen, lambda *_: None):
                seen.add(kind, blob)
                key = key_of(kind, blob)
                if not there.has(kind, blob) and key not in self.problems:
                    self._note(key, self._missing(kind, blob))

    def _missing(self, kind: Kind, blob: BlobRef) -> FrazilError:
        if kind == "data":
            try:
                return self.repository.explain_missing(blob)
            except (IntegrityError, UnsupportedError) as error:
                return error
        return NotFoundError(f"{self.repository.root}/{key_of(kind, blob)} is missing")

    def _read_blobs(self, references: References) -> None:
        """Reads blobs of the group, metadata too, several at once."""
        chosen = list(self._choose(references))
        total = sum(blob.size for _, blob in chosen)
        lock = threading.Lock()

        def check(one: tuple[Kind, BlobRef]) -> None:
            raise_if_stopped(self.stop)
            error = self._try_blob(*one)
            with lock:
                if error is not None:
                    self._note(key_of(*one), error)
                self.report.checked += 1
                self.report.checked_bytes += one[1].size
                if self.on_checked is not None:
                    self.on_checked(self.report.checked, len(chosen), self.report.checked_bytes, total)

        for _ in self.repository.map(check, chosen):
            pass

    def _choose(self, references: References) -> Iterator[tuple[Kind, BlobRef]]:
        for kind in KINDS:
            for info in self.repository.store.list(kind):
                blob = parse_key(kind, info.key)
                if blob is None or (self.names is not None and not references.has(kind, blob)):
                    continue
                if int(blob.sha256[:12], 16) % self.groups == self.group - 1:
                    yield kind, blob

    def _try_blob(self, kind: Kind, blob: BlobRef) -> FrazilError | None:
        try:
            if kind == "meta":
                self.repository.get_meta(blob)
            else:
                for _ in self.repository.open_data(blob):
                    raise_if_stopped(self.stop)
        except (IntegrityError, NotFoundError, UnsupportedError) as error:
            return error
        return None

    def _read_others(self) -> None:
        """The header, tombstones, marks and notes of creates: nothing that a restore needs."""
        for folder in ("", "data", "prune", "progress"):
            keys = [HEADER] if folder == "" else [info.key for info in self.repository.store.list(folder)]
            for key in keys:
                if folder == "data" and not key.endswith(".erased"):
                    continue
                try:
                    self._check_sealed(key)
                except NotFoundError:
                    if key == HEADER:
                        raise
                except (IntegrityError, UnsupportedError) as error:
                    self._note(key, error)

    def _check_sealed(self, key: str) -> None:
        where = f"{self.repository.root}/{key}"
        data = self.repository.store.get(key)
        if key.endswith(".zst"):
            data = decompress(data, where)
        if key.endswith(".erased"):
            Tombstone.parse(data, where)
        elif key.endswith((".json", ".zst")):
            unseal(data, where, what="object of a repository")

    def _attribute(self, records: Iterable[BackupRecord]) -> None:
        """Says which backups need what is wrong: only then all that they need is looked at again."""
        needed_by: dict[str, list[str]] = {key: [] for key in self.problems}
        for record in records:
            found = self._problems_of(record) if self.problems else set()
            for key in found:
                needed_by[key].append(record.name)
            kinds = {self.problems[key][0] for key in found}
            self.report.backups[record.name] = "sound" if not kinds else "erased" if kinds == {"erased"} else "damaged"
        for name in self.report.backups:
            needed_by.get(f"backups/{name}.json", []).append(name)
        self.report.findings = [
            Finding(key, problem, detail, tuple(needed_by[key]))
            for key, (problem, detail) in sorted(self.problems.items())
        ]

    def _problems_of(self, record: BackupRecord) -> set[str]:
        keys = (key_of(kind, blob) for kind, blob in iterate_references(self.repository, record.tables, None, _ignore))
        return {key for key in keys if key in self.problems}


def _ignore(key: str, error: FrazilError) -> None:
    del key, error
