"""Fixtures for every test."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from frazil.settings import Settings
from tests.machine import quick_jvms
from tests.services.kit import Services
from tests.services.sharing import shared_services

quick_jvms()


@pytest.fixture(autouse=True)
def _restore_logging() -> Iterator[None]:
    """Undoes what a test, a fixture, or a command that they run in this process configures: tests check log entries."""
    root = logging.getLogger()
    level = root.level
    structlog.reset_defaults()  # a fixture of a module may have run a command
    yield
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def services() -> Iterator[Services]:
    """Real servers, started when a test first asks for one: `services.rest.url`."""
    with shared_services() as kit:
        yield kit


@pytest.fixture(scope="session")
def lane_settings(services: Services, tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """Settings with a catalog of every kind."""
    from tests.lane import lane_settings

    folder: Path = tmp_path_factory.mktemp("lane")
    return lane_settings(services, folder)


@pytest.fixture(scope="session")
def spark(lane_settings: Settings):
    """The one Spark session of a test run."""
    from frazil.catalogs import open_catalog
    from frazil.spark import spark_session

    open_catalog(lane_settings.catalog("sql"))
    with spark_session(lane_settings) as session:
        yield session


@pytest.fixture(scope="module")
def zoo(spark, services: Services, lane_settings: Settings, tmp_path_factory: pytest.TempPathFactory):
    """Tables that other writers made, in the embedded catalog: `zoo.table("spark_v3")`.

    They leave the catalog with the module: one of them PyIceberg cannot read, and beside such a table orphan removal
    refuses to work.
    """
    from frazil.catalogs import open_catalog
    from tests.relocation_tables import Zoo

    catalog = open_catalog(lane_settings.catalog("sql"))
    made = Zoo(spark, tmp_path_factory.mktemp("zoo"), catalog, services.rest.url)
    yield made
    for identifier in catalog.list_tables(made.namespace):
        catalog.drop_table(identifier)
    catalog.drop_namespace(made.namespace)
