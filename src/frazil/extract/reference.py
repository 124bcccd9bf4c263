"""What is to be known of the extractors that come with Frazil, for the page that lists them."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from frazil.extract.registry import BUILT_IN, Registered, load


@dataclass(frozen=True)
class Described:
    """One extractor.

    Attributes:
        name: under which its result stands in `metadata`.
        version: of its results.
        doc: what it does, in one sentence.
        types: media types that it looks into.
        reads: "ranges" or "whole".
        runs: "by default" or "if named".
        extra: of Frazil, that has to be installed for it; empty: none.
        fields: of its result: name → one phrase.
    """

    name: str
    version: str
    doc: str
    types: tuple[str, ...]
    reads: str
    runs: str
    extra: str
    fields: dict[str, str]


def described() -> list[Described]:
    """The built-in extractors, in the order in which they run. It does not matter what is installed here."""
    return [_described(registered) for registered in load(BUILT_IN, ()).found.values()]


def _described(registered: Registered) -> Described:
    made = registered.extractor
    module = importlib.import_module(registered.source.partition(":")[0])
    return Described(
        name=made.name,
        version=made.version,
        doc=made.doc,
        types=made.types,
        reads=made.reads,
        runs="by default" if made.default else "if named",
        extra=getattr(module, "EXTRA", ""),
        fields=made.fields,
    )
