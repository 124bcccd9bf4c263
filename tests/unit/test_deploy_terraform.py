"""The Terraform files hold together: brackets close, every name that is used is declared, and the README lists them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from frazil.content.events.kinds import kind_of, kind_of_detail

FOLDER = Path(__file__).parents[2] / "deploy" / "terraform" / "aws-events"
FILES = sorted(FOLDER.glob("*.tf"))
README = (FOLDER / "README.md").read_text()


def code(text: str) -> str:
    """HCL without comments and texts; what stands in `${…}` stays."""
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    return re.sub(r'"((?:[^"\\]|\\.)*)"', lambda found: " ".join(re.findall(r"\$\{([^}]*)\}", found[1])), text)


TEXT = "\n".join(file.read_text() for file in FILES)
CODE = code(TEXT)


def declared(kind: str) -> set[str]:
    """`variable "x"` as x, `resource "a" "b"` as a.b."""
    heads = re.findall(rf'^{kind} ((?:"[\w-]+" ?)+){{', TEXT, re.MULTILINE)
    return {".".join(re.findall(r'"([\w-]+)"', head)) for head in heads}


def defaults_of(variable: str) -> list[str]:
    block = re.search(rf'^variable "{variable}" {{\n(.*?)^}}', TEXT, re.MULTILINE | re.DOTALL)
    assert block is not None
    return re.findall(r'^    "([^"]+)",$', block[1], re.MULTILINE)


def test_there_are_the_files_that_terraform_users_expect():
    assert [file.name for file in FILES] == ["main.tf", "outputs.tf", "variables.tf"]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_bracket_is_closed_by_its_own_kind(file: Path):
    open_ones = []
    for letter in re.findall(r"[{}()\[\]]", code(file.read_text())):
        if letter in "{([":
            open_ones.append(letter)
        else:
            assert open_ones.pop() + letter in ("{}", "()", "[]")
    assert open_ones == []


def test_every_variable_is_used_and_every_used_one_is_declared():
    assert set(re.findall(r"\bvar\.(\w+)", CODE)) == declared("variable")


def test_every_thing_referred_to_is_declared():
    data = {f"{kind}.{name}" for kind, name in re.findall(r"\bdata\.(\w+)\.(\w+)", CODE)}
    resources = {f"{kind}.{name}" for kind, name in re.findall(r"(?<![\w.])(aws_\w+)\.(\w+)", CODE)}
    locals_block = re.search(r"^locals {\n(.*?)^}", TEXT, re.MULTILINE | re.DOTALL)
    assert locals_block is not None
    assert data == declared("data")
    assert resources and resources <= declared("resource")
    assert set(re.findall(r"\blocal\.(\w+)", CODE)) == set(re.findall(r"^  (\w+) +=", locals_block[1], re.MULTILINE))


def test_the_readme_lists_every_variable_and_every_output():
    listed = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert listed == declared("variable")
    assert {name for name in declared("output") if f"`{name}`" not in README} == set()


def test_only_events_are_asked_for_that_frazil_reads_as_a_change():
    for name in defaults_of("events"):
        kind = kind_of(
            name.replace("LifecycleExpiration:*", "LifecycleExpiration:Delete").replace("Removed:*", "Removed:Delete")
        )
        assert kind is not None and kind.record_type, name
    for name in defaults_of("detail_types"):
        kind = kind_of_detail(name, "Permanently Deleted")
        assert kind is not None and kind.record_type, name


def test_nobody_else_may_send_into_the_queue_and_nothing_is_open_to_all():
    assert '"*"' not in TEXT
    assert TEXT.count('variable = "aws:SourceArn"') == TEXT.count('"sqs:SendMessage"') == 2
