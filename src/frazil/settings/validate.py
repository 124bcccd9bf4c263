"""From chosen assignments to the typed model, and from Pydantic's complaints to ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from frazil.errors import ConfigError
from frazil.settings import environment, keys
from frazil.settings.masking import mask_urls, masked
from frazil.settings.model import SettingsModel
from frazil.settings.sources import Assignment


def validated(chosen: list[Assignment]) -> SettingsModel:
    """Validates values into the model.

    Raises:
        ConfigError: a value does not fit; it says where it stands.
    """
    defaults = {"home": environment.default_home(), "cache": environment.default_cache()}
    try:
        return SettingsModel.model_validate(defaults | tree_of({a.path: a.value for a in chosen}))
    except ValidationError as error:
        # `from None`: Pydantic's text repeats the values, secrets too.
        raise _explained(error, chosen) from None


def tree_of(values: Mapping[keys.Path, str]) -> dict[str, Any]:
    """Nests values like the model. An emptied setting gets its default; an entry of a map may be empty."""
    tree: dict[str, Any] = {}
    for path, value in values.items():
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        if value or keys.field_at(path) is None:
            node[path[-1]] = value
    return tree


def problem_of(error: ValidationError) -> tuple[keys.Path, str]:
    """Returns the path and the description of the first problem."""
    first = error.errors(include_url=False, include_input=False)[0]
    path = tuple(str(part) for part in first["loc"] if part != "[key]")
    return path, mask_urls(first["msg"].removeprefix("Value error, "))


def _explained(error: ValidationError, chosen: list[Assignment]) -> ConfigError:
    path, problem = problem_of(error)
    concerned = [a for a in chosen if a.path[: len(path)] == path]
    where = ", ".join(dict.fromkeys(str(a.origin) for a in concerned)) or "settings"
    written = next((f" is '{masked(path, a.value)}'" for a in concerned if a.path == path), "")
    return ConfigError(f"{where}: {keys.dotted(path)}{written}: {problem}", hint=_example(path))


def _example(path: keys.Path) -> str:
    field = keys.field_at(path)
    if field is None or keys.shape_of(field)[0] != "leaf":
        return f"frazil config show {path[0]}"
    default = field.get_default(call_default_factory=True, validated_data={})
    usable = isinstance(default, (str, int, float))
    return f"{keys.dotted(path)}: {default}" if usable else f"{keys.dotted(path)}: {field.description}"
