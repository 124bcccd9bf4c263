"""What a publication that broke off tells."""

from __future__ import annotations

import pytest

from frazil.cli.topic_progress import telling_progress
from frazil.errors import FrazilError, InterruptedByUser, PartialError, UnavailableError, UsageError
from frazil.log.protocol import Ack, Level
from frazil.log.remote.stream import LostError

ACKS = [Ack("orders", 5, 2, Level.disk, 0), Ack("orders", 9, 3, Level.disk, 0)]


def told_after(error: BaseException, acks: list[Ack], under_way: int) -> FrazilError:
    with pytest.raises(FrazilError) as raised, telling_progress(acks) as on_their_way:
        on_their_way[:] = [under_way]
        raise error
    return raised.value


def fields(error: FrazilError) -> tuple[object, ...]:
    told = error.to_dict()
    return tuple(told[name] for name in ("acknowledged", "first_offset", "last_offset", "unknown"))


def test_a_refusal_in_the_middle_says_what_was_acknowledged():
    told = told_after(UnavailableError("the log is full", cause="no room"), ACKS, 4)
    assert isinstance(told, PartialError) and not told.retryable
    assert fields(told) == (5, 5, 11, 0)
    assert told.cause == "the log is full (no room)"


def test_a_lost_connection_in_the_middle_says_what_is_not_known():
    told = told_after(LostError("it broke"), ACKS, 4)
    assert fields(told) == (5, 5, 11, 4)
    assert "whether the next 4 were appended is not known" in told.message
    assert "frazil topic tail orders" in (told.hint or "")


def test_a_lost_connection_at_the_beginning_keeps_its_kind():
    told = told_after(LostError("it broke"), [], 4)
    assert isinstance(told, LostError)
    assert fields(told) == (0, None, None, 4)


def test_a_refusal_at_the_beginning_is_as_it_was():
    told = told_after(UsageError("no"), [], 1)
    assert isinstance(told, UsageError) and told.message == "no"
    assert fields(told) == (0, None, None, 0)


def test_offsets_that_are_not_known_yet_are_not_told():
    assert fields(told_after(UsageError("no"), [Ack("orders", -1, 2, Level.memory, 0)], 1)) == (2, None, None, 0)


def test_ctrl_c_says_it_too():
    told = told_after(KeyboardInterrupt(), ACKS, 2)
    assert isinstance(told, InterruptedByUser) and told.exit_code == 130
    assert fields(told) == (5, 5, 11, 2)
