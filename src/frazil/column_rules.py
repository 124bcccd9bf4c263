"""Rules for the producers' columns: the names, types and values that Iceberg, Spark and PyIceberg can all hold.

docs/topics.md lists them. A batch that breaks one is refused before it is acknowledged; a column in an older log that
breaks one stays out of the table.
"""

from __future__ import annotations

import datetime
import re
import unicodedata
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc

from frazil.errors import UsageError

#: Structs, lists and maps inside each other. Arrow IPC itself ends at 64.
MAX_DEPTH = 32
#: Fields inside one column: each has an id in the table's schema.
MAX_FIELDS = 1000
#: Metadata columns of Iceberg, then the columns that Spark adds for row-level operations and files.
RESERVED = frozenset(
    {
        "_file", "_pos", "_deleted", "_spec_id", "_partition", "_row_id", "_last_updated_sequence_number", "_path",
        "_change_type", "_change_ordinal", "_commit_snapshot_id", "_metadata",
        "__file_source_metadata_col", "__row_from_source", "__row_from_target", "__row_id", "__row_operation",
    }
)  # fmt: skip
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,127}")
#: Names that partition fields of the messages' own columns get, by Frazil and by Spark.
_PARTITION_NAME = re.compile(r"(?P<column>.+?)_(year|month|day|hour|bucket|truncate|trunc|null)(_\d+)?")
_MAX_NESTED_NAME = 128
_MAX_SHOWN = 200
_FIRST_DAY, _LAST_DAY = datetime.date.min, datetime.date.max
_EPOCH = datetime.date(1970, 1, 1)
_DAYS = ((_FIRST_DAY - _EPOCH).days, (_LAST_DAY - _EPOCH).days)
_DAY_US = 86_400_000_000
_MICROSECONDS = (_DAYS[0] * _DAY_US, (_DAYS[1] + 1) * _DAY_US - 1)


def check_name(name: str, given_by_log: list[str]) -> None:
    """Refuses the name of a column that a table of a topic cannot have.

    Raises:
        UsageError: with the reason.
    """
    if name in given_by_log:
        raise UsageError(f"column '{name}' is given by the log, not by producers", hint="send it under another name")
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} is no column's name", hint="lower-case letters, digits and '_'")
    match = _PARTITION_NAME.fullmatch(name)
    if name in RESERVED:
        cause = "Iceberg or Spark has a metadata column of that name, and could not read the table"
    elif name.startswith("__original_row_id_"):
        cause = "Spark adds columns of that name when it changes rows"
    elif match and match["column"] in given_by_log:
        cause = f"a partition by '{match['column']}' has that name"
    else:
        return
    raise UsageError(f"column '{name}' has a reserved name", cause=cause, hint="send it under another name")


def kept_type(name: str, given: pa.DataType) -> pa.DataType:
    """Returns the type in which a table stores the values of a column.

    Raises:
        UsageError: no table can hold such values; it names the column, and the place inside it.
    """
    kept = _keep(given, name, 0)
    paths = list(_paths(kept, name))
    if len(paths) > MAX_FIELDS:
        raise _cannot_hold(
            name, given, f"it has {len(paths):,} fields, and at most {MAX_FIELDS:,} are allowed", "a map"
        )
    if twice := _first_twice(paths):
        raise _cannot_hold(name, given, f"'{twice}' may mean two of its fields", "names without '.'")
    return kept


def check_values(name: str, column: pa.Array) -> None:
    """Refuses dates and times outside of the years 1 to 9999, which Python and thus PyIceberg do not have.

    Raises:
        UsageError: the column has such a value.
    """
    for lowest, highest, leaf in _dated_leaves(column):
        reach = pc.min_max(leaf)
        low, high = (reach[end].cast(pa.int64() if leaf.type.bit_width == 64 else pa.int32()) for end in ("min", "max"))
        if low.is_valid and (low.as_py() < lowest or high.as_py() > highest):
            raise UsageError(
                f"column '{name}' has a {leaf.type} outside of the years 1 to 9999",
                cause="PyIceberg cannot read it",
                hint="send null, or the value as text or int64",
            )


def check_encoding(name: str, column: pa.Array) -> None:
    """Refuses values that are broken in themselves: text that is not UTF-8, more digits than a decimal has.

    Raises:
        UsageError: the column has such a value.
    """
    try:
        column.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UsageError(
            f"column '{name}' has values that its type {column.type} does not allow",
            cause=str(error).splitlines()[0][:300],
            hint="build the column with the values that it is to have",
        ) from error
    if _has_null_key(column):
        raise UsageError(f"column '{name}' has a map with a null key", hint="give every key a value")


def is_storable(field: pa.Field, given_by_log: list[str]) -> bool:
    """Whether a table can have a column that a log holds already."""
    try:
        check_name(field.name, given_by_log)
        return bool(kept_type(field.name, field.type) == field.type)
    except UsageError:
        return False


def _has_null_key(column: pa.Array) -> bool:
    """Returns whether the dictionary of a map's keys has a null: Arrow accepts it, and aborts when it decodes them."""
    column = _storage(column)
    kind = column.type
    if pa.types.is_map(kind):
        keys = _storage(column.keys)
        has_null = pa.types.is_dictionary(keys.type) and keys.dictionary.null_count > 0
        return bool(has_null) or _has_null_key(column.items)
    if pa.types.is_struct(kind):
        return any(_has_null_key(column.field(number)) for number in range(kind.num_fields))
    return (pa.types.is_list(kind) or pa.types.is_large_list(kind)) and _has_null_key(column.values)


def _storage(column: pa.Array) -> pa.Array:
    return column.storage if isinstance(column, pa.ExtensionArray) else column


# -- types -------------------------------------------------------------------------------------------------------------

_SAME: tuple[Callable[[pa.DataType], bool], ...] = (
    pa.types.is_boolean, pa.types.is_int32, pa.types.is_int64, pa.types.is_float32, pa.types.is_float64,
    pa.types.is_string, pa.types.is_binary, pa.types.is_date32,
)  # fmt: skip
_INT32 = (pa.types.is_int8, pa.types.is_int16, pa.types.is_uint8, pa.types.is_uint16)
_STRING = (pa.types.is_large_string, pa.types.is_string_view)
_BINARY = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)


def _cannot_hold(
    path: str, given: pa.DataType, cause: str | None = None, hint: str = "string, or a number type"
) -> UsageError:
    return UsageError(
        f"column '{path[:200]}' has type {_shown(given)}, which tables cannot hold", cause=cause, hint=hint
    )


def _keep(given: pa.DataType, path: str, depth: int) -> pa.DataType:
    if isinstance(given, pa.BaseExtensionType):  # its storage may be kept, but what it means would be lost
        raise _cannot_hold(path, given, "it is an extension type", "the type that it is stored as")
    if any(test(given) for test in _SAME):
        return given
    for tests, kept in ((_INT32, pa.int32()), (_STRING, pa.string()), (_BINARY, pa.binary())):
        if any(test(given) for test in tests):
            return kept
    if pa.types.is_uint32(given):
        return pa.int64()
    if pa.types.is_timestamp(given):
        return pa.timestamp("us", tz="UTC" if given.tz else None)
    if pa.types.is_decimal128(given):
        if not 0 <= given.scale <= given.precision:
            raise _cannot_hold(path, given, f"its scale is not within 0 and {given.precision}", "another scale")
        return given
    if pa.types.is_dictionary(given):
        return _keep(given.value_type, path, depth)
    if pa.types.is_nested(given):
        if depth >= MAX_DEPTH:
            raise _cannot_hold(path, given, f"it is nested more than {MAX_DEPTH} deep", "JSON as a string")
        return _keep_nested(given, path, depth + 1)
    raise _cannot_hold(path, given)


def _keep_nested(given: pa.DataType, path: str, depth: int) -> pa.DataType:
    if pa.types.is_map(given):
        key = _keep(given.key_type, f"{path}.key", depth)
        if pa.types.is_nested(key):
            raise _cannot_hold(path, given, "a key is no plain value", "a list of structs")
        return pa.map_(key, _keep(given.item_type, f"{path}.value", depth))
    if pa.types.is_list(given) or pa.types.is_large_list(given):
        return pa.list_(pa.field("element", _keep(given.value_type, f"{path}.element", depth)))
    if pa.types.is_struct(given):
        _check_nested_names([f.name for f in given], path, given)
        return pa.struct([(f.name, _keep(f.type, f"{path}.{f.name}", depth)) for f in given])
    raise _cannot_hold(path, given)


def _check_nested_names(names: list[str], path: str, given: pa.DataType) -> None:
    if not names:
        raise _cannot_hold(path, given, "a struct has no fields", "a struct with one field, or a map")
    seen: dict[str, str] = {}
    for name in names:
        if not 0 < len(name) <= _MAX_NESTED_NAME or not name.isprintable():
            raise _cannot_hold(
                path, given, f"{name[:40]!r} is no name of a field", "names of 1 to 128 visible characters"
            )
        other = seen.setdefault(_without_case(name), name)
        if other is not name or names.count(name) > 1:
            cause = (
                f"field '{name}' is there twice" if other == name else f"'{other}' and '{name}' differ by case alone"
            )
            raise _cannot_hold(path, given, cause, "another name for one of them")


def _without_case(name: str) -> str:
    """Folds a name: equal for all names that Spark, which ignores case, may confuse."""
    folded = unicodedata.normalize("NFKD", name).upper().casefold()
    return "".join(c for c in folded if not unicodedata.combining(c) or c != "\u0307")


def _shown(kind: pa.DataType) -> str:
    text = str(kind)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"


def _paths(kind: pa.DataType, path: str) -> Iterator[str]:
    """Yields the full names of a column and of all its nested fields, as Iceberg spells them."""
    yield path
    names = ("key", "value") if pa.types.is_map(kind) else ("element",) if pa.types.is_list(kind) else None
    inner = [kind.key_type, kind.item_type] if pa.types.is_map(kind) else [f.type for f in _fields(kind)]
    for name, one in zip(names or [f.name for f in _fields(kind)], inner, strict=True):
        yield from _paths(one, f"{path}.{name}")


def _fields(kind: pa.DataType) -> list[pa.Field]:
    return [kind.field(number) for number in range(kind.num_fields)]


def _first_twice(paths: list[str]) -> str | None:
    seen: set[str] = set()
    for path in paths:
        key = _without_case(path)
        if key in seen:
            return path[:200]
        seen.add(key)
    return None


def _types(kind: pa.DataType) -> Iterator[pa.DataType]:
    yield kind
    for number in range(kind.num_fields):
        yield from _types(kind.field(number).type)


def _dated_leaves(column: pa.Array) -> Iterator[tuple[int, int, pa.Array]]:
    """Yields the dates and times in a column, each with the lowest and highest valid value."""
    kind = column.type
    if pa.types.is_date32(kind):
        yield *_DAYS, column
    elif pa.types.is_timestamp(kind):
        yield *_MICROSECONDS, column
    elif pa.types.is_nested(kind) and any(pa.types.is_date32(t) or pa.types.is_timestamp(t) for t in _types(kind)):
        for part in _children(column):
            yield from _dated_leaves(part)


def _children(column: pa.Array) -> list[pa.Array]:
    """Returns the child arrays of a nested one, without values hidden by nulls; of a map, all that its entries span."""
    if pa.types.is_map(column.type):
        first, last = column.offsets[0].as_py(), column.offsets[-1].as_py()
        return [column.keys.slice(first, last - first), column.items.slice(first, last - first)]
    return list(column.flatten()) if pa.types.is_struct(column.type) else [column.flatten()]
