"""The language of a text."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

#: Characters that are looked at, and letters that are the least.
SAMPLE: Final = 16_384
LEAST: Final = 24
#: How sure it must be: prose is above 0.9, tables and code below 0.2.
SURE: Final = 0.3
#: Languages whose own code has three letters, by the two-letter code of which they are a part.
_WITHIN: Final = {"ary": "ar", "arz": "ar", "yue": "zh", "wuu": "zh", "uzs": "uz", "crh": "tr"}


def language(text: str) -> str | None:
    """ISO 639-1; None where the text is too short, or none."""
    sample = text[:SAMPLE]
    letters = sum(2 if c >= "\u2e80" else 1 for c in sample if c.isalpha())  # an ideograph says more
    if letters < LEAST:
        return None
    code, sure = _identifier().classify(sample)
    code = _WITHIN.get(code, code)
    return code if len(code) == 2 and sure >= SURE else None


@lru_cache(maxsize=1)
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier  # type: ignore[import-untyped]

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
