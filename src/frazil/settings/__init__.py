"""The only reader of environment and settings files. Typed, and every value knows where it came from."""

from frazil.settings.load import Settings, load_settings
from frazil.settings.model import (
    CatalogKind,
    CatalogSettings,
    NetworkSettings,
    S3Settings,
    SettingsModel,
    SparkSettings,
)
from frazil.settings.precedence import Notice

__all__ = [
    "CatalogKind",
    "CatalogSettings",
    "NetworkSettings",
    "Notice",
    "S3Settings",
    "Settings",
    "SettingsModel",
    "SparkSettings",
    "load_settings",
]
