"""What a publication that broke off in the middle tells, so that nobody publishes twice what is in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from frazil.errors import FrazilError, InterruptedByUser, PartialError

if TYPE_CHECKING:
    from frazil.log.protocol import Ack


@contextmanager
def telling_progress(acks: Sequence[Ack]) -> Iterator[list[int]]:
    """Whatever ends the block says which messages are in the log. The block notes how many are on their way.

    Raises:
        PartialError: some messages were acknowledged before it failed.
        InterruptedByUser: by Ctrl-C.
        FrazilError: none was acknowledged.
    """
    under_way: list[int] = []
    try:
        yield under_way
    except KeyboardInterrupt as error:
        raise _told(InterruptedByUser("interrupted"), acks, sum(under_way)) from error
    except FrazilError as error:
        unknown = sum(under_way) if _may_be_in_the_log(error) else 0
        if not acks:
            _told(error, acks, unknown)
            raise
        partial = PartialError("publishing failed part-way", cause=error.in_one_line, hint=_hint(acks, unknown))
        raise _told(partial, acks, unknown) from error


def _may_be_in_the_log(error: FrazilError) -> bool:
    from frazil.log.protocol import NOT_TAKEN
    from frazil.log.remote.stream import LostError

    return isinstance(error, LostError) or not isinstance(error, NOT_TAKEN)


def _told(error: FrazilError, acks: Sequence[Ack], unknown: int) -> FrazilError:
    count = sum(ack.count for ack in acks)
    known = [ack for ack in acks if ack.offset >= 0]
    first = known[0].offset if known else None
    last = known[-1].offset + known[-1].count - 1 if known else None
    fields: dict[str, Any] = {"acknowledged": count, "first_offset": first, "last_offset": last, "unknown": unknown}
    text = f"{count} messages were acknowledged"
    if last is not None:
        text += f", at offsets {first} to {last}"
    if unknown:
        text += f"; whether the next {unknown} were appended is not known"
    if not count and not unknown:
        error.details |= fields
        return error
    return error.adding(text, **fields)


def _hint(acks: Sequence[Ack], unknown: int) -> str:
    count = sum(ack.count for ack in acks)
    look = f"inspect the end of the topic (frazil topic tail {acks[-1].topic}), then " if unknown else ""
    return f"{look}publish the rest, without the first {count} messages of the input"
