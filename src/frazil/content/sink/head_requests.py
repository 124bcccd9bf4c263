"""Asks buckets what is true, where events cannot tell: no order, or two that disagree within the skew of clocks."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.buckets import folder_of, is_folder, require_readable, require_request
from frazil.content.events.observation import observation
from frazil.content.events.parse import parse_messages
from frazil.content.scan.bucket import Bucket
from frazil.content.scan.folder import Folder
from frazil.content.scan.listing import ScanTarget
from frazil.content.sink.evidence import EVIDENCE, of_changes, unverified
from frazil.errors import FrazilError, UnavailableError
from frazil.settings import Settings
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.tables.writing.type_conversion import RejectedRow

#: Questions at once, of one task.
_AT_ONCE = 16
#: Questions in a row to which the store of a bucket gave no answer, after which it is asked no more in this round.
_GIVE_UP = 3

Key = tuple[str, str, str]
"""Bucket, key and version."""


@dataclass(frozen=True)
class Asker:
    """How buckets are reached from an executor."""

    s3: S3Settings
    network: NetworkSettings
    buckets: tuple[str, ...] | None = None
    """Patterns of those that may be asked; None: all."""

    @classmethod
    def of(cls, settings: Settings) -> Asker:
        patterns = settings.model.content.buckets
        return cls(settings.model.s3, settings.model.network, None if patterns is None else tuple(patterns))

    def ask(self, keys: Iterable[Key]) -> tuple[pa.Table, dict[tuple[str, str], FrazilError]]:
        """What buckets say about keys, as observations; and which keys they say nothing about, and why."""
        wanted: dict[tuple[str, str], set[str]] = {}
        for bucket, key, version in keys:
            wanted.setdefault((bucket, key), set()).add(version)
        unanswered: dict[str, list[UnavailableError]] = {}

        def answer(item: tuple[tuple[str, str], set[str]]) -> bytes | FrazilError:
            errors = unanswered.setdefault(item[0][0], [])
            if len(errors) >= _GIVE_UP:
                return errors[-1]
            found = self._answer(*item)
            if isinstance(found, UnavailableError):
                errors.append(found)
            elif isinstance(found, bytes):
                errors.clear()
            return found

        with ThreadPoolExecutor(min(_AT_ONCE, len(wanted) or 1)) as pool:
            answers = list(pool.map(answer, wanted.items()))
        told = [answer for answer in answers if isinstance(answer, bytes)]
        failed = {
            place: answer for place, answer in zip(wanted, answers, strict=True) if isinstance(answer, FrazilError)
        }
        messages = pa.table({"offset": pa.array([-1] * len(told), pa.int64()), "payload": pa.array(told, pa.binary())})
        return parse_messages(messages, internal=True).changes, failed

    def _answer(self, place: tuple[str, str], versions: set[str]) -> bytes | FrazilError:
        bucket, key = place
        try:
            require_readable(bucket, self.buckets)
            if not is_folder(bucket):
                require_request(bucket, key)
            ((observed_at, objects),) = list(self._place(bucket, versions).ask([(key, v) for v in sorted(versions)]))
        except FrazilError as error:
            return error
        return observation(bucket, objects, observed_at, "asked")

    def _place(self, bucket: str, versions: set[str]) -> ScanTarget:
        if is_folder(bucket):
            return Folder(bucket, str(folder_of(bucket)))
        return Bucket(bucket, self.s3, self.network, "all" if versions - {""} else None)


@dataclass(frozen=True)
class Answers:
    """What came of asking.

    Attributes:
        evidence: what buckets have said; and of stores that did not answer, what the events say, to be checked later.
        misfits: messages about whose keys a bucket says nothing, and will not.
    """

    evidence: pa.Table
    misfits: list[RejectedRow]


def answered(asker: Asker, messages: pa.Table, changes: pa.Table) -> Answers:
    """Evidence for the changes that only the bucket can judge."""
    open_ones = changes.filter(changes.column("needs_asking"))
    if not open_ones.num_rows:
        return Answers(EVIDENCE.empty_table(), [])
    keys = list(zip(*(open_ones.column(name).to_pylist() for name in ("bucket", "key", "version_id")), strict=True))
    told, failed = asker.ask(keys)
    silent = [isinstance(failed.get(key[:2]), UnavailableError) for key in keys]
    unsure = unverified(open_ones.filter(pa.array(silent, pa.bool_())))
    refused = {place: error for place, error in failed.items() if not isinstance(error, UnavailableError)}
    return Answers(pa.concat_tables([of_changes(told), unsure]), _refused(messages, open_ones, refused))


def _refused(messages: pa.Table, changes: pa.Table, failed: dict[tuple[str, str], FrazilError]) -> list[RejectedRow]:
    if not failed:
        return []
    rows: dict[int, RejectedRow] = {}
    offsets = messages.column("offset").combine_chunks()
    places = zip(*(changes.column(name).to_pylist() for name in ("offset", "bucket", "key")), strict=True)
    for offset, bucket, key in places:
        error = failed.get((bucket, key))
        if error is not None:
            row = pc.index(offsets, offset).as_py()
            rows.setdefault(row, RejectedRow(row, "not_answered", " ".join(filter(None, (error.message, error.cause)))))
    return list(rows.values())
