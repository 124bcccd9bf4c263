"""What a scan has found, as a page that people like to read."""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from frazil.cli.amounts import shown_size
from frazil.cli.printing import visible

if TYPE_CHECKING:
    from frazil.content.query.summary import Share, Summary

_NARROW, _WIDE = 48, 100
_BAR = 20
_NAMES = 26
_TRIES = 3


def print_summary(summary: Summary, place: str) -> None:
    """Prints what is in a place, fitted to the terminal; into a pipe 80 columns wide.

    Args:
        summary: what is there.
        place: as somebody typed it.
    """
    width = max(_NARROW, min(_WIDE, shutil.get_terminal_size((80, 24)).columns)) if sys.stdout.isatty() else 80
    solid = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    for line in lines(summary, place, width, "█" if solid else "#"):
        print(line)


def lines(summary: Summary, place: str, width: int, mark: str) -> Iterator[str]:
    """The page, line by line."""
    for title, shares in summary.shares.items():
        if len(shares) > 1 or (shares and title != "kind"):
            yield ""
            yield f"by {title}"
            yield from _bars(shares, summary.more.get(title, 0), width, mark)
    facts = list(_facts(summary, width))
    if facts:
        yield ""
        yield from facts
    tries = list(_tries(summary, shlex.quote(place)))[:_TRIES]
    if tries:
        yield ""
        yield "try next"
        yield from (f"  {command}" for command in tries)


def _bars(shares: Sequence[Share], more: int, width: int, mark: str) -> Iterator[str]:
    """Name, number, bar and bytes."""
    most = max(share.objects for share in shares)
    numbers = [f"{share.objects:,}" for share in shares]
    sizes = [shown_size(share.bytes) for share in shares]
    number, size = max(map(len, numbers)), max(map(len, sizes))
    room = width - 2 - number - size - 6
    bar = max(0, min(_BAR, room - 12))
    name = min(max(_cells(visible(share.name)) for share in shares), max(12, min(_NAMES, room - bar)))
    for share, count, space in zip(shares, numbers, sizes, strict=True):
        drawn = mark * max(1, round(bar * share.objects / most)) if bar >= 4 else ""
        shown = _fitted(visible(share.name), name)
        yield f"  {shown}  {count:>{number}}  {drawn:<{bar}}  {space:>{size}}".rstrip()
    if more:
        yield f"  and {more:,} more"


def _facts(summary: Summary, width: int) -> Iterator[str]:
    failed, pending = summary.statuses.get("failed", 0), summary.statuses.get("pending", 0)
    if len(kinds := summary.shares.get("kind", [])) == 1:
        yield f"kind        {visible(kinds[0].name)}"
    if summary.months is not None:
        yield f"taken       {summary.months[0]} to {summary.months[1]}"
    if summary.with_place:
        yield f"places      {_files(summary.with_place)} on the map"
    for number, (key, size) in enumerate(summary.largest):
        text = f"{'largest' if number == 0 else '':<10}  {shown_size(size):>9}  "
        yield text + _shortened(visible(key), width - len(text))
    if summary.copies:
        copies = f"{summary.copies:,} {'copy' if summary.copies == 1 else 'copies'}"
        yield f"duplicates  {copies}, {shown_size(summary.wasted)} could go"
    if failed:
        yield f"failed      {_files(failed)}"
        for reason, count in summary.reasons:
            text = f"            {count:,} × {visible(reason)}"
            yield text if _cells(text) <= width else text[: width - 1] + "…"
    if pending:
        yield f"pending     {_files(pending)} not extracted yet"


def _tries(summary: Summary, place: str) -> Iterator[str]:
    """Commands that find something here; what went wrong first."""
    if summary.statuses.get("failed"):
        yield f"frazil content search {place} --status failed"
    if summary.statuses.get("pending"):
        yield f"frazil content extract {place}"
    label, camera, year = (_first(summary, name) for name in ("label", "camera", "year"))
    if label:
        yield f"frazil content search {place} --label {label}"
    elif camera:
        yield f"frazil content search {place} --camera {camera}{year and f' --taken {year}'}"
    if summary.where is not None:
        yield f"frazil content search {place} --near={summary.where} --radius 100km"
    if summary.copies:
        yield f"frazil content duplicates {place}"


def _first(summary: Summary, title: str) -> str:
    """A value that many have, as it is to be typed; strangers choose names, and a terminal must not obey them."""
    names = [share.name for share in summary.shares.get(title, []) if share.name.isprintable()]
    return shlex.quote(names[-1 if title == "year" else 0]) if names else ""


def _files(count: int) -> str:
    return f"{count:,} file" if count == 1 else f"{count:,} files"


def _fitted(text: str, width: int) -> str:
    cut = _shortened(text, width)
    return cut + " " * (width - _cells(cut))


def _shortened(text: str, width: int) -> str:
    """Text that has room; the middle of a long one is left out, since paths differ at their ends."""
    if _cells(text) <= width:
        return text
    if width < 8:
        return text[:width]
    ending = (width - 1) * 2 // 3
    head, tail = text[: width - 1 - ending], text[-ending:]
    while _cells(head) + 1 + _cells(tail) > width:
        tail = tail[1:]
    return f"{head}…{tail}"


def _cells(text: str) -> int:
    """Columns that it takes on a terminal: some characters take two."""
    from rich.cells import cell_len

    return cell_len(text)


def as_json(summary: Summary) -> dict[str, Any]:
    """The same for programs."""
    first, last = summary.months or (None, None)
    groups = {
        f"by_{title}": [{"name": share.name, "objects": share.objects, "bytes": share.bytes} for share in shares]
        for title, shares in summary.shares.items()
    }
    return {
        **groups,
        "first_month": first,
        "last_month": last,
        "with_place": summary.with_place,
        "largest": [{"key": key, "size": size} for key, size in summary.largest],
        "duplicates": {"objects": summary.copies, "bytes": summary.wasted},
        "statuses": {str(name or "none"): count for name, count in summary.statuses.items()},
        "failures": [{"reason": reason, "objects": count} for reason, count in summary.reasons],
    }
