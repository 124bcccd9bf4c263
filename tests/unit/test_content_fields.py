"""Custom columns: what may be configured, what a table makes of it, and what a value becomes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import (
    DecimalType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
)

from frazil.content.fields import PROPERTY, Fields, FieldSpec, active_fields, plan_fields
from frazil.content.fields.configured import load_configured
from frazil.content.fields.spec import STANDARD
from frazil.content.fields.types import parse_type
from frazil.errors import ConfigError, IntegrityError
from frazil.settings import load_settings

#: As the row of the requirements writes it.
PROJECT = """\
content:
  schema:
    include_raw_metadata: "true"
    custom_metadata_fields: "iso, keywords"
    field.iso.type: INTEGER
    field.iso.jpath: $.exif.ISOSpeedRatings
    field.keywords.type: ARRAY<STRING>
    field.keywords.jpath: $.xmp.subject[*]
    cast: strict
"""
WANTED = Fields(
    (FieldSpec("iso", "INTEGER", "$.exif.ISOSpeedRatings"), FieldSpec("keywords", "ARRAY<STRING>", "$.xmp.subject[*]")),
    "strict",
)


def of_file(folder: Path, text: str, **environ: str) -> Fields:
    file = folder / "frazil.yaml"
    file.write_text(text)
    return load_configured(load_settings(config=file, environ=environ, folder=folder))


# -- settings ----------------------------------------------------------------------------------------------------------


def test_fields_as_the_sample_writes_them(tmp_path):
    assert of_file(tmp_path, PROJECT) == WANTED


def test_fields_in_sections_of_their_own(tmp_path):
    nested = """\
content:
  schema:
    custom_metadata_fields: iso, keywords
    cast: strict
    field:
      iso: {type: int, jpath: $.exif.ISOSpeedRatings}
      keywords:
        type: array<string>
        jpath: $.xmp.subject[*]
"""
    assert of_file(tmp_path, nested) == WANTED


def test_fields_of_the_environment(tmp_path):
    section = "FRAZIL_CONTENT__SCHEMA__"
    environ = {
        section + "CUSTOM_METADATA_FIELDS": "iso,keywords",
        section + "FIELD__ISO__TYPE": "INTEGER",
        section + "FIELD__ISO__JPATH": "$.exif.ISOSpeedRatings",
        section + "FIELD__KEYWORDS__TYPE": "ARRAY<STRING>",
        section + "FIELD__KEYWORDS__JPATH": "$.xmp.subject[*]",
        section + "CAST": "strict",
    }
    assert of_file(tmp_path, "content: {}", **environ) == WANTED


def test_without_settings_there_are_no_fields(tmp_path):
    assert of_file(tmp_path, "content: {}") == Fields()


def test_the_sample_may_say_how_labels_are_found(tmp_path):
    text = """\
content:
  schema:
    custom_metadata_fields: labels
    field.labels.type: ARRAY<STRING>
    field.labels.jpath: $.labels[*].Name
"""
    (labels,) = of_file(tmp_path, text)
    assert labels.is_standard and not len(Fields((labels,)).columns())


@pytest.mark.parametrize(
    ("old", "new", "line", "told"),
    [
        ("INTEGER", "INTEGR", 5, "unknown type 'INTEGR'; types are BOOLEAN, INTEGER"),
        ("INTEGER", "TIME", 5, "Spark cannot open a table"),
        ("INTEGER", "DECIMAL(39,2)", 5, "1 to 38 digits"),
        ("ARRAY<STRING>", "ARRAY<ARRAY<STRING>>", 7, "arrays of arrays"),
        ("$.exif.ISOSpeedRatings", "exif.ISO", 6, "begins with $"),
        ("$.exif.ISOSpeedRatings", "$.exif[", 6, "is no JSONPath"),
        ("iso, keywords", "iso", 7, "defines a custom column that is not named"),
        ("iso, keywords", "iso, keywords, lens", 4, "'lens' has no type"),
        ("    field.iso.jpath: $.exif.ISOSpeedRatings\n", "", 5, "'iso' has no jpath"),
        ("    field.iso.type: INTEGER\n", "", 5, "'iso' has no type"),
        ("iso, keywords", "iso, iso, keywords", 4, "'iso' appears twice"),
        ("iso, keywords", "iso, keywords, ISO", 4, "differ only in case"),
        ("iso, keywords", "iso, keywords, size", 4, "a column that the table has already"),
        ("iso, keywords", "iso, keywords, Metadata", 4, "a column 'metadata' that the table has already"),
        ("iso, keywords", "iso, keywords, frazil_x", 4, "begins with frazil"),
        ("iso, keywords", "iso, keywords, a b", 4, "cannot be the name of a column"),
    ],
)
def test_what_cannot_be_is_told_with_file_and_line(tmp_path, old, new, line, told):
    assert old in PROJECT
    with pytest.raises(ConfigError) as caught:
        of_file(tmp_path, PROJECT.replace(old, new))
    assert f"frazil.yaml:{line}:" in caught.value.message
    assert told in caught.value.message and caught.value.hint


def test_a_standard_column_keeps_its_type(tmp_path):
    text = PROJECT.replace("iso", "title").replace("$.exif.ISOSpeedRatings", "$.pdf.title")
    with pytest.raises(ConfigError, match="of type STRING, not INTEGER"):
        of_file(tmp_path, text)


def test_a_misspelt_key_of_a_field_is_told_with_its_line(tmp_path):
    with pytest.raises(ConfigError, match=r"frazil.yaml:5: unknown setting 'content.schema.field.iso.typ'"):
        of_file(tmp_path, PROJECT.replace("iso.type", "iso.typ"))


# -- types -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "name", "arrow"),
    [
        ("boolean", "BOOLEAN", pa.bool_()),
        ("INT", "INTEGER", pa.int32()),
        ("bigint", "LONG", pa.int64()),
        ("FLOAT", "FLOAT", pa.float32()),
        ("DOUBLE", "DOUBLE", pa.float64()),
        ("decimal( 10 , 2 )", "DECIMAL(10,2)", pa.decimal128(10, 2)),
        ("DECIMAL(5)", "DECIMAL(5,0)", pa.decimal128(5, 0)),
        ("STRING", "STRING", pa.string()),
        ("DATE", "DATE", pa.date32()),
        ("TIMESTAMP_NTZ", "TIMESTAMP", pa.timestamp("us")),
        ("timestamp_ltz", "TIMESTAMPTZ", pa.timestamp("us", tz="UTC")),
        ("UUID", "UUID", pa.uuid()),
        ("FIXED[16]", "FIXED(16)", pa.binary(16)),
        ("BINARY", "BINARY", pa.binary()),
        ("Array < double >", "ARRAY<DOUBLE>", pa.list_(pa.float64())),
        ("ARRAY<DECIMAL(4,1)>", "ARRAY<DECIMAL(4,1)>", pa.list_(pa.decimal128(4, 1))),
    ],
)
def test_types(written, name, arrow):
    found = parse_type(written)
    assert (found.name, found.arrow) == (name, arrow)


@pytest.mark.parametrize(
    "written", ["", "VARCHAR", "DECIMAL", "DECIMAL(0,0)", "DECIMAL(2,3)", "FIXED(0)", "ARRAY", "ARRAY<>", "MAP<a,b>"]
)
def test_no_types(written):
    with pytest.raises(ValueError, match=r"type|digits|bytes"):
        parse_type(written)


# -- the table ---------------------------------------------------------------------------------------------------------


def schema(**columns: Any) -> Schema:
    return Schema(*(NestedField(i, name, kind, required=False) for i, (name, kind) in enumerate(columns.items(), 1)))


def texts(number: int = 100) -> ListType:
    return ListType(element_id=number, element=StringType(), element_required=False)


def fields(*specs: tuple[str, str, str], cast: Any = "lenient") -> Fields:
    return Fields(tuple(FieldSpec.of(*spec) for spec in specs), cast)


def test_the_table_gives_back_its_fields():
    assert active_fields({PROPERTY: WANTED.to_property()}) == WANTED
    assert active_fields({}) == Fields()


@pytest.mark.parametrize("text", ["", "[]", "{", '{"cast":"x"}', '{"cast":"strict","include_raw_metadata":true}'])
def test_a_damaged_property_is_told(text):
    with pytest.raises(IntegrityError, match=PROPERTY):
        active_fields({PROPERTY: text})


def test_a_mark_changes_with_the_definition():
    spec = FieldSpec("iso", "INTEGER", "$.a")
    marks = {
        spec.mark("lenient"), spec.mark("strict"), FieldSpec("iso", "LONG", "$.a").mark("lenient"),
        FieldSpec("iso", "INTEGER", "$.b").mark("lenient"), FieldSpec("iso", "INTEGER", "$.a", 7).mark("lenient"),
    }  # fmt: skip
    assert len(marks) == 5
    assert spec.mark("lenient") == FieldSpec("iso", "INT", "$.a").mark("lenient")
    assert spec.mark("lenient").startswith("iso:") and len(spec.mark("lenient")) == len("iso:") + 8


def test_a_new_field_is_added():
    plan = plan_fields(Fields(), WANTED, schema(size=LongType()))
    assert plan.add == WANTED.fields and not plan.refused


def test_what_is_as_it_should_be_is_left_alone():
    have = fields(("iso", "INT", "$.a"), ("tags2", "ARRAY<STRING>", "$.b"))
    plan = plan_fields(have, have, schema(iso=IntegerType(), tags2=texts()))
    assert plan.is_empty and plan.same == ("iso", "tags2")


def test_another_path_or_cast_is_computed_anew():
    have = fields(("iso", "INT", "$.a"))
    columns = schema(iso=IntegerType())
    assert plan_fields(have, fields(("iso", "INT", "$.b")), columns).redefine
    assert plan_fields(have, fields(("iso", "INT", "$.a"), cast="strict"), columns).redefine


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        (IntegerType(), "LONG"),
        (FloatType(), "DOUBLE"),
        (DecimalType(5, 2), "DECIMAL(9,2)"),
        (ListType(element_id=9, element=IntegerType(), element_required=False), "ARRAY<LONG>"),
    ],
)
def test_icebergs_promotions_widen_a_column(column, wanted):
    plan = plan_fields(Fields(), fields(("x", wanted, "$.a")), schema(x=column))
    assert [spec.type for spec in plan.widen] == [wanted] and not plan.refused


@pytest.mark.parametrize(
    ("column", "wanted", "told"),
    [
        (LongType(), "INTEGER", "no column becomes narrower"),
        (StringType(), "INTEGER", "Iceberg cannot make it INTEGER"),
        (IntegerType(), "STRING", "the column is int"),
        (DecimalType(5, 2), "DECIMAL(9,3)", "cannot make it"),
        (TimestampType(), "TIMESTAMPTZ", "cannot make it"),
        (StringType(), "ARRAY<STRING>", "cannot make it"),
        (texts(), "STRING", "the column is list<string>"),
    ],
)
def test_other_changes_of_type_are_refused(column, wanted, told):
    plan = plan_fields(fields(("x", "STRING", "$.a")), fields(("x", wanted, "$.a")), schema(x=column))
    assert not plan.changes
    ((name, why),) = plan.refused
    assert name == "x" and told in why


def test_a_name_that_differs_from_a_column_by_case_is_refused():
    plan = plan_fields(Fields(), fields(("ISO", "INT", "$.a")), schema(iso=IntegerType()))
    assert plan.refused[0][0] == "ISO"


def test_what_nobody_wants_any_more_is_named():
    have = fields(("iso", "INT", "$.a"), ("lens", "STRING", "$.b"))
    plan = plan_fields(have, fields(("iso", "INT", "$.a")), schema(iso=IntegerType(), lens=StringType()))
    assert plan.drop == ("lens",) and plan.is_empty


def test_a_standard_column_gets_another_way_to_be_computed():
    wanted = fields(("labels", "ARRAY<STRING>", "$.rekognition.Labels[*].Name"))
    plan = plan_fields(Fields(), wanted, schema(labels=texts()))
    assert plan.redefine == wanted.fields and not plan.add
    assert "metadata" not in STANDARD and "frazil_fields" not in STANDARD


def test_fields_that_a_message_leaves_out_stay():
    have = fields(("iso", "INT", "$.a"), ("lens", "STRING", "$.b"), ("f", "FLOAT", "$.c"))
    changed = have.with_changes(fields(("iso", "LONG", "$.a"), ("new", "INT", "$.d")), drop=["lens"])
    assert [(f.name, f.type) for f in changed] == [("iso", "LONG"), ("f", "FLOAT"), ("new", "INTEGER")]


@pytest.mark.parametrize(
    "broken",
    [
        {"cast": "loose"},
        {"include_raw_metadata": "true"},
        {"fields": {}},
        {"fields": ["iso"]},
        {"fields": [{"name": "iso", "type": "INT"}]},
        {"fields": [{"name": "size", "type": "INT", "jpath": "$.a"}]},
        {"fields": [{"name": "a", "type": "INT", "jpath": "$.a"}, {"name": "A", "type": "INT", "jpath": "$.a"}]},
    ],
)
def test_a_message_that_is_wrong_is_refused(broken):
    good = json.loads(WANTED.to_property())
    assert Fields.parse(good) == WANTED
    with pytest.raises(ValueError, match=r"\w"):
        Fields.parse(good | broken)
