"""What import-linter cannot express: it sees an external package as one, and no imports by name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import frazil
from frazil.settings import load_settings
from frazil.sinks import SINKS
from frazil.topics.sinks.registry import sink_definitions, sink_tables

ROOT = Path(frazil.__file__).parent
#: Modules of libraries that read or write Iceberg's files, or work on their statistics.
FILE_FORMATS = ("fastavro", "pyiceberg.avro", "pyiceberg.conversions", "pyiceberg.io", "pyiceberg.manifest")
#: They name kinds of files; nobody reads or writes one with them.
NAMES = {"pyiceberg.manifest.DataFileContent", "pyiceberg.manifest.ManifestContent"}
#: Files above `tables` that still do it themselves. This list only gets shorter.
REMAINING = {
    "topics/dead_letters/filters.py": {"pyiceberg.io.pyarrow.expression_to_pyarrow"},
    "topics/reading/dead_letter_files.py": {"pyiceberg.io.pyarrow.ArrowScan"},
}


def imports(tree: ast.AST) -> Iterator[str]:
    """Returns what a module imports at run time, with the names."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from imports(node)


def test_only_the_tables_room_reads_and_writes_files_of_iceberg() -> None:
    found: dict[str, set[str]] = {}
    for file in ROOT.rglob("*.py"):
        room = file.relative_to(ROOT)
        if room.parts[0] == "tables":
            continue
        used = {name for name in imports(ast.parse(file.read_text())) if f"{name}.".startswith(_PREFIXES)} - NAMES
        if used:
            found[room.as_posix()] = used
    assert found == REMAINING


_PREFIXES = tuple(f"{module}." for module in FILE_FORMATS)


def test_the_registry_has_every_sink_with_its_section_and_tables() -> None:
    settings = load_settings(environ={})
    assert list(sink_definitions().values()) == list(SINKS)
    for sink in SINKS:
        section = sink.settings(settings)
        assert section.namespace
        assert section.keep_snapshots > 0
    topic = settings.model.content.topic
    assert sink_tables(settings, topic) == [
        ("archive", f"topics.{topic}"),
        ("content", "content.journal"),
        ("content", "content.objects"),
    ]
    topic = settings.model.documents.topic
    assert sink_tables(settings, topic) == [
        ("archive", f"topics.{topic}"),
        ("documents", "document_archive.document_history"),
        ("documents", "document_archive.document_metadata"),
    ]
    assert sink_tables(settings, "orders") == [("archive", "topics.orders")]


def test_no_room_names_a_module_above_it() -> None:
    """Imports by name escape import-linter. Only the registry has one, of the list of sinks."""
    rooms = {"tables", "log", "topics", "upkeep", "spark", "storage", "catalogs", "observe", "settings", "query"}
    above = ("frazil.sinks", "frazil.content", "frazil.documents", "frazil.api", "frazil.cli", "frazil.backup")
    found = {
        (file.relative_to(ROOT).as_posix(), node.value)
        for room in rooms
        for file in (ROOT / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith(above)
    }
    assert found == {("topics/sinks/registry.py", "frazil.sinks")}
