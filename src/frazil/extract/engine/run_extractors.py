"""Runs extractors on one object, one after the other. Whatever one of them does, the others have their turn."""

from __future__ import annotations

import mimetypes
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

import orjson

from frazil.extract import Extractor, Item, TooMuch, Unsupported
from frazil.extract.engine.item import UNKNOWN_TYPE, ObjectItem
from frazil.extract.engine.sanitize import clean, clean_text
from frazil.extract.engine.source import ObjectChanged, ObjectGone, StorageError
from frazil.extract.registry import TYPE
from frazil.extract.status import CHANGED, FAILED, GONE, OK, UNSUPPORTED

THUMBNAIL: Final = "thumbnail"
#: It ran out of memory while others shared it: who took it is found out by running it alone.
SUSPECT: Final = "suspect"
#: Bytes of a thumbnail at most; what is larger is none.
_THUMBNAIL: Final = 1024 * 1024
_REASON: Final = 300


@dataclass
class ExtractionResult:
    """What was found in an object.

    Attributes:
        detected_type: its media type.
        extractors: name → `version`, `status`, `reason`, `data` (as JSON), `seconds`.
        thumbnail: a small picture of it; empty: there is none.
    """

    detected_type: str
    extractors: dict[str, dict[str, Any]] = field(default_factory=dict)
    thumbnail: bytes = b""


def run_extractors(
    item: ObjectItem,
    extractors: Sequence[Extractor],
    *,
    detected_type: str | None = None,
    begins: Callable[[Extractor], None] = lambda _: None,
) -> ExtractionResult:
    """Runs those extractors that take the object's type.

    Args:
        item: the object.
        extractors: in the order in which they run; the one that tells the type is run first, if it is among them.
        detected_type: as it is known already.
        begins: is told before each.
    """
    found = ExtractionResult(detected_type or _by_name(item))
    item.detected_type = found.detected_type
    ends: tuple[str, str] | None = None
    expected = False
    for one in sorted(extractors, key=lambda e: e.name != TYPE):
        if one.name != TYPE and not one.takes(item.detected_type):
            continue
        if ends is None:
            begins(one)
            if one.name != TYPE and not expected:
                expected = True
                _expect(item, extractors)
            began = time.monotonic()
            result, ends = _run(one, item)
            result["seconds"] = time.monotonic() - began
        else:
            result = {"version": one.version, "status": ends[0], "reason": ends[1], "seconds": 0.0}
        found.extractors[one.name] = result
        if one.name == TYPE and result["status"] == OK:
            found.detected_type = item.detected_type = str(item.shared.pop(TYPE))
    _check_to_the_end(item, found)
    found.thumbnail = _thumbnail(item)
    return found


def _run(one: Extractor, item: ObjectItem) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """The result, and where the object itself is not there any more, that as status and reason."""
    item.allow(one.reads)
    ends = None
    try:
        value = one.look(cast("Item", item))
        if one.name == TYPE:
            item.shared[TYPE] = _media_type(value)
        status, reason, data = OK, None, _json(value, item.limits.max_json_bytes)
    except (Unsupported, TooMuch) as error:
        status, reason, data = (UNSUPPORTED if isinstance(error, Unsupported) else FAILED), _text(error), None
    except (ObjectGone, ObjectChanged) as error:
        status, reason, data = (GONE if isinstance(error, ObjectGone) else CHANGED), _text(error), None
        ends = status, reason
    except StorageError as error:
        status, reason, data = FAILED, _text(error), None
    except MemoryError:
        gigabytes = item.limits.max_memory_bytes / 2**30
        status, reason, data = SUSPECT, f"took more than {gigabytes:g} GiB of memory", None
    except BaseException as error:  # noqa: BLE001 - whatever it does, it loses only itself
        status, reason, data = FAILED, f"{type(error).__name__}: {_text(error)}"[:_REASON], None
    result: dict[str, Any] = {"version": one.version, "status": status, "reason": reason}
    if data is not None:
        result["data"] = data
    return result, ends


def _json(value: Any, max_bytes: int) -> orjson.Fragment:
    text = orjson.dumps(clean(value))
    if len(text) > max_bytes:
        raise TooMuch(f"its result has {len(text):,} bytes of JSON; at most {max_bytes:,} are kept")
    return orjson.Fragment(text)


def _check_to_the_end(item: ObjectItem, found: ExtractionResult) -> None:
    try:
        item.finish()
    except (ObjectGone, ObjectChanged) as error:
        status = GONE if isinstance(error, ObjectGone) else CHANGED
        for result in found.extractors.values():
            result.update(status=status, reason=_text(error))
            result.pop("data", None)
        item.shared.clear()


def _expect(item: ObjectItem, extractors: Sequence[Extractor]) -> None:
    if any(one.reads == "whole" and one.takes(item.detected_type) for one in extractors):
        item.expect_whole()


def _thumbnail(item: ObjectItem) -> bytes:
    made = item.shared.get(THUMBNAIL)
    return made if isinstance(made, bytes) and len(made) <= _THUMBNAIL else b""


def _media_type(value: Any) -> str:
    told = value.get("media_type") if isinstance(value, dict) else None
    return clean_text(told) if isinstance(told, str) and told.count("/") == 1 else UNKNOWN_TYPE


def _by_name(item: ObjectItem) -> str:
    return item.content_type or mimetypes.guess_type(item.key)[0] or UNKNOWN_TYPE


#: An object as Python shows it, whose address is another one each time.
_ADDRESS = re.compile(r"<([\w.]+) object at 0x[0-9a-f]+>")


def _text(error: BaseException) -> str:
    """The first line of what it says; that of a stranger's error may fail itself."""
    try:
        lines = _ADDRESS.sub(r"<\1>", clean_text(str(error))).strip().splitlines()
    except Exception:  # noqa: BLE001
        lines = []
    return lines[0][:_REASON] if lines else type(error).__name__
