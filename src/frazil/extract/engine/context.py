"""What the extractors of this folder need besides the object: a folder to keep the model in, and a way to AWS.

The process that runs extractors says it once with `set_context`. What it does not say, the settings of this machine do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from frazil.settings import NetworkSettings, S3Settings, load_settings


@dataclass(frozen=True)
class ExtractorContext:
    """What an extractor may use of the settings.

    Attributes:
        cache: folder of what can be made again; None: that of the settings of this machine.
        s3: keys and region for AWS, and whether the buckets are Amazon's.
        network: patience with servers.
    """

    cache: Path | None = None
    s3: S3Settings = field(default_factory=S3Settings)
    network: NetworkSettings = field(default_factory=NetworkSettings)


_used: list[ExtractorContext] = []


def set_context(surroundings: ExtractorContext) -> None:
    """From now on these count in this process."""
    _used[:] = [surroundings]


def current_context() -> ExtractorContext:
    """Those that were said, else those of the settings that are found here.

    Raises:
        ConfigError: nobody said, and the settings cannot be read.
    """
    if not _used:
        model = load_settings().model
        set_context(ExtractorContext(model.cache, model.s3, model.network))
    return _used[0]


def cache_folder() -> Path:
    """Where what can be made again is kept.

    Raises:
        ConfigError: nobody said, and the settings cannot be read.
    """
    return current_context().cache or load_settings().model.cache
