"""Which extractors there are: those that come with Frazil, and those of other packages.

Another package registers its own under the entry point group `frazil.extractors`. One that cannot be loaded, or that is
none, is left out with a warning; all others run.
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
#: Tells the type, on which it depends who else looks into an object.
TYPE = "type"

#: In the order in which they run. A module may say with `available` why it cannot work here.
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
    """An extractor, and where it comes from.

    Attributes:
        extractor: itself.
        source: module and attribute.
        missing: why it cannot work here; None: it can.
    """

    extractor: Extractor
    source: str
    missing: str | None = None


@dataclass(frozen=True)
class Registry:
    """All extractors by name, and what was left out.

    Attributes:
        found: in the order in which they run.
        broken: source → why.
    """

    found: dict[str, Registered]
    broken: dict[str, str] = field(default_factory=dict)

    def choose(self, names: Sequence[str] = ()) -> list[Extractor]:
        """Those with these names; without any, all that run by default and can work here.

        Raises:
            UsageError: there is none of that name, or it cannot work here.
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
            raise UsageError(f"the extractor '{name}' cannot work here", cause=known.missing, hint=_hint(known.missing))


@lru_cache(maxsize=1)
def registry() -> Registry:
    """What is installed in this process. Plugins are imported, built-ins too: they import little."""
    return load(BUILT_IN, entry_points(group=GROUP))


def extractors(settings: Settings, only: Sequence[str] = ()) -> list[Extractor]:
    """Those that run: the ones that are named, else the ones of the settings, else the default ones.

    Raises:
        UsageError: a name is not known, or cannot work here.
    """
    return registry().choose(only or settings.model.content.extract.extractors)


def load(built_in: Iterable[str], plugins: Iterable[EntryPoint]) -> Registry:
    """The registry of these; what cannot be loaded is warned of and left out."""
    found: dict[str, Registered] = {}
    broken: dict[str, str] = {}
    for source in built_in:
        _take(source, source, found, broken)
    for plugin in sorted(plugins, key=lambda p: (p.name, p.value)):
        _take(plugin.value, f"{plugin.name} = {plugin.value}", found, broken)
    return Registry(found, broken)


def _take(source: str, shown: str, found: dict[str, Registered], broken: dict[str, str]) -> None:
    try:
        made = _loaded(source)
        why = _wrong(made.extractor, found)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        why = f"{type(error).__name__}: {first_line(error)}"
    if why is None:
        found[made.extractor.name] = made
        return
    broken[shown] = why
    logger.warning("the extractor %s is left out: %s", shown, why)


def _loaded(source: str) -> Registered:
    name, _, attribute = source.partition(":")
    module = importlib.import_module(name)
    thing: object = module
    for part in attribute.split(".") if attribute else ():
        thing = getattr(thing, part)
    if not isinstance(thing, Extractor):
        raise TypeError(f"{attribute or name} is {type(thing).__name__}, no Extractor (see @extractor)")
    available = getattr(module, "available", None)
    missing = available() if callable(available) else None
    return Registered(thing, source, None if missing is None else str(missing))


def _wrong(made: Any, found: dict[str, Registered]) -> str | None:
    """Why an extractor cannot be taken."""
    if not isinstance(made.name, str) or not _NAME.fullmatch(made.name):
        return f"{made.name!r} is no name: letters, digits and _"
    if made.name in found:
        return f"the name '{made.name}' is taken by {found[made.name].source}"
    if not isinstance(made.version, str) or not made.version:
        return f"its version {made.version!r} is no text"
    if not callable(made.look):
        return "its `look` cannot be called"
    if isinstance(made.types, str) or not all(isinstance(t, str) and t.count("/") == 1 for t in made.types):
        return f"its types {made.types!r} are no media types, such as image/*"
    return None


def _cause_of(name: str, broken: dict[str, str]) -> str | None:
    return next((f"{source}: {why}" for source, why in broken.items() if name in source), None)


def _hint(missing: str) -> str:
    extra = re.search(r"frazil\[\w+\]", missing)
    return f"pip install '{extra[0]}'" if extra else f"install what it needs into {sys.prefix}"
