"""The registry of extractors: built-in ones and plugins.

Plugins register under the entry point group `frazil.extractors`. One that cannot be loaded, or is not an extractor, is
skipped with a warning; all others run.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from frazil.errors import UsageError, first_line
from frazil.extract import Extractor
from frazil.settings import Settings

logger = logging.getLogger(__name__)

GROUP = "frazil.extractors"
#: The extractor that detects the media type, which decides which others run.
TYPE = "type"

#: In the order in which they run. A module's function `available` may return why it cannot run here.
BUILT_IN = (
    "frazil.extract.types.detect:TYPE",
    "frazil.extract.images.image:IMAGE",
    "frazil.extract.images.exif:EXIF",
    "frazil.extract.images.xmp:XMP",
    "frazil.extract.images.iptc:IPTC",
    "frazil.extract.digest:HASH",
    "frazil.extract.images.picture:PICTURE",
    "frazil.extract.documents.pdf:PDF",
    "frazil.extract.documents.office:OFFICE",
    "frazil.extract.media.audio:AUDIO",
    "frazil.extract.media.video:VIDEO",
    "frazil.extract.documents.text:TEXT",
    "frazil.extract.archives.archive:ARCHIVE",
    "frazil.extract.vision.labels:LABELS",
    "frazil.extract.vision.ocr:OCR",
    "frazil.extract.vision.rekognition:REKOGNITION",
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}")


@dataclass(frozen=True)
class Registered:
    """An extractor and its origin.

    Attributes:
        extractor: the extractor.
        source: module and attribute.
        missing: why it cannot run here; None if it can.
    """

    extractor: Extractor
    source: str
    missing: str | None = None


@dataclass(frozen=True)
class Registry:
    """All extractors by name, and those that could not be loaded.

    Attributes:
        found: in the order in which they run.
        broken: source → reason.
    """

    found: dict[str, Registered]
    broken: dict[str, str] = field(default_factory=dict)

    def choose(self, names: Sequence[str] = ()) -> list[Extractor]:
        """Returns the named extractors; without names, those that run by default and can run here.

        Raises:
            UsageError: no extractor has that name, or it cannot run here.
        """
        if not names:
            return [r.extractor for r in self.found.values() if r.extractor.default and r.missing is None]
        for name in names:
            self._require(name)
        return [r.extractor for name, r in self.found.items() if name in names]

    def _require(self, name: str) -> None:
        known = self.found.get(name)
        if known is None:
            close = difflib.get_close_matches(name, self.found, n=3, cutoff=0.5)
            hint = f"did you mean {' or '.join(close)}?" if close else f"one of {', '.join(self.found)}"
            raise UsageError(f"there is no extractor '{name}'", cause=_cause_of(name, self.broken), hint=hint)
        if known.missing is not None:
            raise UsageError(f"the extractor '{name}' cannot run here", cause=known.missing, hint=_hint(known.missing))


@lru_cache(maxsize=1)
def registry() -> Registry:
    """Returns the installed extractors. Imports them all; built-in ones import their libraries only when run."""
    return load(BUILT_IN, entry_points(group=GROUP))


def extractors(settings: Settings, only: Sequence[str] = ()) -> list[Extractor]:
    """Returns the extractors to run: the named ones, else those of the settings, else the default ones.

    Raises:
        UsageError: a name is unknown, or that extractor cannot run here.
    """
    return registry().choose(only or settings.model.content.extract.extractors)


def load(built_in: Iterable[str], plugins: Iterable[EntryPoint]) -> Registry:
    """Loads extractors; those that fail to load are skipped with a warning."""
    found: dict[str, Registered] = {}
    broken: dict[str, str] = {}
    for source in built_in:
        _register(source, source, found, broken)
    for plugin in sorted(plugins, key=lambda p: (p.name, p.value)):
        _register(plugin.value, f"{plugin.name} = {plugin.value}", found, broken)
    return Registry(found, broken)


def _register(source: str, shown: str, found: dict[str, Registered], broken: dict[str, str]) -> None:
    try:
        made = _load_one(source)
        why = _find_defect(made.extractor, found)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        why = f"{type(error).__name__}: {first_line(error)}"
    if why is None:
        found[made.extractor.name] = made
        return
    broken[shown] = why
    logger.warning("Extractor %s is skipped: %s", shown, why)


def _load_one(source: str) -> Registered:
    name, _, attribute = source.partition(":")
    module = importlib.import_module(name)
    thing: object = module
    for part in attribute.split(".") if attribute else ():
        thing = getattr(thing, part)
    if not isinstance(thing, Extractor):
        raise TypeError(f"{attribute or name} is {type(thing).__name__}, not an Extractor (see @extractor)")
    available = getattr(module, "available", None)
    missing = available() if callable(available) else None
    return Registered(thing, source, None if missing is None else str(missing))


def _find_defect(made: Any, found: dict[str, Registered]) -> str | None:
    """Returns why an extractor is invalid; None if it is valid."""
    if not isinstance(made.name, str) or not _NAME.fullmatch(made.name):
        return f"{made.name!r} is not a valid name: use letters, digits and _"
    if made.name in found:
        return f"the name '{made.name}' is taken by {found[made.name].source}"
    if not isinstance(made.version, str) or not made.version:
        return f"its version {made.version!r} is not a string"
    if not callable(made.look):
        return "its `look` is not callable"
    if isinstance(made.types, str) or not all(isinstance(t, str) and t.count("/") == 1 for t in made.types):
        return f"its types {made.types!r} are not media types, such as image/*"
    return None


def _cause_of(name: str, broken: dict[str, str]) -> str | None:
    return next((f"{source}: {why}" for source, why in broken.items() if name in source), None)


def _hint(missing: str) -> str:
    extra = re.search(r"frazil\[\w+\]", missing)
    return f"pip install '{extra[0]}'" if extra else f"install what it needs into {sys.prefix}"
