"""Describes the built-in extractors, for the generated reference page."""

from __future__ import annotations

import importlib
from dataclasses import dataclass

from frazil.extract.registry import BUILT_IN, Registered, load


@dataclass(frozen=True)
class Described:
    """An extractor in the reference.

    Attributes:
        name: the name of its result in `metadata`.
        version: of its results.
        doc: one sentence.
        types: media types that it reads.
        reads: "ranges" or "whole".
        runs: "by default" or "if named".
        extra: the extra of Frazil that it needs; empty: none.
        fields: fields of its result: name → one phrase.
    """

    name: str
    version: str
    doc: str
    types: tuple[str, ...]
    reads: str
    runs: str
    extra: str
    fields: dict[str, str]


def describe_extractors() -> list[Described]:
    """Describes the built-in extractors in the order in which they run, whether or not they can run here."""
    return [_describe(registered) for registered in load(BUILT_IN, ()).found.values()]


def _describe(registered: Registered) -> Described:
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
