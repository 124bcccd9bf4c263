"""The choice of a version against a brute-force oracle that knows what the primary committed."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.replica.choose import Choice, ServedVersion, Version, choose_version, number_of

ALL = frozenset[str]()


def v(name: str, *log: str, at: int | None = None) -> Version:
    number = number_of(name)
    return Version(name, number * 1000 if at is None else at, log)


def name(number: int, letter: str = "a") -> str:
    return f"{number:05d}-{letter}.metadata.json"


V0, V1, V2, V3, V4 = (name(number) for number in range(5))
LOST2 = name(2, "lost")


def choose(versions: list[Version], served: ServedVersion | None = None, missing: set[str] = ALL, **options) -> Choice:
    return choose_version(versions, served, is_complete=lambda found: found not in missing, **options)


def served(version: str, parent: str | None = None, *, witnessed: bool = True) -> ServedVersion:
    return ServedVersion(version, number_of(version) * 1000, "uuid", witnessed, parent)


@pytest.mark.parametrize(
    ("file", "number"),
    [
        ("00012-0b7d.metadata.json", 12),
        ("v7.metadata.json", 7),
        ("v7.gz.metadata.json", 7),
        ("100000-x.gz.metadata.json", 100000),
        ("restored.metadata.json", -1),
        ("vx.metadata.json", -1),
    ],
)
def test_the_number_of_a_version_is_in_its_name(file: str, number: int) -> None:
    assert number_of(file) == number


def test_a_version_in_a_later_log_is_served_while_files_of_the_later_one_are_missing() -> None:
    choice = choose([v(V0), v(V1, V0), v(V2, V0, V1)], missing={V2})
    assert (choice.name, choice.witness) == (V1, "later-log")
    assert choice.reasons == (f"files of {V2} are missing",)


def test_a_sole_newest_version_is_served_without_a_witness_unless_one_is_required() -> None:
    versions = [v(V0), v(V1, V0)]
    assert choose(versions) == Choice(V1)
    waiting = choose(versions, witnessed_only=True)
    assert (waiting.name, waiting.witness) == (V0, "later-log")
    assert "has no witness yet" in waiting.reasons[0]


def test_of_two_versions_without_a_witness_neither_is_served() -> None:
    versions = [v(V0), v(V1, V0), v(V2, V0, V1), v(LOST2, V0, V1)]
    choice = choose(versions)
    assert (choice.name, choice.witness, choice.is_contested) == (V1, "later-log", True)
    assert choose(versions, served(V1, V0)).name is None
    assert choose(versions, missing={LOST2}).name == V1  # which of them is complete says nothing


def test_a_version_that_has_not_arrived_completely_may_be_the_winner() -> None:
    choice = choose([v(V1, V0), v(V2, V1)], unreadable=[LOST2])
    assert (choice.name, choice.is_contested) == (V1, True)


def test_a_later_version_says_who_won() -> None:
    versions = [v(V1, V0), v(V2, V0, V1), v(LOST2, V0, V1), v(V3, V0, V1, V2)]
    assert choose(versions, missing={V3}).name == V2
    assert choose(versions, served(V2, V1), missing={V3}).name is None


def test_the_log_of_a_loser_is_a_witness_too() -> None:
    assert choose([v(V1, V0), v(LOST2, V0, V1)], missing={LOST2}).witness == "later-log"


@pytest.mark.parametrize("witness", ["beacon", "version-hint"])
def test_a_beacon_or_hint_decides_a_race(witness) -> None:
    versions = [v(V1, V0), v(V2, V0, V1), v(LOST2, V0, V1)]
    choice = choose(versions, witnesses={V2: witness}, witnessed_only=True)
    assert (choice.name, choice.witness, choice.is_contested) == (V2, witness, False)


def test_a_beacon_whose_version_has_not_arrived_rules_out_its_rival() -> None:
    choice = choose([v(V1, V0), v(LOST2, V0, V1)], witnesses={V2: "beacon"})
    assert choice.name == V1


def test_an_old_beacon_does_not_lead_back() -> None:
    versions = [v(V1, V0), v(V2, V0, V1), v(V3, V0, V1, V2)]
    assert choose(versions, served(V2, V1), missing={V3}, witnesses={V1: "beacon"}).name is None


def test_a_served_version_that_was_lost_is_replaced_by_a_committed_one() -> None:
    unproven = served(LOST2, V1, witnessed=False)
    winner = Version(V2, 1, (V0, V1))  # by a clock that runs behind
    versions = [v(V1, V0), winner, v(LOST2, V0, V1), v(V3, V0, V1, V2)]
    choice = choose(versions, unproven, missing={V3})
    assert (choice.name, choice.served_lost) == (V2, True)
    # Its files may be deleted on the primary at any time, so that its parent is better.
    assert choose(versions, unproven, missing={V2, V3}).name == V1
    assert choose(versions, unproven, missing={V1, V2, V3}).name is None
    assert choose(versions, served(V0), missing={V2, V3}).name == V1


def test_a_served_version_without_a_witness_stays_while_its_race_is_open() -> None:
    versions = [v(V1, V0), v(V2, V0, V1), v(LOST2, V0, V1)]
    choice = choose(versions, served(LOST2, V1, witnessed=False))
    assert (choice.name, choice.served_lost, choice.is_contested) == (None, False, True)


def test_numbers_that_start_again_are_ordered_by_the_logs() -> None:
    old, restored, after = v(name(12), name(11)), v(V0, name(12), at=99_000), v(V1, V0, at=100_000)
    versions = [old, restored, after]
    assert choose(versions, witnesses={V1: "beacon"}).name == V1
    assert choose(versions, served(name(12), name(11)), witnesses={V1: "beacon"}, missing={V1}).name == V0
    now = ServedVersion(V1, 100_000, "uuid", True, V0)
    assert choose(versions, now).name is None
    assert choose([old, v(name(11))], now).name is None  # the logs are gone, but time tells


def test_numbers_that_start_again_need_no_witness_where_the_logs_reach_back() -> None:
    restored = v(V0, name(11), name(12), at=99_000)
    assert choose([v(name(12), name(11)), restored]).name == V0
    assert choose([v(name(12), name(11)), restored], served(name(12), name(11))).name == V0


def test_a_loser_that_arrives_after_the_winner_was_served_is_ignored() -> None:
    assert choose([v(LOST2, V0, V1)], served(V2, V1)).name is None
    assert choose([v(LOST2, V0, V1)], served(V2)).name is None
    assert choose([v(V2, V0, V1), v(LOST2, V0, V1)], served(V2, V1)).is_contested is False


def test_a_lost_version_is_replaced_even_if_its_parent_is_not_known() -> None:
    unproven = served(LOST2, witnessed=False)
    versions = [v(V2, V1), v(V3, V2)]
    assert choose(versions, unproven, missing={V3}).name == V2
    assert choose([v(V2, V1)], unproven).name is None


# -- an oracle


@dataclass
class Primary:
    """A primary, and a copy of its storage in which files arrive in any order."""

    log_length: int
    committed: list[Version] = field(default_factory=list)
    files: dict[str, Version] = field(default_factory=dict)
    arrived: set[str] = field(default_factory=set)
    cut: set[str] = field(default_factory=set)
    incomplete: set[str] = field(default_factory=set)
    beacon: str | None = None

    def commit(self, *, losers: int) -> None:
        base = self.committed[-1] if self.committed else None
        log = (*base.log, base.name)[-self.log_length :] if base else ()
        number = len(self.committed)
        made = [Version(name(number, f"{i}"), number * 1000 + i, log) for i in range(losers + 1)]
        self.committed.append(made[number % len(made)])
        self.files.update((version.name, version) for version in made)
        self.incomplete.update(version.name for version in made)

    def index(self, version: str) -> int | None:
        return next((at for at, found in enumerate(self.committed) if found.name == version), None)

    def readable(self) -> list[Version]:
        return [self.files[found] for found in self.files if found in self.arrived]

    def proven(self) -> set[str]:
        """Names that what has arrived proves."""
        found = {former for version in self.readable() for former in version.log}
        return found | ({self.beacon} if self.beacon else set())


@st.composite
def steps(draw) -> tuple[int, list[tuple]]:
    kinds = st.one_of(
        st.tuples(st.just("commit"), st.sampled_from([0, 0, 0, 1, 2])),
        st.tuples(st.just("arrive"), st.integers(0, 30)),
        st.tuples(st.just("cut"), st.integers(0, 30)),
        st.tuples(st.just("complete"), st.integers(0, 30)),
        st.tuples(st.just("beacon"), st.integers(0, 3)),
        st.tuples(st.just("remove"), st.integers(0, 30)),
        st.tuples(st.just("sync"), st.just(0)),
    )
    return draw(st.sampled_from([1, 2, 100])), draw(st.lists(kinds, min_size=4, max_size=40))


def pick(names: list[str], number: int) -> str | None:
    return names[number % len(names)] if names else None


@settings(max_examples=400, deadline=None)
@given(steps(), st.booleans())
def test_a_random_history_is_only_ever_served_forwards(order: tuple[int, list[tuple]], witnessed_only: bool) -> None:
    log_length, history = order
    primary = Primary(log_length)
    primary.commit(losers=0)
    now: ServedVersion | None = None
    witnessed: list[int] = []
    for kind, number in [*history, ("sync", 0)]:
        names = list(primary.files)
        if kind == "commit":
            primary.commit(losers=number)
        elif kind == "arrive" and (found := pick(names, number)):
            primary.arrived.add(found)
            primary.cut.discard(found)
        elif kind == "cut" and (found := pick([n for n in names if n not in primary.arrived], number)):
            primary.cut.add(found)
        elif kind == "complete" and (found := pick(names, number)):
            primary.incomplete.discard(found)
        elif kind == "remove" and (found := pick([v.name for v in primary.committed[:-2]], number)):
            primary.arrived.discard(found)  # the primary keeps few former versions, and deletions are mirrored
        elif kind == "beacon":
            primary.beacon = primary.committed[max(0, len(primary.committed) - 1 - number)].name
        elif kind == "sync":
            now = sync(primary, now, witnessed_only, witnessed)
    # When everything has arrived and a beacon names the newest version, it is served.
    primary.arrived |= primary.files.keys()
    primary.cut.clear()
    primary.incomplete.clear()
    primary.beacon = primary.committed[-1].name
    now = sync(primary, now, witnessed_only, witnessed)
    assert now is not None
    assert now.name == primary.committed[-1].name


def sync(
    primary: Primary, now: ServedVersion | None, witnessed_only: bool, witnessed: list[int]
) -> ServedVersion | None:
    checked: list[str] = []

    def is_complete(version: str) -> bool:
        checked.append(version)
        return version not in primary.incomplete

    choice = choose_version(
        primary.readable(),
        now,
        witnesses={primary.beacon: "beacon"} if primary.beacon else {},
        unreadable=primary.cut,
        is_complete=is_complete,
        witnessed_only=witnessed_only,
    )
    assert len(set(checked)) == len(checked)
    proven = primary.proven()
    expected = expect(primary, now)
    if choice.name is None:
        assert expected is None
        return now
    assert choice.name in primary.arrived
    assert choice.name not in primary.incomplete
    version = primary.files[choice.name]
    if choice.witness is not None:
        # A committed version, and none before one that was known to be committed.
        assert choice.name in proven
        at = primary.index(choice.name)
        assert at is not None
        assert not witnessed or at >= max(witnessed)
        assert choice.name == expected
        witnessed.append(at)
    else:
        assert not witnessed_only
        # Nothing that has arrived contradicts it, and there is no other one like it.
        others = [n for n in primary.arrived | primary.cut if n not in proven and n != choice.name]
        assert all(number_of(n) < version.number for n in proven)
        assert all(number_of(n) < version.number for n in others)
    return ServedVersion(version.name, version.updated_ms, "", choice.witness is not None, version.parent)


def expect(primary: Primary, now: ServedVersion | None) -> str | None:
    """The newest proven version that is complete and not before the served one, by the primary's own history."""
    known = [n for n in primary.proven() if n in primary.arrived and n not in primary.incomplete]
    indexes = sorted(at for n in known if (at := primary.index(n)) is not None)
    if not indexes:
        return None
    best = primary.committed[indexes[-1]].name
    if now is None:
        return best
    at = primary.index(now.name)
    if at is not None:
        return best if indexes[-1] > at else None
    # A loser is served. It is replaced once it is known to be one, or by something newer.
    is_known = any(number_of(n) == number_of(now.name) for n in primary.proven())
    floor = number_of(now.name) - 1 if is_known else number_of(now.name) + 1
    return best if indexes[-1] >= floor else None
