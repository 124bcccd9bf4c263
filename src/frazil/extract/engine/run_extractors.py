"""Runs extractors on one object, one after the other. A failing extractor does not affect the others."""

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
from frazil.extract.engine.sanitize import sanitize, sanitize_text
from frazil.extract.engine.source import ObjectChanged, ObjectGone, StorageError
from frazil.extract.registry import TYPE
from frazil.extract.status import CHANGED, FAILED, GONE, OK, UNSUPPORTED

THUMBNAIL: Final = "thumbnail"
#: Status of an extractor that ran out of memory shared with others; running it alone shows whether it is to blame.
SUSPECT: Final = "suspect"
#: Maximum bytes of a thumbnail; larger ones are dropped.
_THUMBNAIL: Final = 1024 * 1024
_REASON: Final = 300


@dataclass
class ExtractionResult:
    """The results of all extractors for one object.

    Attributes:
        detected_type: its media type.
        extractors: name → `version`, `status`, `reason`, `data` (as JSON), `seconds`.
        thumbnail: a small picture of it; empty if there is none.
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
    """Runs the extractors that apply to the object's type.

    Args:
        item: the object.
        extractors: in the order in which they run; the type detector runs first if it is among them.
        detected_type: the type, if it is known already.
        begins: called before each extractor runs.
    """
    found = ExtractionResult(detected_type or _guess_by_name(item))
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
                _prepare_whole_read(item, extractors)
            began = time.monotonic()
            result, ends = _run(one, item)
            result["seconds"] = time.monotonic() - began
        else:
            result = {"version": one.version, "status": ends[0], "reason": ends[1], "seconds": 0.0}
        found.extractors[one.name] = result
        if one.name == TYPE and result["status"] == OK:
            found.detected_type = item.detected_type = str(item.shared.pop(TYPE))
    _check_unchanged(item, found)
    found.thumbnail = _thumbnail(item)
    return found


def _run(one: Extractor, item: ObjectItem) -> tuple[dict[str, Any], tuple[str, str] | None]:
    """Runs one extractor. Returns its result, and status and reason if the object is gone or has changed."""
    item.allow(one.reads)
    ends = None
    try:
        value = one.look(cast("Item", item))
        if one.name == TYPE:
            item.shared[TYPE] = _media_type(value)
        status, reason, data = OK, None, _json(value, item.limits.max_json_bytes)
    except (Unsupported, TooMuch) as error:
        status, reason, data = (UNSUPPORTED if isinstance(error, Unsupported) else FAILED), _describe(error), None
    except (ObjectGone, ObjectChanged) as error:
        status, reason, data = (GONE if isinstance(error, ObjectGone) else CHANGED), _describe(error), None
        ends = status, reason
    except StorageError as error:
        status, reason, data = FAILED, _describe(error), None
    except MemoryError:
        gigabytes = item.limits.max_memory_bytes / 2**30
        status, reason, data = SUSPECT, f"took more than {gigabytes:g} GiB of memory", None
    except BaseException as error:  # noqa: BLE001 - a failure of one extractor must not affect others
        status, reason, data = FAILED, f"{type(error).__name__}: {_describe(error)}"[:_REASON], None
    result: dict[str, Any] = {"version": one.version, "status": status, "reason": reason}
    if data is not None:
        result["data"] = data
    return result, ends


def _json(value: Any, max_bytes: int) -> orjson.Fragment:
    text = orjson.dumps(sanitize(value))
    if len(text) > max_bytes:
        raise TooMuch(f"the result has {len(text):,} bytes of JSON; at most {max_bytes:,} are stored")
    return orjson.Fragment(text)


def _check_unchanged(item: ObjectItem, found: ExtractionResult) -> None:
    try:
        item.finish()
    except (ObjectGone, ObjectChanged) as error:
        status = GONE if isinstance(error, ObjectGone) else CHANGED
        for result in found.extractors.values():
            result.update(status=status, reason=_describe(error))
            result.pop("data", None)
        item.shared.clear()


def _prepare_whole_read(item: ObjectItem, extractors: Sequence[Extractor]) -> None:
    if any(one.reads == "whole" and one.takes(item.detected_type) for one in extractors):
        item.expect_whole()


def _thumbnail(item: ObjectItem) -> bytes:
    made = item.shared.get(THUMBNAIL)
    return made if isinstance(made, bytes) and len(made) <= _THUMBNAIL else b""


def _media_type(value: Any) -> str:
    told = value.get("media_type") if isinstance(value, dict) else None
    return sanitize_text(told) if isinstance(told, str) and told.count("/") == 1 else UNKNOWN_TYPE


def _guess_by_name(item: ObjectItem) -> str:
    return item.content_type or mimetypes.guess_type(item.key)[0] or UNKNOWN_TYPE


#: The representation of a Python object, whose address differs each time.
_ADDRESS = re.compile(r"<([\w.]+) object at 0x[0-9a-f]+>")


def _describe(error: BaseException) -> str:
    """Returns the first line of an error's message; a plugin's error may itself fail to format."""
    try:
        lines = _ADDRESS.sub(r"<\1>", sanitize_text(str(error))).strip().splitlines()
    except Exception:  # noqa: BLE001
        lines = []
    return lines[0][:_REASON] if lines else type(error).__name__
