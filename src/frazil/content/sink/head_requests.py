"""Sends HEAD requests where events cannot decide: they have no order, or disagree within the clock skew."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.buckets import folder_of, is_folder, require_readable, require_request
from frazil.content.events.model import Parsed, Unreadable
from frazil.content.events.observation import observe, read_observation
from frazil.content.events.parse import as_changes
from frazil.content.scan.bucket import Bucket
from frazil.content.scan.folder import Folder
from frazil.content.scan.listing import ScanTarget
from frazil.content.sink.evidence import EVIDENCE, of_changes, unverified
from frazil.errors import FrazilError, UnavailableError
from frazil.settings import Settings
from frazil.settings.model import NetworkSettings, S3Settings
from frazil.tables.writing.type_conversion import RejectedRow

#: Concurrent requests of one task.
_AT_ONCE = 16
#: Failed requests in a row after which a bucket gets no more requests in this round.
_GIVE_UP = 3

Key = tuple[str, str, str]
"""Bucket, key and version."""


@dataclass(frozen=True)
class HeadRequests:
    """Sends HEAD requests to buckets from an executor."""

    s3: S3Settings
    network: NetworkSettings
    buckets: tuple[str, ...] | None = None
    """Patterns of those that may be asked; None: all."""

    @classmethod
    def of(cls, settings: Settings) -> HeadRequests:
        patterns = settings.model.content.buckets
        return cls(settings.model.s3, settings.model.network, None if patterns is None else tuple(patterns))

    def look_up(self, keys: Iterable[Key]) -> tuple[pa.Table, dict[tuple[str, str], FrazilError]]:
        """Looks up keys. Returns observations, and the error for each key without an answer."""
        wanted: dict[tuple[str, str], set[str]] = {}
        for bucket, key, version in keys:
            wanted.setdefault((bucket, key), set()).add(version)
        unanswered: dict[str, list[UnavailableError]] = {}

        def answer(item: tuple[tuple[str, str], set[str]]) -> Parsed | FrazilError:
            errors = unanswered.setdefault(item[0][0], [])
            if len(errors) >= _GIVE_UP:
                return errors[-1]
            found = self._answer(*item)
            if isinstance(found, UnavailableError):
                errors.append(found)
            elif isinstance(found, Parsed):
                errors.clear()
            return found

        with ThreadPoolExecutor(min(_AT_ONCE, len(wanted) or 1)) as pool:
            answers = list(pool.map(answer, wanted.items()))
        failed = {
            place: answer for place, answer in zip(wanted, answers, strict=True) if isinstance(answer, FrazilError)
        }
        return as_changes(answer for answer in answers if isinstance(answer, Parsed)), failed

    def _answer(self, place: tuple[str, str], versions: set[str]) -> Parsed | FrazilError:
        bucket, key = place
        try:
            require_readable(bucket, self.buckets)
            if not is_folder(bucket):
                require_request(bucket, key)
            ((observed_at, objects),) = list(
                self._place(bucket, versions).look_up([(key, v) for v in sorted(versions)])
            )
        except FrazilError as error:
            return error
        try:
            return read_observation(observe(bucket, objects, observed_at, "asked"))
        except Unreadable:
            return Parsed()  # such a name cannot be in the table

    def _place(self, bucket: str, versions: set[str]) -> ScanTarget:
        if is_folder(bucket):
            return Folder(bucket, str(folder_of(bucket)))
        return Bucket(bucket, self.s3, self.network, "all" if versions - {""} else None)


@dataclass(frozen=True)
class Answers:
    """The results of HEAD requests.

    Attributes:
        evidence: what buckets have said; and of stores that did not answer, what the events say, to be checked later.
        misfits: messages about whose keys a bucket says nothing, and will not.
    """

    evidence: pa.Table
    misfits: list[RejectedRow]


def look_up_changes(requests: HeadRequests, messages: pa.Table, changes: pa.Table) -> Answers:
    """Returns evidence for the changes that need a HEAD request."""
    open_ones = changes.filter(changes.column("needs_asking"))
    if not open_ones.num_rows:
        return Answers(EVIDENCE.empty_table(), [])
    keys = list(zip(*(open_ones.column(name).to_pylist() for name in ("bucket", "key", "version_id")), strict=True))
    told, failed = requests.look_up(keys)
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
