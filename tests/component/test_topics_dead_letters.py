"""Dead letters can be looked at and sent again, whatever happens in between."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.types import DateType

from frazil.errors import FrazilError, NotFoundError, UsageError
from frazil.observe.faultpoints import handled
from frazil.tables import RolledBackError
from frazil.topics.care.adopt import Adopting
from frazil.topics.floor import LazyStore
from frazil.topics.layout import dead_letters_name
from frazil.topics.letters.resending import (
    REPLAYED_FROM,
    list_dead_letters,
    replay_dead_letters,
    show_dead_letter,
)
from tests.sink_kit import SinkKit, sink_kit

TOPIC = "orders"


class FaultError(Exception):
    """The process 'dies' here."""


@pytest.fixture
def kit(tmp_path: Path) -> Iterator[SinkKit]:
    """A topic with three dead letters, at offsets 1, 2 and 3, in a table that has been repaired meanwhile."""
    with sink_kit(tmp_path) as made:
        made.create(TOPIC)
        _retype(made, DateType())
        headers = pa.array([[("k", "v")], None, None], pa.map_(pa.string(), pa.string()))
        made.publish(TOPIC, b"a", b"b", b"c", amount=pa.array([1.5, 2.5, 3.5]), headers=headers)
        made.engine(TOPIC).catch_up()
        made.check(TOPIC, dead=[1, 2, 3])
        _retype(made, None)
        yield made


def _retype(kit: SinkKit, kind: DateType | None) -> None:
    """Somebody gives `amount` another type, or lets the sink make the column anew."""
    if kind is not None:
        kit.publish(TOPIC, b"first", amount=pa.array([0.5]))
        kit.engine(TOPIC).catch_up()
    with kit.table(TOPIC).update_schema(allow_incompatible_changes=True) as update:
        update.delete_column("amount")
    if kind is not None:
        with kit.table(TOPIC).update_schema() as update:
            update.add_column("amount", kind)


def _replay(kit: SinkKit, **options: list[int]) -> int:
    return replay_dead_letters(kit.store, kit.settings, kit.client, TOPIC, **options).sent  # type: ignore[arg-type]


def _arrived(kit: SinkKit) -> list[tuple[bytes, float, str]]:
    """Payload, amount and origin of the messages that were sent again, as the table has them."""
    kit.engine(TOPIC).catch_up()
    rows = kit.rows(TOPIC, ["offset", "payload", "amount", "headers"])
    return [
        (r["payload"], r["amount"], dict(r["headers"])[REPLAYED_FROM])
        for r in rows
        if REPLAYED_FROM in dict(r["headers"] or [])
    ]


ALL = [(b"a", 1.5, "orders/0/1"), (b"b", 2.5, "orders/0/2"), (b"c", 3.5, "orders/0/3")]


def test_a_list_names_reason_and_place_and_show_has_the_whole_message(kit: SinkKit) -> None:
    found = list_dead_letters(kit.store, kit.settings, topic=TOPIC)
    assert [(d.offset, d.reason, d.status) for d in found] == [(o, "type", "dead") for o in (3, 2, 1)]
    whole = show_dead_letter(kit.store, kit.settings, TOPIC, 1)
    assert (whole.payload, whole.headers, whole.columns) == (b"a", {"k": "v"}, {"amount": 1.5})
    assert (whole.segment_id, whole.segment_offset) == (0, 1)
    assert list_dead_letters(kit.store, kit.settings, topic="other") == []


def test_a_message_that_is_none_is_told(kit: SinkKit) -> None:
    with pytest.raises(NotFoundError, match="offset 0 of topic 'orders' is no dead letter"):
        show_dead_letter(kit.store, kit.settings, TOPIC, 0)
    with pytest.raises(NotFoundError, match="offset 7"):
        _replay(kit, offsets=[7])


def test_a_replay_sends_payload_headers_and_columns_again_and_says_from_where(kit: SinkKit) -> None:
    assert _replay(kit) == 3
    assert _arrived(kit) == ALL
    first = next(r for r in kit.rows(TOPIC, ["offset", "headers"]) if ("k", "v") in (r["headers"] or []))
    assert dict(first["headers"]) == {"k": "v", REPLAYED_FROM: "orders/0/1"}
    assert {d.status for d in list_dead_letters(kit.store, kit.settings)} == {"replayed"}


def test_what_was_sent_again_is_not_sent_a_third_time(kit: SinkKit) -> None:
    assert _replay(kit, offsets=[2]) == 1
    assert _replay(kit) == 2
    assert _replay(kit) == 0
    assert sorted(_arrived(kit)) == ALL
    with pytest.raises(NotFoundError):
        _replay(kit, offsets=[2])


def test_a_replay_that_dies_at_any_step_is_ended_by_the_next_one_without_a_double(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    number = 0
    while True:
        with sink_kit(tmp_path_factory.mktemp("replay")) as kit:
            kit.create(TOPIC)
            _retype(kit, DateType())
            kit.publish(TOPIC, b"a", b"b", b"c", amount=pa.array([1.5, 2.5, 3.5]))
            kit.engine(TOPIC).catch_up()
            _retype(kit, None)
            seen: list[str] = []

            def reached(step: str, at: int = number, steps: list[str] = seen) -> None:
                if step.startswith("dead_letters.") or step in ("tables.commit.before", "tables.commit.after"):
                    steps.append(step)
                    if len(steps) == at + 1:
                        raise FaultError(step)

            with handled(reached), suppress(FaultError, FrazilError):
                _replay(kit)
            _replay(kit)
            assert _arrived(kit) == ALL
            assert {d.status for d in list_dead_letters(kit.store, kit.settings)} == {"replayed"}
        if len(seen) <= number:
            break
        number += 1
    assert number >= 8


def test_after_a_rollback_of_the_dead_letters_a_person_lets_the_topic_go_on(kit: SinkKit) -> None:
    _replay(kit)
    _retype(kit, DateType())
    kit.publish(TOPIC, b"bad", amount=pa.array([4.5]))
    kit.engine(TOPIC).catch_up()
    letters = kit.store.load(dead_letters_name(kit.settings))
    letters.manage_snapshots().rollback_to_snapshot(letters.metadata.snapshots[0].snapshot_id).commit()
    kit.publish(TOPIC, b"worse", amount=pa.array([5.5]))
    with pytest.raises(RolledBackError, match="dead_letters"):
        kit.engine(TOPIC).catch_up()
    store = LazyStore(kit.settings)
    with pytest.raises(UsageError) as told:
        Adopting(kit.client, kit.settings, TOPIC, store, "rewind").plan()
    assert "--keep" in (told.value.hint or "")
    adopting = Adopting(kit.client, kit.settings, TOPIC, store, "keep")
    plan = adopting.plan()
    assert plan.problem == "letters_rolled_back"
    adopting.do(plan)
    kit.engine(TOPIC).catch_up()
    assert [row["payload"] for row in kit.dead(TOPIC)] == [b"a", b"b", b"c", b"worse"]
    assert Adopting(kit.client, kit.settings, TOPIC, store).plan().problem == "none"
    _replay(kit)
