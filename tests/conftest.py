"""Fixtures for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.kit import Services


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Real servers, started when a test first asks for one: `services.rest.url`."""
    with Services() as kit:
        yield kit
