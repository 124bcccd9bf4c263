"""Counts the statements of a text without an engine."""

from __future__ import annotations

import re

from frazil.errors import UsageError

#: Strings, quoted names and comments, in which a semicolon separates nothing. In Spark's strings a backslash escapes
#: the next character, in DuckDB's it does not.
_QUOTED = r'"[^"]*"|\$(?P<tag>\w*)\$.*?\$(?P=tag)\$|`[^`]*`|--[^\n]*|/\*.*?\*/'
_DIALECTS = tuple(re.compile(f"{string}|{_QUOTED}|;", re.DOTALL) for string in (r"'(?:[^'\\]|\\.)*'", r"'[^']*'"))
#: A script of Spark SQL is one statement.
_SCRIPT = re.compile(r"\s*(?:\w+\s*:\s*)?BEGIN\b", re.IGNORECASE)


def require_one_statement(text: str) -> None:
    """Raises UsageError unless the text holds exactly one statement. Each dialect has its chance to see one."""
    if _SCRIPT.match(text):
        return
    count = min(_count(text, dialect) for dialect in _DIALECTS)
    if count == 0:
        raise UsageError("the statement is empty", hint='frazil sql "SELECT 1"')
    if count > 1:
        raise UsageError(
            f"frazil sql runs one statement at a time, but the text has {count}",
            hint="run the command once per statement",
        )


def _count(text: str, dialect: re.Pattern[str]) -> int:
    def replace(token: re.Match[str]) -> str:
        if token[0] == ";":
            return ";"
        return " " if token[0].startswith(("--", "/*")) else "x"

    return sum(1 for part in dialect.sub(replace, text).split(";") if part.strip())
