"""Machines that are not as they should be: no home, closed folders, nothing to compare the clock with."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from frazil import doctor
from frazil.catalogs import open_catalog
from frazil.cli.demo import Chapter
from frazil.demo import CHAPTERS, run_demo
from frazil.demo.stage import Stage
from frazil.errors import ConfigError, NotAllowedError, SetupError, UsageError
from frazil.settings import load_settings
from frazil.settings.show import rows
from frazil.spark.jars import cached_jars, fetch_jars
from frazil.spark.java import Java

NO_JAVA = Java(Path("/nowhere"), "17")


@contextmanager
def closed(folder: Path, mode: int = 0o000) -> Iterator[None]:
    """A folder with these rights, seen by somebody who is not root: root may do everything."""
    was_root = os.geteuid() == 0
    folder.chmod(mode)
    if was_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if was_root:
            os.seteuid(0)
        folder.chmod(0o755)


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that everybody may enter; pytest's own are for its user only."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture
def homeless(monkeypatch):
    """A user without HOME and without a line in passwd, as in many containers."""
    for name in ("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)

    def nobody(uid: int) -> None:
        raise KeyError(uid)

    monkeypatch.setattr("pwd.getpwuid", nobody)


@pytest.fixture
def lock(place: Path) -> Path:
    entry = {"coordinate": "org.example:tiny:1.0", "sha256": hashlib.sha256(b"tiny").hexdigest(), "size": 4}
    file = place / "lock.json"
    file.write_text(json.dumps({"jars": [entry]}))
    return file


def test_settings_in_the_home_of_another_user_are_not_there(place):
    home = place / "theirs"
    (home / ".config" / "frazil").mkdir(parents=True)
    (home / ".config" / "frazil" / "config.yaml").write_text("home: /theirs")
    (home / ".pyiceberg.yaml").write_text("catalog: {default: {uri: 'http://theirs'}}")
    with closed(home):
        loaded = load_settings(environ={"HOME": str(home), "FRAZIL_HOME": "/mine"}, folder=home / "project")
    assert (str(loaded.model.home), loaded.catalog().kind) == ("/mine", "sql")


def test_without_a_home_everything_works_that_needs_none(homeless):
    loaded = load_settings(flags={"catalog.uri": "http://host:1"}, environ={})
    assert loaded.catalog().uri == "http://host:1"
    assert {row.key: row.value for row in rows(loaded)}["home"] == "~/.local/share/frazil"


def test_without_a_home_the_embedded_catalog_asks_for_a_folder(homeless, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for flags in ({}, {"catalog.uri": f"sqlite:///{tmp_path}/my.db"}):
        with pytest.raises(ConfigError, match="home is not set") as error:
            open_catalog(load_settings(flags=flags, environ={}).catalog())
        assert "--set home=DIR" in (error.value.hint or "")
    assert not list(tmp_path.iterdir())
    open_catalog(load_settings(flags={"home": str(tmp_path)}, environ={}).catalog())


def test_without_a_home_the_jars_ask_for_a_folder(homeless, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="cache is not set"):
        fetch_jars(load_settings(environ={}).model.cache, NO_JAVA)


@pytest.mark.parametrize("mode", [0o000, 0o555])
def test_a_cache_that_cannot_be_made_is_told(place, lock, mode):
    folder = place / "closed"
    folder.mkdir()
    with closed(folder, mode), pytest.raises(NotAllowedError, match="cannot create or write") as error:
        fetch_jars(folder / "cache", NO_JAVA, lock=lock)
    assert "--set cache=DIR" in (error.value.hint or "")


def test_a_cache_that_cannot_be_written_is_told(place, lock):
    folder = place / "cache" / "jars"
    folder.mkdir(parents=True)
    with closed(folder, 0o555), pytest.raises(NotAllowedError, match="cannot create or write"):
        fetch_jars(place / "cache", NO_JAVA, lock=lock)


def test_a_cache_in_which_all_is_right_need_not_be_writable(place, lock):
    folder = place / "cache" / "jars"
    folder.mkdir(parents=True)
    (folder / "tiny-1.0.jar").write_bytes(b"tiny")
    with closed(folder, 0o555):
        assert fetch_jars(place / "cache", NO_JAVA, lock=lock) == [folder / "tiny-1.0.jar"]
    assert [file.name for file in folder.iterdir()] == ["tiny-1.0.jar"]


def test_jars_that_nobody_may_see_are_missing(place, lock):
    (place / "cache").mkdir()
    with closed(place / "cache"), pytest.raises(SetupError, match="is not in the cache"):
        cached_jars(place / "cache", lock)


def test_every_chapter_of_the_demo_can_be_chosen():
    assert [chapter.value for chapter in Chapter] == list(CHAPTERS)


def test_the_demo_refuses_a_file(tmp_path):
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    with pytest.raises(UsageError, match="is a file") as error:
        run_demo(file, Stage(None), load_settings(environ={}))  # type: ignore[arg-type]
    assert "--dir" in (error.value.hint or "")
    assert file.read_text() == "mine"


def test_the_demo_tells_when_its_folder_cannot_be_made(place):
    folder = place / "closed"
    folder.mkdir()
    for mode in (0o000, 0o555):
        with closed(folder, mode), pytest.raises(NotAllowedError, match="cannot replace") as error:
            run_demo(folder / "demo", Stage(None), load_settings(environ={}))  # type: ignore[arg-type]
        assert "--dir" in (error.value.hint or "")


def test_the_clock_is_not_compared_with_itself(tmp_path, monkeypatch):
    settings = load_settings(flags={"home": str(tmp_path)}, environ={})
    monkeypatch.setattr(doctor, "open_store", None)
    assert doctor._clock(settings, settings.catalog()) == "no other clock to compare with"
