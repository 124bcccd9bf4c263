"""ETags that are revisions, conditions on them (RFC 9110, section 13), and idempotency keys."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fastapi import Request

from frazil.errors import UsageError

#: An element of a list; elements may be empty. Blanks match in one place only, so that a header takes linear time.
_ELEMENT = re.compile(r'[ \t]*(?:(W/)?"([\x21\x23-\x7e\x80-\xff]*)"[ \t]*)?(,|$)')
_REVISION = re.compile(r"[1-9][0-9]{0,17}")
_KEY = re.compile(r"[\x21-\x7e]{1,200}")
_MAX_TAGS = 100
ANY = "*"


@dataclass(frozen=True)
class EntityTags:
    """Tags of a header, or `*`. Tags that are no revision match nothing."""

    is_any: bool
    strong: frozenset[int]
    weak: frozenset[int]

    def match_strongly(self, revision: int) -> bool:
        return self.is_any or revision in self.strong

    def match_weakly(self, revision: int) -> bool:
        return self.match_strongly(revision) or revision in self.weak


def etag_of(revision: int) -> str:
    """Returns the strong entity tag of a revision."""
    return f'"{revision}"'


def read_tags(request: Request, name: str) -> EntityTags | None:
    """Returns the entity tags of a header; None: the request does not have it.

    Raises:
        UsageError: the header is no list of entity tags.
    """
    given = request.headers.getlist(name)
    if not given:
        return None
    text = ", ".join(given).strip()
    if text == ANY:
        return EntityTags(True, frozenset(), frozenset())
    tags: list[tuple[str | None, str]] = []
    at = 0
    while at < len(text) and (element := _ELEMENT.match(text, at)):
        at = element.end()
        if element[2] is not None:
            tags.append((element[1], element[2]))
    if at < len(text) or not 1 <= len(tags) <= _MAX_TAGS:
        raise UsageError(
            f"the header {name} is no list of entity tags",
            cause="an entity tag stands in double quotes",
            hint=f'{name}: "7", as the ETag of an answer, or {name}: *',
        )
    known = [(weak is not None, int(tag)) for weak, tag in tags if _REVISION.fullmatch(tag)]
    return EntityTags(False, frozenset(n for weak, n in known if not weak), frozenset(n for weak, n in known if weak))


def read_idempotency_key(request: Request) -> str | None:
    """Returns the key of a request that its client may repeat.

    Raises:
        UsageError: it is empty, too long, or not of visible ASCII characters.
    """
    given = request.headers.getlist("idempotency-key")
    if not given:
        return None
    key = given[0].strip()
    if len(key) > 1 and key[0] == key[-1] == '"':
        key = key[1:-1]
    if len(given) > 1 or not _KEY.fullmatch(key):
        raise UsageError(
            "the header Idempotency-Key is not valid", hint="one value of 1 to 200 visible ASCII characters, as a UUID"
        )
    return key
