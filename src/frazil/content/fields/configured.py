"""The custom columns of the settings. Errors name file and line."""

from __future__ import annotations

from frazil.content.fields.spec import Fields, FieldSpec, check_distinct, check_name
from frazil.errors import ConfigError
from frazil.settings import Settings
from frazil.settings.keys import Path, dotted

_SCHEMA: Path = ("content", "schema")
_LISTED: Path = (*_SCHEMA, "custom_metadata_fields")
_DOCS = "docs/custom-columns.md has the types, and examples of paths"


def load_configured(settings: Settings) -> Fields:
    """Returns the fields of `content.schema`.

    Raises:
        ConfigError: one of them cannot be; it says where that stands.
    """
    schema = settings.model.content.schema
    listed = schema.custom_metadata_fields
    try:
        for name in listed:
            check_name(name)
        check_distinct(listed)
    except ValueError as error:
        raise _wrong(settings, _LISTED, str(error)) from None
    for name in schema.field:
        if name not in listed:
            raise _unlisted(settings, name)
    fields = tuple(_field(settings, name) for name in listed)
    return Fields(fields, schema.cast, schema.include_raw_metadata)


def _field(settings: Settings, name: str) -> FieldSpec:
    found = settings.model.content.schema.field.get(name)
    of = (*_SCHEMA, "field", name)
    if found is None or found.type is None or found.jpath is None:
        lacks = "jpath" if found is not None and found.type is not None else "type"
        # The position of the other half, or else of the field's name.
        near = (*of, "type" if lacks == "jpath" else "jpath")
        where = near if near in settings.origins else _LISTED
        example = "INTEGER" if lacks == "type" else "$.exif.ISOSpeedRatings"
        raise ConfigError(
            f"{settings.origin(where)}: the custom column '{name}' has no {lacks}",
            hint=f"{dotted((*of, lacks))}: {example}",
        )
    try:
        return FieldSpec.of(name, found.type, found.jpath)
    except ValueError as error:
        raise _wrong(settings, (*of, "jpath" if "JSONPath" in str(error) else "type"), str(error)) from None


def _unlisted(settings: Settings, name: str) -> ConfigError:
    of = (*_SCHEMA, "field", name)
    where = next((path for path in settings.origins if path[: len(of)] == of), of)
    listed = settings.model.content.schema.custom_metadata_fields
    return ConfigError(
        f"{settings.origin(where)}: {dotted(where)} defines a custom column that is not named",
        cause=f"{dotted(_LISTED)} is '{', '.join(listed)}'",
        hint=f"{dotted(_LISTED)}: {', '.join([*listed, name])}",
    )


def _wrong(settings: Settings, path: Path, problem: str) -> ConfigError:
    return ConfigError(f"{settings.origin(path)}: {dotted(path)}: {problem}", hint=_DOCS)
