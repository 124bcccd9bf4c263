"""Resolves the state of each version from all evidence: the rule that keeps `content.objects` correct.

`resolve(evidence, skew)` is a pure function of Arrow tables, without a loop over rows. For the events of one dialect it
is a maximum in each register, so that neither order nor repetition nor the cut into batches changes the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.content.arrays import NEVER, Bools, Ints, as_times, flags_of, rank_of, taken, times_of, value_at
from frazil.content.columns import BASE, ORDER
from frazil.content.sink.evidence import REGISTERS, TIE, demote
from frazil.content.sink.latest_version import Versions, find_latest

_VERSION = ("bucket", "key", "version_id")
#: Columns about the content, from its creation or an observation.
_CONTENT = ("etag", "is_delete_marker")
#: Columns that an observation may lack, and that stay valid while the content is the same.
_LASTING = ("size", "last_modified", "content_type", "user_metadata", "tags")
_SECOND = 1_000_000


@dataclass(frozen=True)
class Resolved:
    """The rows to write, and the stored rows that they replace.

    Attributes:
        rows: new and changed ones, with the columns of `BASE`.
        files: of the stored rows that these replace, the data files that they lie in.
        positions: and where in those files.
    """

    rows: pa.Table
    files: pa.Array
    positions: pa.Array


def resolve(evidence: pa.Table, skew_s: float) -> Resolved:
    """Returns the rows that change, given all stored rows and changes of some keys with all their columns."""
    return decide(evidence, skew_s).result()


def decide(evidence: pa.Table, skew_s: float, noted: pa.Table | None = None) -> Decision:
    """Decides the state of each version in the evidence, which has at least one row.

    Args:
        evidence: of every key that occurs, all that is known: see `evidence`. Of stored rows the columns in `DECISIVE`
            are enough here.
        skew_s: seconds within which the order of two times is unknown.
        noted: bucket, key and version_id of rows that are written even if unchanged.
    """
    evidence = evidence.combine_chunks()
    versions = _joined(evidence, *_VERSION).dictionary_encode()
    groups = np.asarray(versions.indices.to_numpy(), np.int64)
    evidence = _of_one_dialect(evidence, groups)
    about = np.empty(0, np.int64)
    if noted is not None and noted.num_rows:
        found = pc.index_in(_joined(noted, *_VERSION), value_set=versions.dictionary)
        about = np.asarray(found.fill_null(-1).to_numpy(), np.int64)
    return Decision(evidence, groups, round(skew_s * 1e6), about)


def _codes(evidence: pa.Table, *names: str) -> Ints:
    """Returns the same code for rows with the same values."""
    return np.asarray(_joined(evidence, *names).dictionary_encode().indices.to_numpy(), np.int64)


def _joined(rows: pa.Table, *names: str) -> pa.Array:
    return pc.binary_join_element_wise(*(rows.column(n) for n in names), "\0").combine_chunks()


def _of_one_dialect(evidence: pa.Table, groups: Ints) -> pa.Table:
    """Turns events of another dialect than the stored row's, or than the first by name, into observations."""
    dialect = evidence.column("dialect").combine_chunks().dictionary_encode()
    if len(dialect.dictionary) < 2:
        return evidence
    stored = flags_of(pc.is_valid(evidence.column("_file")))
    names = np.asarray([*dialect.dictionary.to_pylist(), "~"])
    codes = dialect.indices.fill_null(len(dialect.dictionary)).to_numpy()
    rank = np.argsort(np.argsort(names))[codes]
    # The dialect of a stored row has priority.
    chosen = np.full(groups.max() + 1, np.iinfo(np.int64).max)
    known = codes < len(dialect.dictionary)
    np.minimum.at(chosen, groups[known], rank[known] + np.where(stored[known], -len(names), 0))
    foreign = known & (rank != chosen[groups] % len(names)) & ~stored
    return demote(evidence, foreign) if foreign.any() else evidence


class Decision:
    """The winning evidence of each version: arrays with one entry per version, as indices into the evidence."""

    def __init__(self, evidence: pa.Table, groups: Ints, skew: int, about: Ints) -> None:
        self._evidence = evidence
        self._groups = groups
        self._skew = skew
        self._count = int(groups.max()) + 1
        self._stored = flags_of(pc.is_valid(evidence.column("_file")))
        #: The winning row of each register, or -1.
        self._won = {name: self._newest(rank_of(evidence.column(name))) for name in REGISTERS}
        self._classed = self._newest(rank_of(evidence.column("classed")))
        self._own = self._stored_rows()
        observed, otherwise = times_of(evidence.column("observed_time")), self._says_otherwise()
        self._seen = self._newest(observed, otherwise)
        #: The newest observation of content. Undecided events on tags and ACL are none.
        self._showed = self._newest(np.where(self._shows_content(), observed, NEVER), otherwise)
        self._decide()
        self._is_latest = self._latest()
        self._is_changed = self._changed(self._is_latest)
        is_written = self._is_changed.copy()
        is_written[about[about >= 0]] = True
        #: The versions that get a row: those that change, and those with annotations.
        self._written = np.flatnonzero(is_written)
        places = np.full(self._count, -1, np.int64)
        places[self._written] = np.arange(len(self._written))
        self.noted = np.where(about >= 0, places[about], -1) if len(about) else about
        """Of each note the row that it is about; -1: there is none."""
        self._needed = self._stored_content()

    def needed(self) -> tuple[pa.Array, pa.Array]:
        """Returns file and position of the stored rows whose content a written row takes over."""
        return self.places(self._needed)

    def rows(self, content: pa.Table | None = None) -> pa.Table:
        """Returns the rows to write, with the columns of `BASE`.

        Args:
            content: the stored rows that are `needed`, with all columns of `BASE`; None: the evidence has them.
        """
        return self._rows(_Columns(self._evidence, self._needed, content))

    @property
    def changed(self) -> Bools:
        """Whether each row has changed; else it is written only for an annotation."""
        return np.asarray(self._is_changed[self._written], bool)

    @property
    def before(self) -> Ints:
        """The stored row in the evidence for each row; -1 if none."""
        return np.asarray(self._own[self._written])

    @property
    def same_content(self) -> Bools:
        """Whether the table has each row with the same content."""
        own, content = self._own[self._written], self._content[self._written]
        was_deleted = value_at(flags_of(self._evidence.column("is_deleted")), own, default=True)
        same = (own == content) | self._same(own, content)
        return np.asarray(
            (own >= 0) & same & ~np.asarray(was_deleted, bool) & ~np.asarray(self.deleted, bool)[self._written]
        )

    def replaced(self, rows: Bools) -> tuple[pa.Array, pa.Array]:
        """Returns file and position of the stored rows that some of the rows replace."""
        is_replaced = np.zeros(self._count, bool)
        is_replaced[self._written[rows]] = True
        return self.places(np.flatnonzero(self._stored & is_replaced[self._groups]))

    def result(self, content: pa.Table | None = None) -> Resolved:
        """Returns all rows to write, and what they replace; see `rows`."""
        return Resolved(self.rows(content), *self.replaced(np.ones(len(self._written), bool)))

    def places(self, rows: Ints) -> tuple[pa.Array, pa.Array]:
        """Returns file and position of rows of the evidence."""
        place = self._evidence.select(["_file", "_pos"]).take(pa.array(rows))
        return place["_file"].combine_chunks(), place["_pos"].combine_chunks()

    def _stored_content(self) -> Ints:
        """Returns the stored rows whose columns a changed row may take over."""
        winners = [self._event, self._content, self._class, np.where(self._by_look, self._own, -1)]
        asked = np.unique(np.concatenate([winner[self._written] for winner in winners]))
        asked = asked[asked >= 0]
        return np.asarray(asked[self._stored[asked]])

    def _says_otherwise(self) -> Ints:
        """Returns which observations contradict the stored one: at equal times it counts unless a later one differs."""
        before = self._own[self._groups]
        gone = flags_of(self._evidence.column("observed_gone"))
        other = (before >= 0) & (value_at(gone, before, default=False) != gone)
        latest = flags_of(self._evidence.column("observed_latest"))
        other |= (before >= 0) & (value_at(latest, before, default=False) != latest)
        other |= self._differ(np.arange(len(self._groups)), before)
        return np.where(self._stored, 1, np.where(other, 2, 0))

    def _shows_content(self) -> Bools:
        known = pc.or_(pc.is_valid(self._evidence.column("etag")), pc.is_valid(self._evidence.column("size")))
        return np.asarray(flags_of(known) | flags_of(self._evidence.column("is_delete_marker")), bool)

    def _newest(self, rank: Ints, among_equals: Ints | None = None) -> Ints:
        """Returns the row with the highest rank per version; of equal ones the stored row, to avoid a rewrite."""
        order = np.lexsort((self._stored if among_equals is None else among_equals, rank, self._groups))
        ends = np.flatnonzero(np.append(np.diff(self._groups[order]) != 0, True))
        last = order[ends]
        return np.where(rank[last] == NEVER, -1, last)

    def _decide(self) -> None:
        """Decides for each version whether it is deleted, which row has its content, and which event was last."""
        won, seen = self._won, self._seen
        created, updated, deleted, classed = _sequence_ranks(self._evidence, {**won, "classed": self._classed})
        # On equal sequences: delete before metadata before create.
        told_gone = (deleted != NEVER) & (deleted >= created) & (deleted >= updated)
        changed = ~told_gone & (updated != NEVER) & (updated >= created)
        self._event = np.where(told_gone, won["deleted"], np.where(changed, won["updated"], won["created"]))
        event_time = self._event_time(told_gone, changed)
        seen_time = value_at(times_of(self._evidence.column("observed_time")), seen)
        seen_gone = value_at(flags_of(self._evidence.column("observed_gone")), seen, default=False)
        has_event, has_seen = self._event >= 0, seen >= 0
        # The newer one decides; at equal times, the observation.
        by_seeing = has_seen & (~has_event | (seen_time >= event_time))
        self.deleted = np.where(by_seeing, seen_gone, told_gone)
        close = has_event & has_seen & (np.abs(seen_time - event_time) <= self._skew)
        disagree = (told_gone != seen_gone) | (~told_gone & self._differ(won["created"], seen))
        # A check stays due until an answer comes that is beyond the clock skew.
        disagree |= value_at(times_of(self._evidence.column("check_after")), self._own) != NEVER
        unsure = np.where(by_seeing, value_at(times_of(self._evidence.column("check_after")), seen), NEVER)
        self.check_after = np.where(close & disagree, np.maximum(event_time, seen_time) + self._skew, unsure)
        self.changed_at = np.maximum(np.where(has_event, event_time, NEVER), np.where(has_seen, seen_time, NEVER))
        created_time = value_at(times_of(self._evidence.column("created_time")), won["created"])
        shown_time = value_at(times_of(self._evidence.column("observed_time")), self._showed)
        by_look = (self._showed >= 0) & ~seen_gone & ((won["created"] < 0) | (shown_time > created_time))
        content = np.where(by_look, self._showed, won["created"])
        # Without an observation or creation: what the other events state.
        for other in (won["updated"], won["deleted"], self._own, seen):
            content = np.where(content < 0, other, content)
        self._content, self._by_look = content, by_look
        class_time = value_at(times_of(self._evidence.column("classed_time")), self._classed)
        is_newer = (classed != NEVER) & (classed >= created) & (~by_look | (class_time > shown_time))
        self._class = np.where(is_newer, self._classed, content)
        self.created_rank, self.created_time = created, created_time
        self.seen_time = np.where(has_seen, seen_time, NEVER)

    def _event_time(self, gone: Bools, changed: Bools) -> Ints:
        times = {n: value_at(times_of(self._evidence.column(f"{n}_time")), self._won[n]) for n in REGISTERS}
        return np.asarray(np.where(gone, times["deleted"], np.where(changed, times["updated"], times["created"])))

    def _differ(self, one: Ints, other: Ints) -> Bools:
        """Whether both etags are known and differ, or one of them is a delete marker."""
        etag, marker = self._evidence.column("etag"), flags_of(self._evidence.column("is_delete_marker"))
        only_one = value_at(marker, one, default=False) != value_at(marker, other, default=False)
        differ = flags_of(pc.not_equal(taken(etag, one), taken(etag, other)))
        return np.asarray(differ | (only_one & (one >= 0) & (other >= 0)), bool)

    def _same(self, one: Ints, other: Ints) -> Bools:
        """Whether both etags are known and equal."""
        etag = self._evidence.column("etag")
        return flags_of(pc.equal(taken(etag, one), taken(etag, other)))

    def _stored_rows(self) -> Ints:
        found = np.full(self._count, -1, np.int64)
        found[self._groups[self._stored]] = np.flatnonzero(self._stored)
        return found

    def _latest(self) -> Bools:
        """Decides whether each version is the latest of its key; notes where only the bucket knows."""
        first = self._first()
        of_each = self._evidence.select(["bucket", "key", "version_id"]).take(pa.array(first))
        modified = value_at(times_of(self._evidence.column("last_modified")), self._content)
        versions = Versions(
            keys=_codes(of_each, "bucket", "key"),
            alive=~np.asarray(self.deleted, bool),
            is_null=flags_of(pc.equal(of_each.column("version_id"), "")),
            created_rank=self.created_rank,
            created_time=self.created_time,
            seen_time=self.seen_time,
            says_latest=value_at(flags_of(self._evidence.column("observed_latest")), self._seen, default=False),
            modified=np.where(modified == NEVER, self.changed_at, modified),
            name_rank=rank_of(self._evidence.column("version_id"))[first],
        )
        latest, check = find_latest(versions, self._skew)
        self.check_after = np.maximum(self.check_after, check)
        return latest

    def _first(self) -> Ints:
        """Returns one row of the evidence per version."""
        first = np.full(self._count, 0, np.int64)
        first[self._groups] = np.arange(len(self._groups))
        return first

    def _changed(self, latest: Bools) -> Bools:
        """Returns whether the row of each version changes."""
        stored = self._own
        before_latest = value_at(flags_of(self._evidence.column("is_latest")), stored, default=False)
        before_deleted = value_at(flags_of(self._evidence.column("is_deleted")), stored, default=False)
        before_check = value_at(times_of(self._evidence.column("check_after")), stored)
        changed = (stored < 0) | (before_latest != latest) | (before_deleted != self.deleted)
        changed |= before_check != self.check_after
        for winner in (*self._won.values(), self._classed, self._seen, self._showed):
            changed |= (winner >= 0) & (winner != stored)
        twice = np.bincount(self._groups[self._stored], minlength=self._count) > 1
        return np.asarray(changed | twice)

    def _rows(self, columns: _Columns) -> pa.Table:
        wanted = self._written
        first = self._first()

        def take(name: str, index: Ints) -> Any:
            return columns.take(name, index[wanted])

        made: dict[str, Any] = {name: take(name, first) for name in ("bucket", "key", "version_id")}
        made |= {name: take(name, self._event) for name in ("sequencer", "sequence", "event_name", "dialect")}
        made |= {name: take(name, self._content) for name in _CONTENT}
        made |= {name: take(name, self._lasting(columns, name)) for name in _LASTING}
        lasting = self._lasting(columns, "storage_class")
        made["storage_class"] = take("storage_class", np.where(self._class == self._content, lasting, self._class))
        made["is_delete_marker"] = pc.fill_null(made["is_delete_marker"], False)
        made["is_latest"] = pa.array(self._is_latest[wanted])
        made["is_deleted"] = pa.array(self.deleted[wanted], pa.bool_())
        made["changed_at"] = as_times(self.changed_at[wanted])
        made["check_after"] = as_times(self.check_after[wanted])
        made["frazil_order"] = self._order(wanted)
        return pa.table([made[f.name] for f in BASE], schema=BASE)

    def _order(self, wanted: Ints) -> pa.StructArray:
        order: dict[str, Any] = {}
        winners = {**self._won, "classed": self._classed, "observed": self._seen}
        for f in ORDER:
            winner = winners[f.name.partition("_")[0]]
            order[f.name] = taken(self._evidence.column(f.name), winner[wanted])
        return pa.StructArray.from_arrays([order[f.name] for f in ORDER], fields=list(ORDER))

    def _lasting(self, columns: _Columns, name: str) -> Ints:
        """Keeps a known value if an observation found the same content but lacks the value."""
        found = self._content
        for before in (self._won["created"], self._own):
            silent = ~columns.knows(name, found)
            if name == "last_modified":
                silent |= self._is_rounded(found, before)
            silent &= self._by_look
            found = np.where(silent & columns.knows(name, before) & self._same(found, before), before, found)
        return found

    def _is_rounded(self, one: Ints, other: Ints) -> Bools:
        """Whether one time is the other in whole seconds, as in HEAD responses."""
        modified = times_of(self._evidence.column("last_modified"))
        rounded, exact = value_at(modified, one), value_at(modified, other)
        return np.asarray((rounded % _SECOND == 0) & (rounded // _SECOND == exact // _SECOND))


class _Columns:
    """The columns of the evidence; those of some stored rows come from another table."""

    def __init__(self, evidence: pa.Table, elsewhere: Ints, content: pa.Table | None) -> None:
        self._evidence, self._content = evidence, content
        self._places = np.arange(evidence.num_rows)
        if content is not None:
            self._places[elsewhere] = evidence.num_rows + np.arange(len(elsewhere))

    def take(self, name: str, index: Ints) -> Any:
        return taken(self._column(name), self._at(index))

    def knows(self, name: str, index: Ints) -> Bools:
        """Returns whether there is a value in each row."""
        return np.asarray(value_at(flags_of(pc.is_valid(self._column(name))), self._at(index), default=False), bool)

    def _column(self, name: str) -> Any:
        column = self._evidence.column(name)
        if self._content is None:
            return column
        return pa.chunked_array([*column.chunks, *self._content.column(name).chunks], column.type).combine_chunks()

    def _at(self, index: Ints) -> Ints:
        return np.asarray(np.where(index >= 0, self._places[index], -1))


def _sequence_ranks(evidence: pa.Table, won: dict[str, Ints]) -> list[Ints]:
    """Returns the winners' sequences without their ties, as ranks that compare across registers."""
    texts = [pc.utf8_slice_codeunits(taken(evidence.column(name), index), 0, -TIE) for name, index in won.items()]
    ranks = rank_of(pa.chunked_array(texts))
    return np.split(ranks, len(texts))
