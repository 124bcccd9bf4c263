"""The container files hold together: what they name exists, and nothing is open to the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from frazil.settings.model import SettingsModel

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
README = (DEPLOY / "README.md").read_text()


@pytest.mark.parametrize("name", SERVICES)
def test_every_port_is_bound_to_the_loopback(name: str):
    for port in SERVICES[name].get("ports", []):
        assert re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)


def test_no_two_services_take_the_same_port():
    taken = [port.split(":")[1] for service in SERVICES.values() for port in service.get("ports", [])]
    assert len(taken) == len(set(taken))


@pytest.mark.parametrize("name", SERVICES)
def test_every_service_says_whether_it_is_healthy(name: str):
    check = SERVICES[name]["healthcheck"]
    assert check["test"][0] in ("CMD", "CMD-SHELL")
    assert {"interval", "timeout", "retries"} <= check.keys()


@pytest.mark.parametrize("name", SERVICES)
def test_a_service_starts_in_every_profile_with_what_it_depends_on(name: str):
    for other in SERVICES[name].get("depends_on", {}):
        assert set(SERVICES[name]["profiles"]) <= set(SERVICES[other]["profiles"])


def test_all_means_every_server():
    assert [name for name, service in SERVICES.items() if "all" not in service["profiles"]] == ["frazil"]


def test_every_volume_is_declared():
    used = {volume.split(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])}
    assert used == set(COMPOSE["volumes"])


@pytest.mark.parametrize("name", SERVICES)
def test_every_image_has_a_version_and_every_secret_can_be_changed(name: str):
    assert re.search(r":(\$\{\w+:-)?[\w.-]+\}?$", SERVICES[name]["image"])
    for key, value in SERVICES[name].get("environment", {}).items():
        if re.search(r"SECRET|PASSWORD|CREDENTIALS|ACCESS_KEY|s3key", key, re.IGNORECASE) and "RANDOM" not in key:
            assert re.search(r"\$\{\w+:-[^}]+\}", value), f"{name}: {key}"


def test_the_files_that_compose_builds_from_exist():
    build = SERVICES["frazil"]["build"]
    context = (DEPLOY / build["context"]).resolve()
    assert context == ROOT
    assert (context / build["dockerfile"]).is_file()


def copied_into_the_image() -> list[str]:
    lines = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    return [source for line in lines for source in line.split()]


@pytest.mark.parametrize("source", copied_into_the_image())
def test_a_file_copied_into_the_image_exists_and_reaches_the_build(source: str):
    assert (ROOT / source).exists()
    assert f"!{source}" in (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()


def test_the_image_checks_hashes_and_does_not_run_as_root():
    assert "--require-hashes" in DOCKERFILE
    assert re.findall(r"^USER (\w+)$", DOCKERFILE, re.MULTILINE) == ["frazil"]
    assert 'ENTRYPOINT ["frazil"]' in DOCKERFILE


def test_frazil_knows_the_settings_it_is_given():
    given = [*SERVICES["frazil"]["environment"], *re.findall(r"\b(FRAZIL_\w+)=", DOCKERFILE)]
    assert given
    for key in given:
        assert is_setting(key.removeprefix("FRAZIL_").lower().split("__")), key


def test_the_readme_lists_every_profile_and_every_variable():
    profiles = {profile for service in SERVICES.values() for profile in service["profiles"]}
    variables = set(re.findall(r"\$\{(\w+):-", (DEPLOY / "compose.yaml").read_text()))
    assert {name for name in profiles | variables if f"`{name}`" not in README} == set()


def is_setting(path: list[str]) -> bool:
    section: Any = SettingsModel
    for name in path:
        if not (isinstance(section, type) and issubclass(section, BaseModel) and name in section.model_fields):
            return False
        section = section.model_fields[name].annotation
    return True
