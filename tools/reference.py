"""Writes the parts of the docs that the code knows best, between their markers.

    python tools/reference.py            rewrites them
    python tools/reference.py --check    compares, and exits with 1 where one is out of date

A part stands between `<!-- generated: NAME -->` and `<!-- end -->`; what is around it is written by hand.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import typer
from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

import frazil
from frazil import errors
from frazil.__main__ import COMMANDS
from frazil.__main__ import _help as overview
from frazil.catalogs.kinds import ABILITIES, ABILITY_NAMES
from frazil.content.coalesced import Source
from frazil.content.columns import JOURNAL
from frazil.content.views import Queries
from frazil.documents.lifecycle import allowed_tiers
from frazil.documents.model import ARCHIVE_TIERS, RESTORE_STATES, TIERS, Document
from frazil.extract import reference as extract_reference
from frazil.observe import metrics
from frazil.settings.keys import known_keys
from frazil.settings.names import ENVIRONMENT_NAMES, FILE_NAMES, PYICEBERG_NAMES

ROOT = Path(__file__).resolve().parent.parent
_PART = re.compile(r"(<!-- generated: (?P<name>[a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)
_WIDTH = 100

#: Defaults that depend on the machine.
_DEFAULT_FOLDERS = {
    "home": "`frazil` in `XDG_DATA_HOME` (`~/.local/share`)",
    "cache": "`frazil` in `XDG_CACHE_HOME` (`~/.cache`)",
}
#: Sections that have the same keys as another one.
_ALIKE = {"catalog.s3.": "s3.", "catalogs.<name>.": "catalog."}


def main(arguments: Sequence[str]) -> int:
    stale = []
    for file in documents():
        written = file.read_text(encoding="utf-8")
        wanted = filled(written)
        if wanted != written:
            stale.append(file.relative_to(ROOT))
            if "--check" not in arguments:
                file.write_text(wanted, encoding="utf-8")
    if "--check" not in arguments:
        print(f"{len(stale)} files rewritten" if stale else "nothing to do")
        return 0
    for name in stale:
        print(f"{name} is out of date; Try: python tools/reference.py", file=sys.stderr)
    return 1 if stale else 0


def documents() -> list[Path]:
    return sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def filled(text: str) -> str:
    return _PART.sub(lambda m: f"{m[1]}{PARTS[m['name']]()}\n{m[3]}", text)


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [list(heads), ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def settings() -> str:
    sections: dict[str, list[list[str]]] = {}
    for key, field in known_keys():
        like = next((prefix for prefix in _ALIKE if key.startswith(prefix)), None)
        row = _alike_row(like) if like else _setting_row(key, field)
        rows = sections.setdefault(key.split(".")[0] if "." in key else "", [])
        if row not in rows:
            rows.append(row)
    heads = ("key", "type", "default", "meaning", "environment")
    return "\n\n".join((f"### {name}\n\n" if name else "") + table(heads, rows) for name, rows in sections.items())


def _setting_row(key: str, field: FieldInfo) -> list[str]:
    return [
        f"`{key}`",
        type_name(field.annotation),
        _default(key, field),
        field.description or "",
        f"`{variable(key)}`",
    ]


def _alike_row(prefix: str) -> list[str]:
    return [f"`{prefix}*`", "", "", f"every key of `{_ALIKE[prefix].rstrip('.')}`", f"`{variable(prefix)}*`"]


def variable(key: str) -> str:
    return "FRAZIL_" + key.upper().replace(".", "__")


def _default(key: str, field: FieldInfo) -> str:
    if key in _DEFAULT_FOLDERS:
        return _DEFAULT_FOLDERS[key]
    value = field.get_default(call_default_factory=True, validated_data={})
    if value is None or value == {} or value is PydanticUndefined:
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"


def type_name(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin in (Union, types.UnionType):
        return type_name(next(a for a in get_args(annotation) if a is not type(None)))
    if origin is Annotated:
        return type_name(get_args(annotation)[0])
    if origin is Literal:
        return ", ".join(f"`{value}`" for value in get_args(annotation))
    if origin is dict:
        return "map"
    names = {str: "text", bool: "true, false", int: "integer", float: "number", Path: "path", SecretStr: "secret"}
    return names.get(annotation, str(annotation))


def environment_names() -> str:
    rows = [
        [f"`{name}`", f"`{'.'.join(known.path)}`", "yes" if known.announce else ""]
        for name, known in ENVIRONMENT_NAMES.items()
    ]
    return table(("variable", "setting", "announced"), rows)


def file_names() -> str:
    rows = [
        [f"`{name}`", f"`{'.'.join(known.path)}`" + (" (where nothing else names it)" if known.weak else "")]
        for name, known in FILE_NAMES.items()
    ]
    return table(("key", "setting"), rows)


def pyiceberg_names() -> str:
    rows = [[f"`{name}`", f"`catalog.{'.'.join(path)}`"] for name, path in PYICEBERG_NAMES.items()]
    return table(("PyIceberg property", "setting"), rows)


def commands() -> str:
    parts = [f"```text\n{overview()}\n```"]
    for name, (module, _) in COMMANDS.items():
        top = typer.main.get_command(importlib.import_module(f"frazil.cli.{module}").app)
        for words, command in _tree(name, top):
            # The printed width must not depend on the terminal in which this runs.
            context = command.make_context(
                f"frazil {words}", [], resilient_parsing=True, terminal_width=_WIDTH, max_content_width=_WIDTH
            )
            text = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
            parts.append(f"## {words}\n\n```text\n{text}\n```")
    return "\n\n".join(parts)


def _tree(words: str, command: Any) -> Iterator[tuple[str, Any]]:
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from _tree(f"{words} {name}", child)


def load_all() -> None:
    """Every module: an error, or a metric, is declared where it is used."""
    for module in pkgutil.walk_packages(frazil.__path__, "frazil."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


def error_tree() -> str:
    load_all()
    meanings = dict(re.findall(r"(\w+)\s+\d+\s+\d{3}\s{2,}(\S.*)", errors.__doc__ or ""))
    rows = [
        [
            "&emsp;" * depth + f"`{kind.__name__}`",
            str(kind.exit_code),
            str(kind.http_status),
            "yes" if kind.retryable else "no",
            meanings.get(kind.__name__) or _first_line(kind),
        ]
        for depth, kind in _kinds(errors.FrazilError, 0)
    ]
    return table(("error", "exit code", "HTTP", "retryable", "meaning"), rows)


def _kinds(kind: type[errors.FrazilError], depth: int) -> Iterator[tuple[int, type[errors.FrazilError]]]:
    yield depth, kind
    own = {below.__name__: below for below in kind.__subclasses__() if below.__module__.startswith("frazil.")}
    for name in sorted(own):
        if not name.startswith("_"):  # caught where it is raised: nobody is told
            yield from _kinds(own[name], depth + 1)


def _first_line(kind: type[errors.FrazilError]) -> str:
    return (kind.__doc__ or "").strip().partition("\n")[0].rstrip(".") if "__doc__" in vars(kind) else ""


def metric_list() -> str:
    load_all()
    rows = [[f"`{m.name}`", m.kind, ", ".join(f"`{n}`" for n in m.labels), m.help] for m in metrics.describe()]
    return table(("metric", "kind", "labels", "meaning"), rows)


def abilities() -> str:
    rows = [
        [f"`{flavor}`", *("yes" if getattr(able, name) else "no" for name in ABILITY_NAMES), able.note]
        for flavor, able in ABILITIES.items()
    ]
    return table(("catalog", *(name.replace("_", " ") for name in ABILITY_NAMES), "note"), rows)


def jars() -> str:
    locks = {"Spark": "src/frazil/spark/jars.lock.json", "tests": "tests/services/jars.lock.json"}
    rows = [
        [f"`{entry['coordinate']}`", f"{entry['size'] / 1e6:.0f} MB", used_by]
        for used_by, lock in locks.items()
        for entry in json.loads((ROOT / lock).read_text())["jars"]
    ]
    return table(("jar", "size", "for"), rows)


def make_targets() -> str:
    found = re.findall(r"^([a-z-]+):.*## (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    return table(("target", "what it does"), [[f"`make {name}`", about] for name, about in found])


def content_queries() -> str:
    """The queries for DuckDB; Spark's differ in the quotes around names."""
    ours = Queries("content.objects", Source("content.journal"))
    aws = Queries("content.objects", Source("aws.my_journal", JOURNAL.names[:21]))
    shown = [
        ("`current_objects`", ours.text("current_objects")),
        ("`s3_content_metadata`", ours.text("s3_content_metadata")),
        ("`s3_metadata_coalesced`, over a journal of S3 Metadata", aws.text("s3_metadata_coalesced")),
        ("`s3_metadata_coalesced`, over our journal", ours.text("s3_metadata_coalesced")),
    ]
    return "\n\n".join(f"{title}:\n\n```sql\n{text}\n```" for title, text in shown)


def extractors() -> str:
    every = extract_reference.describe_extractors()
    rows = [
        [f"[`{e.name}`](#{e.name})", e.doc, e.runs, e.reads, f"`{e.extra}`" if e.extra else "", e.version]
        for e in every
    ]
    parts = [table(("extractor", "result", "runs", "reads", "extra", "version"), rows)]
    for e in every:
        types = ", ".join(f"`{t}`" for t in e.types)
        parts.append(f"### {e.name}\n\n{e.doc} Supports {types}.")
        if e.fields:
            parts.append(table(("field", "meaning"), [[f"`{name}`", meaning] for name, meaning in e.fields.items()]))
    return "\n\n".join(parts)


def storage_tiers() -> str:
    rows = [
        [f"`{tier}`", "yes" if tier in ARCHIVE_TIERS else "no", _codes(allowed_tiers(_document(tier, "none"))),
         _codes(allowed_tiers(_document(tier, "restored"))) if tier in ARCHIVE_TIERS else ""]
        for tier in TIERS
    ]  # fmt: skip
    return table(("tier", "archive", "may go to", "with a restored copy to"), rows)


def _document(tier: str, restore_status: str) -> Document:
    return Document("a", "a", storage_tier=tier, restore_status=restore_status)


def restore_states() -> str:
    rows = [[f"`{state}`", _codes(following)] for state, following in RESTORE_STATES.items()]
    return table(("restore state", "may be followed by"), rows)


def _codes(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


PARTS: dict[str, Callable[[], str]] = {
    "abilities": abilities,
    "commands": commands,
    "content-queries": content_queries,
    "environment-names": environment_names,
    "errors": error_tree,
    "extractors": extractors,
    "file-names": file_names,
    "jars": jars,
    "make": make_targets,
    "metrics": metric_list,
    "pyiceberg-names": pyiceberg_names,
    "restore-states": restore_states,
    "settings": settings,
    "storage-tiers": storage_tiers,
}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
