"""The docs say what the code does: references, commands, settings, links and dependencies are held against it."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
import subprocess
import tomllib
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
import typer

from frazil.__main__ import COMMANDS, _split_leading_options
from frazil.settings import SettingsModel, load_settings
from frazil.settings.keys import known_keys
from frazil.topics.source.options import NAMES, parse_options

ROOT = Path(__file__).parents[2]


@cache
def repository_files() -> tuple[Path, ...]:
    """What is in the repository, or would be with the next commit."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    return tuple(sorted(file for name in listed.split("\0") if name and (file := ROOT / name).is_file()))


def pages() -> list[Path]:
    return [file for file in repository_files() if file.suffix == ".md"]


def name_of(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else ""


every_page = pytest.mark.parametrize("page", pages(), ids=name_of)

_BLOCK = re.compile(r"^[ ]*```(\w*)\n(.*?)^[ ]*```", re.DOTALL | re.MULTILINE)


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in _BLOCK.findall(page.read_text()) if language in languages]


def prose(page: Path) -> str:
    return _BLOCK.sub("", page.read_text())


def spans(page: Path) -> list[str]:
    """Inline code."""
    return re.findall(r"`([^`\n]+)`", prose(page))


def test_the_generated_references_are_up_to_date():
    spec = importlib.util.spec_from_file_location("reference", ROOT / "tools" / "reference.py")
    assert spec is not None
    assert spec.loader is not None
    reference = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(reference)
    stale = [name_of(file) for file in reference.documents() if reference.filled(file.read_text()) != file.read_text()]
    assert stale == [], "Try: python tools/reference.py"
    everything = "\n".join(page.read_text() for page in pages())
    used = set(re.findall(r"^<!-- generated: (\S+) -->$", everything, re.MULTILINE))
    assert used == set(reference.PARTS)


def test_the_architecture_names_every_room_and_only_files_that_exist():
    page, package = (ROOT / "ARCHITECTURE.md").read_text(), ROOT / "src" / "frazil"
    files = re.findall(r"`([\w/]+\.py)`", page)
    assert len(files) > 50
    assert [name for name in files if not (package / name).is_file()] == []
    rooms = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE))))
    there = {path.stem for path in package.iterdir() if path.is_dir() or path.suffix == ".py"} - {
        "__pycache__",
        "__init__",
    }
    assert there <= rooms


def test_every_dependency_is_explained_and_every_explained_one_is_there():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = {"Runtime": project["dependencies"]} | {
        f"Extra `{name}`": wanted for name, wanted in project["optional-dependencies"].items()
    }
    page = (ROOT / "docs" / "dependencies.md").read_text()
    sections = dict(re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", page, re.DOTALL | re.MULTILINE))
    for title, wanted in groups.items():
        explained = re.findall(r"^\| `([^`]+)` \| [^|]+ \| [^|]+ \|$", sections[title], re.MULTILINE)
        assert sorted(explained) == sorted(re.split(r"[\[<>=!~;\s]", entry)[0] for entry in wanted), title


def test_the_readme_begins_with_the_two_commands():
    heading, about, commands = (ROOT / "README.md").read_text().split("\n\n")[:3]
    assert heading == "# Frazil"
    assert "\n" not in about
    assert re.findall(r"^make \w+", commands, re.MULTILINE) == ["make demo", "make test"]
    assert commands.startswith("```")


@every_page
def test_every_relative_link_leads_somewhere(page: Path):
    for target in re.findall(r"\[[^\]]*\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.exists(), f"{target}: no such file"
        assert not anchor or anchor in anchors(found), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _BLOCK.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def shown_commands(page: Path) -> list[list[str]]:
    """Every `frazil …` in shell blocks, help texts and inline code, as words."""
    texts = [*"\n".join(blocks(page, "", "sh")).splitlines(), *spans(page)]
    texts += re.findall(r"^  Example: (frazil .*)$", "\n".join(blocks(page, "text")), re.MULTILINE)
    found = []
    for text in texts:
        if not re.match(r"\s*frazil( |$)", text) or "…" in text:
            continue
        words = shlex.shlex(text, posix=True, punctuation_chars="|&;<>")
        words.whitespace_split = True
        command = []
        for word in words:
            if re.fullmatch(r"[|&;<>]+", word):
                break
            command.append(word)
        found.append(command)
    return found


def parse(words: list[str]) -> None:
    """Lets the command read its arguments, without running it."""
    leading, rest = _split_leading_options(words[1:])
    if not rest:
        assert set(leading) <= {"--version", "--help", "-V", "-h"}
        return
    name, *others = rest
    assert name in COMMANDS, f"unknown command '{name}'"
    command = typer.main.get_command(importlib.import_module(f"frazil.cli.{COMMANDS[name][0]}").app)
    arguments = others + leading
    while getattr(command, "commands", None):
        if not arguments:
            return  # prints the help
        if command.invoke_without_command and arguments[0].startswith("-"):
            break  # an option of what the group does itself
        below, *arguments = arguments
        assert below in command.commands, f"'{name}' has no command '{below}'"
        command = command.commands[below]
    with suppress(typer.Exit):  # --help
        command.make_context(name, arguments, resilient_parsing=False)


@every_page
def test_every_command_shown_exists_and_takes_its_options(page: Path):
    for words in shown_commands(page):
        if words[1:] not in ([name] for name in COMMANDS):  # a name alone is one, or prints the help
            parse(words)


def test_the_check_of_commands_finds_what_is_wrong():
    parse(["frazil", "--output", "json", "table", "list"])
    for wrong in ("frazil tabel list", "frazil table lst", "frazil sql x --engin spark", "frazil sql x --engine trino"):
        with pytest.raises(Exception):  # noqa: B017 - Typer's own errors, or a failed assertion
            parse(shlex.split(wrong))


@pytest.fixture
def nobody_elses_settings(monkeypatch, tmp_path: Path) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "nobody"))


@every_page
@pytest.mark.usefixtures("nobody_elses_settings")
def test_every_settings_file_shown_is_valid(page: Path, tmp_path: Path):
    for number, text in enumerate(blocks(page, "yaml")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "frazil.yaml").write_text(text)
        settings = load_settings(config=folder / "frazil.yaml", environ={}, folder=folder)
        assert settings.origins, f"block {number} sets nothing"
        for name in settings.catalog_names():
            settings.catalog(name)


def is_setting(key: str) -> bool:
    """Whether this is a setting, or a section of them."""
    return any(
        f"{known}.".startswith(f"{key}.") or re.fullmatch(re.escape(known).replace("<name>", r"\w+"), key)
        for known, _ in known_keys()
    )


@every_page
def test_every_setting_named_in_a_sentence_exists(page: Path):
    sections = "|".join(SettingsModel.model_fields)
    for span in spans(page):
        key = re.sub(r"(: ?|=).*$", "", span.removeprefix("--set "))
        if not re.fullmatch(rf"({sections})(\.[a-z0-9_]+)+", key) or key.endswith((".db", ".py", ".md", ".yaml")):
            continue
        if key.startswith("spark.") and "_" not in key:
            continue  # Spark has names of its own under this word
        assert is_setting(key), key


@every_page
def test_every_variable_of_ours_named_is_a_setting(page: Path):
    for variable in re.findall(r"\bFRAZIL_[A-Z0-9_]+\b(?![*<])", page.read_text()):
        if variable == "FRAZIL_CONFIG" or variable.endswith("_"):
            continue
        assert is_setting(variable.removeprefix("FRAZIL_").lower().replace("__", ".")), variable


@every_page
def test_every_make_target_named_exists(page: Path):
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = [*"\n".join(blocks(page, "", "sh")).splitlines(), *spans(page)]
    named = {match[1] for line in lines if (match := re.match(r"\s*make ([a-z][a-z-]*)", line))}
    assert named <= targets


def test_every_option_of_the_spark_source_is_explained_with_values_that_it_takes():
    page = (ROOT / "docs" / "spark.md").read_text()
    (table,) = re.findall(r"<!-- options of the source -->\n(.*?)<!-- end of options -->", page, re.DOTALL)
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \|$", table, re.MULTILINE)
    assert sorted(name for name, _, _ in rows) == sorted(NAMES)
    for name, _, values in rows:
        shown = re.findall(r"`([^`]+)`", values)
        assert shown, name
        for value in shown:
            parse_options({"topic": "orders", name: value})
    defaults = {name: default.strip("`") for name, default, _ in rows if re.fullmatch("`[^`]+`", default)}
    assert set(defaults) == {"source", "startingOffset", "endingOffset", "pushdown"}
    assert parse_options({"topic": "orders", **defaults}) == parse_options({"topic": "orders"})


def test_ci_runs_what_the_readme_says():
    commands = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert commands[-2:] == ["make test", "make test-deep"]


_MACHINE_PATH = re.compile(r"(?<![\w:/.-])/(?:work|root|home|Users)/[\w.-]+")
_REGISTRY = re.compile(
    r"https?://[^\s/\"'<>]*(?:pypi|pythonhosted|maven|sonatype|npm|artifactory|jfrog|nexus|mirror|registry|proxy\.golang)",
    re.IGNORECASE,
)
_INDEX = re.compile(r"^\s*(?:--(?:extra-)?index-url|--find-links|-i )", re.MULTILINE)


def test_no_file_names_a_path_of_one_machine_or_a_host_to_download_from():
    found = []
    for file in repository_files():
        if file == Path(__file__):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for pattern in (_MACHINE_PATH, _REGISTRY, _INDEX):
            found += [f"{name_of(file)}: {match[0]}" for match in pattern.finditer(text)]
    assert found == []


def test_the_licence_is_apache_2():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License\n                           Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text
