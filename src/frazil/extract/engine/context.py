"""What extractors need besides the object: a cache folder for models, and access to AWS.

The worker process sets it once with `set_context`; elsewhere the settings of this machine apply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from frazil.settings import NetworkSettings, S3Settings, load_settings


@dataclass(frozen=True)
class ExtractorContext:
    """The settings that an extractor may use.

    Attributes:
        cache: the cache folder; None: the one of this machine's settings.
        s3: credentials and region for AWS, and whether the buckets are Amazon's.
        network: timeouts and retries.
    """

    cache: Path | None = None
    s3: S3Settings = field(default_factory=S3Settings)
    network: NetworkSettings = field(default_factory=NetworkSettings)


_used: list[ExtractorContext] = []


def set_context(context: ExtractorContext) -> None:
    """Sets the context of this process."""
    _used[:] = [context]


def current_context() -> ExtractorContext:
    """Returns the context of this process; without one, that of the settings found here.

    Raises:
        ConfigError: no context was set, and the settings cannot be read.
    """
    if not _used:
        model = load_settings().model
        set_context(ExtractorContext(model.cache, model.s3, model.network))
    return _used[0]


def cache_folder() -> Path:
    """Returns the cache folder.

    Raises:
        ConfigError: no context was set, and the settings cannot be read.
    """
    return current_context().cache or load_settings().model.cache
