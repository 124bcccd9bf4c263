"""Extractors of other packages: the example of the docs is installed and runs; a broken one loses only itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import EntryPoint, distributions
from pathlib import Path

import pytest

from frazil.extract import Unsupported
from frazil.extract.reference import describe_extractors
from frazil.extract.registry import BUILT_IN, GROUP, load
from tests.extract_kit import MemoryItem

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "extractor"
PAGE = ROOT / "docs" / "extractors.md"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the example in it, installed as a user would, without the network."""
    source = tmp_path_factory.mktemp("source") / "extractor"
    shutil.copytree(EXAMPLE, source)
    target = tmp_path_factory.mktemp("target")
    command = [
        sys.executable,
        "-m",
        "uv",
        "pip",
        "install",
        "--offline",
        "--no-deps",
        "--no-build-isolation",
        "--quiet",
    ]
    command += ["--no-config", "--python", sys.executable, "--target", str(target), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """What a test imports from its own folders is forgotten after it."""
    known = set(sys.modules)
    yield monkeypatch
    for name in set(sys.modules) - known:
        if name.startswith(("frazil_extractor_csv", "plugin_")):
            del sys.modules[name]


def plugins_of(folder: Path) -> list[EntryPoint]:
    return [e for d in distributions(path=[str(folder)]) for e in d.entry_points if e.group == GROUP]


def test_the_example_is_found_once_it_is_installed_and_runs(installed: Path, on_the_path: pytest.MonkeyPatch):
    on_the_path.syspath_prepend(str(installed))
    registry = load(BUILT_IN[-1:], plugins_of(installed))
    assert registry.broken == {}
    (example,) = registry.choose(["csv_table"])
    assert example.doc == "The columns of a CSV file, and how many rows it has."
    told = example.look(MemoryItem("\ufeffname,città\nAda,Torino\nBo,Roma\n".encode(), detected_type="text/csv"))
    assert told == {"columns": ["name", "città"], "rows": 2}
    with pytest.raises(Unsupported, match="empty"):
        example.look(MemoryItem(b"", detected_type="text/csv"))
    assert example.takes("text/csv")
    assert not example.takes("text/plain")


def test_frazil_itself_finds_it_in_a_new_process(installed: Path):
    code = (
        "import json; from frazil.extract.registry import registry\n"
        "found = registry(); print(json.dumps([found.found['csv_table'].source, 'type' in found.found]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
    )
    assert json.loads(done.stdout) == ["frazil_extractor_csv:csv_table", True]


GOOD = """
from frazil.extract import extractor

@extractor("good")
def good(item):
    return {"size": item.size}

@extractor("rekognition")
def again(item):
    return {}

@extractor("not a name")
def unnamed(item):
    return {}

function = lambda item: {}
"""

BROKEN = {
    "missing_module": ("plugin_missing:look", "ModuleNotFoundError: No module named 'plugin_missing'"),
    "missing_import": ("plugin_import:look", "ModuleNotFoundError: No module named 'a_package_that_nobody_has'"),
    "exits": ("plugin_exit:look", "SystemExit: 3"),
    "syntax": ("plugin_syntax:look", "SyntaxError: "),
    "missing_attribute": ("plugin_good:nothing", "AttributeError: "),
    "wrong_type": ("plugin_good:function", "TypeError: function is function, not an Extractor (see @extractor)"),
    "duplicate": ("plugin_good:again", f"the name 'rekognition' is taken by {BUILT_IN[-1]}"),
    "bad_name": ("plugin_good:unnamed", "'not a name' is not a valid name"),
}


@pytest.fixture
def strangers(tmp_path: Path) -> Path:
    """A folder as pip leaves it: a good plugin, and one for each way to be broken."""
    (tmp_path / "plugin_good.py").write_text(GOOD)
    (tmp_path / "plugin_import.py").write_text("import a_package_that_nobody_has")
    (tmp_path / "plugin_exit.py").write_text("raise SystemExit(3)")
    (tmp_path / "plugin_syntax.py").write_text("def look(:")
    facts = tmp_path / "strangers-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: strangers\nVersion: 1\n")
    lines = [f"{name} = {source}" for name, (source, _) in BROKEN.items()]
    (facts / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", "good = plugin_good:good", *lines]))
    return tmp_path


def test_a_broken_plugin_loses_only_itself(
    strangers: Path, on_the_path: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    on_the_path.syspath_prepend(str(strangers))
    registry = load(BUILT_IN[-1:], plugins_of(strangers))
    assert list(registry.found) == ["rekognition", "good"]
    assert registry.found["rekognition"].source == BUILT_IN[-1]
    assert registry.found["good"].extractor.look(MemoryItem(b"12345", detected_type="text/plain")) == {"size": 5}
    assert set(registry.broken) == {f"{name} = {source}" for name, (source, _) in BROKEN.items()}
    for name, (source, why) in BROKEN.items():
        assert registry.broken[f"{name} = {source}"].startswith(why)
        assert f"Extractor {name} = {source} is skipped" in caplog.text


def test_a_plugin_that_imports_the_former_module_uses_the_same_classes():
    import frazil.content.extract.api as former
    import frazil.extract as public

    assert sorted(former.__all__) == sorted(public.__all__)
    assert all(getattr(former, name) is getattr(public, name) for name in public.__all__)


# -- the page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("file", "language"), [("pyproject.toml", "toml"), ("frazil_extractor_csv.py", "python")])
def test_the_page_shows_the_example_as_it_is(file: str, language: str):
    assert f"```{language}\n{(EXAMPLE / file).read_text()}```" in PAGE.read_text()


def test_the_example_has_about_twenty_lines():
    lines = (EXAMPLE / "frazil_extractor_csv.py").read_text().splitlines()
    assert len([line for line in lines if line]) <= 20


def test_every_built_in_extractor_is_described():
    every = describe_extractors()
    assert len(every) == len(BUILT_IN)
    page = PAGE.read_text()
    for one in every:
        assert one.doc, one.name
        assert one.fields, one.name
        assert re.search(rf"^\| \[`{one.name}`\]", page, re.MULTILINE), one.name


def test_the_seeing_extractors_are_described_with_their_extras():
    found = {one.name: one for one in describe_extractors()}
    assert found["labels"].extra == "labels"
    assert found["ocr"].extra == "ocr"
    assert found["rekognition"].extra == ""
    assert [found[name].runs for name in ("labels", "ocr", "rekognition")] == ["by default", "if named", "if named"]
