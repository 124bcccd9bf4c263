"""What the machine's environment says that is no setting of ours. With `load`, the only reader of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from frazil.errors import ConfigError


@dataclass(frozen=True)
class AzureAccess:
    """Access to Azure storage by the variables that its own tools have. obstore reads them itself.

    Attributes:
        endpoint: of a private link or an emulator, with the account where that is part of it; None: Azure's own.
        account_key: of the storage account.
        sas_token: a shared access signature.
    """

    endpoint: str | None
    account_key: str | None = field(repr=False)
    sas_token: str | None = field(repr=False)


def azure_access() -> AzureAccess:
    def find(*names: str) -> str | None:
        return next((value for name in names if (value := os.environ.get(name))), None)

    return AzureAccess(
        find("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT"),
        find("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY"),
        find("AZURE_STORAGE_SAS_TOKEN", "AZURE_STORAGE_SAS_KEY"),
    )


def java_home() -> Path | None:
    value = os.environ.get("JAVA_HOME")
    return Path(value) if value else None


def default_home() -> Path:
    """Where the embedded catalog lies when nobody says: the user's data folder."""
    return _default_folder("XDG_DATA_HOME", ".local/share")


def default_cache() -> Path:
    return _default_folder("XDG_CACHE_HOME", ".cache")


def user_file(environ: Mapping[str, str]) -> Path | None:
    """The user's settings file, if this environment has a user and the user has one."""
    if base := environ.get("XDG_CONFIG_HOME"):
        file = Path(base) / "frazil" / "config.yaml"
    elif home := environ.get("HOME"):
        file = Path(home) / ".config" / "frazil" / "config.yaml"
    else:
        return None
    return file if sees(file) else None


def sees(file: Path) -> bool:
    """Whether this file is there. One in a folder that we may not enter, such as another user's home, is not."""
    try:
        return file.is_file()
    except PermissionError:
        return False


def trusted_owners() -> frozenset[int]:
    """Users whose settings files this process follows: its own, root, and the one who called `sudo`."""
    uid = os.geteuid()
    caller = os.environ.get("SUDO_UID", "") if uid == 0 else ""
    return frozenset({uid, 0, *((int(caller),) if caller.isascii() and caller.isdecimal() else ())})


def require_known(path: str, setting: str) -> None:
    """Fails for a default below a home folder that there is none of.

    Raises:
        ConfigError: the path still begins with '~'.
    """
    if path.startswith("~"):
        raise ConfigError(
            f"{setting} is not set, and its default {path} is in a home folder, but this user has none",
            hint=f"--set {setting}=DIR, or FRAZIL_{setting.upper()}, or HOME",
        )


def _default_folder(name: str, fallback: str) -> Path:
    """Where there is no home folder it begins with '~'; see `require_known`."""
    # os.path, because Path.home() fails where there is none
    base = os.environ.get(name) or os.path.expanduser(f"~/{fallback}")  # noqa: PTH111
    return Path(base) / "frazil"
