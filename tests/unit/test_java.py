"""Finding a JDK that Spark can start on."""

from __future__ import annotations

from pathlib import Path

import pytest

from frazil.errors import SetupError
from frazil.spark import java


def fake_jdk(folder: Path, version: str, *, release: bool = True) -> Path:
    (folder / "bin").mkdir(parents=True)
    executable = folder / "bin" / "java"
    executable.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\n")
    executable.chmod(0o755)
    if release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return folder


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A machine whose JDKs lie only below tmp_path/jvm."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(java, "_WHERE_JDKS_LIE", (str(tmp_path / "jvm"),))
    return tmp_path


@pytest.mark.parametrize(("text", "major"), [("17.0.15", 17), ("21", 21), ("1.8.0_392", 8), ("25-ea", 25), ("", 0)])
def test_the_major_version_is_read_from_any_spelling(text, major):
    assert java.major_version(text) == major


def test_java_home_comes_first(machine, monkeypatch):
    fake_jdk(machine / "jvm" / "a", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(fake_jdk(machine / "mine", "21.0.2")))
    assert java.find_java() == java.Java(machine / "mine", "21.0.2")


def test_a_java_home_that_spark_cannot_use_is_passed_over(machine, monkeypatch):
    monkeypatch.setenv("JAVA_HOME", str(fake_jdk(machine / "mine", "25.0.1")))
    fake_jdk(machine / "jvm" / "b", "17.0.9")
    assert java.find_java().major == 17


def test_the_java_of_the_path_is_followed_through_links(machine):
    jdk = fake_jdk(machine / "opt" / "jdk", "17.0.3")
    (machine / "bin").mkdir()
    (machine / "bin" / "java").symlink_to(jdk / "bin" / "java")
    assert java.find_java().home == jdk


def test_a_jdk_without_a_release_file_is_asked_itself(machine):
    fake_jdk(machine / "jvm" / "plain", "21.0.8", release=False)
    assert java.find_java().version == "21.0.8"


def test_a_machine_with_only_java_25_says_so_and_what_to_install(machine):
    fake_jdk(machine / "jvm" / "new", "25.0.1")
    with pytest.raises(SetupError, match="needs Java 17 or 21") as missing:
        java.find_java()
    assert "Java 25" in (missing.value.cause or "")
    assert "17" in (missing.value.hint or "")


def test_a_machine_without_java_says_what_to_install(machine):
    with pytest.raises(SetupError) as missing:
        java.find_java()
    assert "no Java was found" in (missing.value.cause or "")
    assert missing.value.hint


def test_the_java_that_the_user_named_is_taken_or_refused_never_replaced(machine):
    fake_jdk(machine / "jvm" / "good", "17.0.1")
    with pytest.raises(SetupError, match="Java 25"):
        java.find_java(fake_jdk(machine / "named", "25.0.1"))
    with pytest.raises(SetupError, match="no bin/java"):
        java.find_java(machine / "nowhere")
    assert java.find_java(fake_jdk(machine / "other", "21.0.1")).home == machine / "other"


def test_a_broken_java_is_passed_over(machine):
    broken = fake_jdk(machine / "jvm" / "a-broken", "17.0.1", release=False)
    (broken / "bin" / "java").write_text("#!/bin/sh\nexit 3\n")
    fake_jdk(machine / "jvm" / "b-good", "17.0.2")
    assert java.find_java().home.name == "b-good"


def fake_apt(machine: Path, policy: str) -> Path:
    """Debian's tools, which know packages only after an update, and speak English only if asked."""
    log = machine / "apt.log"
    programs = {
        "apt-get": f'echo "$@" >> {log}',
        "apt-cache": f'grep -q update {log} || exit 0\n[ "$LC_ALL" = C ] && echo "{policy}" || echo "Kandidat: 17"',
    }
    (machine / "bin").mkdir(exist_ok=True)
    for name, text in programs.items():
        (machine / "bin" / name).write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{text}\n")
        (machine / "bin" / name).chmod(0o755)
    return log


@pytest.mark.parametrize(
    ("policy", "package"),
    [
        ("  Candidate: 17.0.15+6-1", "openjdk-17-jdk-headless"),
        ("  Candidate: (none)", "openjdk-21-jdk-headless"),
        ("", "openjdk-21-jdk-headless"),
    ],
)
def test_debian_is_asked_for_17_after_an_update_in_any_language(machine, monkeypatch, policy, package):
    log = fake_apt(machine, policy)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    fake_jdk(machine / "jvm" / "new", "17.0.15")
    assert java.install_java().major == 17
    assert log.read_text().splitlines() == ["update -q", f"install -y -q {package}"]
