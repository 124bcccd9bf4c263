"""What people write for a search, and what it means; places, times, patterns, memory, and pictures that look alike."""

from __future__ import annotations

import base64
import time
from datetime import datetime
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.content.query import jsonpath_fallback, similarity
from frazil.content.query.column_tests import contains, evaluate_test, has_words, matches, same_text
from frazil.content.query.field_conditions import ColumnCondition, FieldCondition, JsonCondition
from frazil.content.query.filters import Search, Similar
from frazil.content.query.geo import Box, Circle
from frazil.content.query.json_values import Path
from frazil.content.query.order import HitOrder, ListSort
from frazil.content.query.request import MAX_TERMS, parse_search
from frazil.content.query.similarity import components, pairs_within
from frazil.content.query.time_range import TimeRange
from frazil.content.query.words import key_pattern, literal_prefix
from frazil.errors import UsageError

SCHEMA = pa.schema(
    [
        ("camera", pa.string()), ("rating", pa.int32()), ("labels", pa.list_(pa.string())), ("metadata", pa.string()),
        ("tags", pa.map_(pa.string(), pa.string())), ("taken_at", pa.timestamp("us")),
        ("price", pa.decimal128(9, 2)), ("sold", pa.bool_()), ("day", pa.date32()), ("raw", pa.binary()),
        ("extraction", pa.map_(pa.string(), pa.struct([("status", pa.string()), ("reason", pa.string())]))),
        ("counts", pa.list_(pa.int64())), ("frazil_order", pa.string()),
    ]
)  # fmt: skip


# -- times -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "since", "until"),
    [
        ("2024", datetime(2024, 1, 1), datetime(2025, 1, 1)),
        ("2024-12", datetime(2024, 12, 1), datetime(2025, 1, 1)),
        ("2024-02", datetime(2024, 2, 1), datetime(2024, 3, 1)),
        ("2024-02-29", datetime(2024, 2, 29), datetime(2024, 3, 1)),
        ("2024-05-01T12:30", datetime(2024, 5, 1, 12, 30), datetime(2024, 5, 1, 12, 31)),
        ("2024-05-01 12:30:59", datetime(2024, 5, 1, 12, 30, 59), datetime(2024, 5, 1, 12, 31)),
        ("2024-05-01..2024-06-01", datetime(2024, 5, 1), datetime(2024, 6, 2)),
        ("2023..2024", datetime(2023, 1, 1), datetime(2025, 1, 1)),
        ("2024..", datetime(2024, 1, 1), None),
        ("..2019", None, datetime(2020, 1, 1)),
        ("9999", datetime(9999, 1, 1), datetime.max),
        ("9999-12-31", datetime(9999, 12, 31), datetime.max),
        ("9999-12-31T23:59:59", datetime(9999, 12, 31, 23, 59, 59), datetime.max),
    ],
)
def test_times(text, since, until):
    assert TimeRange.parse(text) == TimeRange(since, until)


@pytest.mark.parametrize(
    "text", ["", "..", "24", "2024-13", "2024-02-30", "x", "2024..x", "2025..2024", "2024-01-01T00:00Z"]
)
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError) as refused:
        TimeRange.parse(text)
    assert refused.value.hint and "2024" in refused.value.hint


# -- places ------------------------------------------------------------------------------------------------------------


def test_boxes_also_across_the_date_line():
    assert Box.parse("-20,170,-10,-170").crosses
    fiji = Box.parse("-20,170,-10,-170")
    inside = fiji.holds(np.array([-17.0, -17.0, -17.0, 0.0, np.nan]), np.array([178.0, -178.0, 0.0, 178.0, 178.0]))
    assert inside.tolist() == [True, True, False, False, False]


@pytest.mark.parametrize("text", ["1,2,3", "91,0,92,1", "0,0,1,181", "5,0,1,1", "a,b,c,d", "nan,0,1,1", ""])
def test_what_is_no_box_is_refused(text):
    with pytest.raises(UsageError, match=r"place|latitude|longitude|south"):
        Box.parse(text)


@pytest.mark.parametrize(
    ("radius", "km"), [("5km", 5.0), ("800m", 0.8), ("1.5 km", 1.5), ("2mi", 3.218688), (None, None)]
)  # fmt: skip
def test_circles(radius, km):
    assert Circle.parse("48.8584,2.2945", radius).km == km


@pytest.mark.parametrize(
    ("near", "radius"), [("48", "1km"), ("95,0", "1km"), ("0,0", "5"), ("0,0", "0km"), ("0,0", "x")]
)
def test_what_is_no_circle_is_refused(near, radius):
    with pytest.raises(UsageError):
        Circle.parse(near, radius)


def test_a_distance_that_is_known():
    paris_to_london = Circle(48.8566, 2.3522, None).distances(np.array([51.5074]), np.array([-0.1278]))[0]
    assert paris_to_london == pytest.approx(343.6, abs=0.5)


@settings(deadline=None)
@given(
    st.floats(-90, 90), st.floats(-180, 180), st.floats(0.001, 25_000), st.floats(-90, 90), st.floats(-180, 180)
)  # fmt: skip
def test_a_circle_lies_in_its_box(latitude, longitude, km, there, aside):
    circle = Circle(latitude, longitude, km)
    box = circle.box()
    if box is not None and circle.distances(np.array([there]), np.array([aside]))[0] < km * 0.999999:
        assert box.holds(np.array([there]), np.array([aside]))[0]


# -- fields and paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("camera=Canon", FieldCondition("camera", "=", "Canon")),
        ("rating >= 4", FieldCondition("rating", ">=", "4")),
        ("exif.Model!=a=b", FieldCondition("exif.Model", "!=", "a=b")),
        ("note~<b>", FieldCondition("note", "~", "<b>")),
        ("camera=", FieldCondition("camera", "=", "")),
        ("camera", FieldCondition("camera")),
        ("$.labels[?@.Name=='cat'].Confidence>90", FieldCondition("$.labels[?@.Name=='cat'].Confidence", ">", "90")),
        ("$['a=b']=c", FieldCondition("$['a=b']", "=", "c")),
    ],
)
def test_fields(text, parsed):
    assert FieldCondition.parse(text) == parsed


@pytest.mark.parametrize("text", ["", "=x", " >= 3", "note~"])
def test_what_is_no_field_is_refused(text):
    with pytest.raises(UsageError) as refused:
        FieldCondition.parse(text)
    assert "NAME=VALUE" in str(refused.value.hint)


def held(text: str, values: list, kind: pa.DataType) -> list[bool]:
    found = FieldCondition.parse(text).bind(SCHEMA)
    assert isinstance(found, ColumnCondition)
    return found.holds(pa.array(values, kind)).tolist()


def test_fields_about_columns():
    rating = SCHEMA.field("rating").type
    assert held("rating>=4", [3, 4, None, 5], rating) == [False, True, False, True]
    assert held("rating!=4", [3, 4, None], rating) == [True, False, False]
    assert held("rating", [0, None], rating) == [True, False]
    assert held("rating~1", [1, 21, 3], rating) == [True, True, False]
    labels = SCHEMA.field("labels").type
    assert held("labels=cat", [["cat", "dog"], ["catfish"], [], None], labels) == [True, False, False, False]
    assert held("labels!=cat", [["cat", "dog"], ["catfish"], [], None], labels) == [False, True, False, False]
    assert held("labels~CAT", [["Tomcat"], ["dog"]], labels) == [True, False]
    assert held("labels", [["cat"], [], None], labels) == [True, False, False]
    assert held("counts>5", [[1, 9], [1], None], SCHEMA.field("counts").type) == [True, False, False]
    assert held("price<2.50", [2, 3], SCHEMA.field("price").type) == [True, False]
    assert held("sold=true", [True, False, None], SCHEMA.field("sold").type) == [True, False, False]
    assert held("raw=00ff", [b"\x00\xff", b""], SCHEMA.field("raw").type) == [True, False]
    noon = datetime(2024, 5, 1, 12)
    assert held("taken_at>=2024-05-01T12:00", [noon, datetime(2024, 1, 1)], SCHEMA.field("taken_at").type) == [
        True,
        False,
    ]
    assert held("tags.k=v", [[("k", "v")], [("k", "w")], [], None], SCHEMA.field("tags").type) == [
        True,
        False,
        False,
        False,
    ]
    states = [[("ocr", {"status": "failed", "reason": "x"})], [("ocr", {"status": "ok", "reason": None})], None]
    assert held("extraction.ocr.status=failed", states, SCHEMA.field("extraction").type) == [True, False, False]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rating=x", "int32"),
        ("taken_at>yesterday", "timestamp"),
        ("sold=perhaps", "bool"),
        ("raw=zz", "binary"),
        ("Model=x", "no column"),
        ("extraction.ocr=failed", "does not say which value"),
        ("a..b=1", "no path"),
        ("$.a[?=1", "no JSONPath"),
        ("$[?" + "(" * 5000 + "=1", "no JSONPath"),
        ("taken_at=0001-01-01T00:00+05:00", "timestamp"),
        ("tags~x", "contain no text"),
        ("raw~x", "contain no text"),
        ("camera=\ud800", "UTF-8"),
    ],
)
def test_fields_that_make_no_sense_are_refused(text, says):
    with pytest.raises(UsageError, match=says) as refused:
        FieldCondition.parse(text).bind(SCHEMA)
    assert refused.value.hint


DOCUMENTS = [
    ('{"exif": {"Model": "EOS R5", "ISO": 800, "Flash": true, "a.b": 1}, "labels": [{"Name": "cat",'
    ' "Confidence": 93.1}, {"Name": "dog"}]}'),
    '{"exif": {"Model": "z7", "ISO": "1600", "Flash": false, "Lens": null}, "labels": [], "list": [1, 2]}',
    "not json",
    None,
    '{"exif": 5, "labels": {"Name": "cat"}}',
]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("exif.Model=EOS R5", [0]),
        ("exif.Model~eos", [0]),
        ("exif.Model!=z7", [0]),
        ("exif.Model", [0, 1]),
        ("exif.ISO>=800", [0, 1]),
        ("exif.ISO>1000", [1]),
        ("exif.ISO=800.0", [0]),
        ("exif.Flash=true", [0]),
        ("exif.Lens", []),
        ("exif['a.b']=1", [0]),
        ("$.exif['a.b']=1", [0]),
        ("labels[*].Name=dog", [0]),
        ("labels[*].Name!=dog", []),
        ("labels[0].Name=cat", [0]),
        ("$.labels[?@.Confidence > 90].Name=cat", [0]),
        ("$..Name=cat", [0, 4]),
        ("$.list=2", [1]),
        ("list[*]=2", [1]),
    ],
)
def test_paths_inside_metadata(text, rows):
    found = FieldCondition.parse(text).bind(SCHEMA)
    assert isinstance(found, JsonCondition)
    values = found.path.of(pa.array(DOCUMENTS, pa.string()))
    assert np.flatnonzero(found._holds(values)).tolist() == rows


@pytest.mark.parametrize("text", ["labels[99999999999999999999].Name", "$['a[*]b']", "$[?@.a[*] == 'x']", "exif[*][*]"])
def test_odd_paths_are_looked_up_or_refused_but_never_break(text):
    try:
        assert Path.parse(text).of(pa.array(DOCUMENTS, pa.string())).count == len(DOCUMENTS)
    except UsageError as refused:
        assert refused.hint


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("exif.iso>1000", [0, 1, 2]), ("exif.iso<1000", [1]), ("exif.iso~111", [0, 1]), ("exif.iso", [0, 1, 2]),
        ("$..iso>1000", []),
    ],
)  # fmt: skip
def test_numbers_of_any_length_and_lists_of_any_depth_inside_metadata_break_no_search(text, rows):
    """Python's limit for the digits of a number, and for the depth of JSON, are no limits of what extractors find."""
    number, deep = "1" * 5000, "[" * 5000 + "]" * 5000
    documents = [f'{{"exif": {{"iso": {value}}}}}' for value in (number, f"[1, {number}]", deep)]
    found = FieldCondition.parse(text).bind(SCHEMA)
    assert isinstance(found, JsonCondition)
    assert np.flatnonzero(found._holds(found.path.of(pa.array(documents, pa.string())))).tolist() == rows


def test_a_name_that_looks_like_a_list_is_a_name():
    values = Path.parse("$['a[*]b']").of(pa.array(['{"a[*]b": 1, "a": [{"b": 2}]}']))
    assert values.texts == ["1"]


@pytest.mark.parametrize(
    "text",
    [
        "$[*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*].none",
        "$[?@[*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*].none]",
        "$.none | $[*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*][*,*,*,*].none",
    ],
)
def test_a_path_that_takes_too_long_is_ended_in_the_middle_of_a_row(text):
    deep = "[1,2,3,4,5,6,7,8]"
    for _ in range(4):
        deep = f"[{','.join([deep] * 8)}]"
    began = time.thread_time()
    with pytest.raises(UsageError, match="too long"):
        Path.parse(text, seconds=0.2).of(pa.array([f"[{deep}]"]))
    assert time.thread_time() - began < 5


def test_the_time_of_a_path_is_that_of_all_it_looks_into(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(jsonpath_fallback, "monotonic", lambda: now[0])
    path = Path.parse("$[?@.a > 1]", seconds=0.2)
    assert path.of(pa.array(['[{"a": 2}]'])).texts == ['{"a": 2}']
    with path.clock:
        now[0] += 0.25
    with pytest.raises(UsageError, match="too long"):
        path.of(pa.array(['[{"a": 2}]']))


def test_a_path_leads_to_at_most_so_many_values_of_a_row():
    numbers = f"[{','.join('1' * jsonpath_fallback.MAX_VALUES)}]"
    assert len(Path.parse("$[0:]").of(pa.array([numbers, numbers])).rows) == 2 * jsonpath_fallback.MAX_VALUES
    with pytest.raises(UsageError, match="10,000 values"):
        Path.parse("$[*, 0]").of(pa.array([numbers]))


@pytest.mark.parametrize("text", ["$[?match(@.a, '(a*)*b')]", "$[?search (@.a, 'x')]", "$[?@.a =~ /x/]", "$..a..b"])
def test_paths_that_cost_too_much_for_a_server_are_known(text):
    with pytest.raises(UsageError) as refused:
        jsonpath_fallback.require_cheap(text)
    assert refused.value.hint
    jsonpath_fallback.require_cheap("$..labels[?@.Confidence > 90].Name")


@pytest.mark.parametrize("what", ["label", "tag", "field", "exif", "text"])
def test_a_search_has_so_many_terms_and_each_once(what):
    def ask(*terms: str) -> Search:
        return parse_search(**{what: " ".join(terms) if what == "text" else terms})

    many = [f"a{n}.b" for n in range(MAX_TERMS)]
    assert ask(*many, *many) == ask(*many)
    with pytest.raises(UsageError, match="at most 32") as refused:
        ask(*many, "one.more")
    assert refused.value.hint


@pytest.mark.parametrize(
    "values",
    ["[" * 100_000, '["key", 0, "\\ud800", "", ""]', '["key", 0, 1, "", ""]', "5", '["key"]', f'["key", {"1" * 5000}]'],
)
def test_an_end_of_a_page_that_is_none_is_refused(values):
    token = base64.urlsafe_b64encode(values.encode()).decode().rstrip("=")
    with pytest.raises(UsageError, match="end of a page"):
        HitOrder.of(parse_search(), "key", token)
    for sort in get_args(ListSort):
        with pytest.raises(UsageError, match="end of a page"):
            HitOrder.of_list(sort, token)


def test_simple_paths_are_left_to_duckdb():
    assert Path.parse("exif.Model").plain == '$."exif"."Model"'
    assert Path.parse("$.labels[*].Name").plain == '$."labels"[*]."Name"'
    assert Path.parse("$..Name").plain is None


# -- words and keys ----------------------------------------------------------------------------------------------------


def test_labels_are_found_by_words():
    labels = pa.array(["tabby cat", "Cat", "caterpillar", "cat-flap", None, "wildcat"]).dictionary_encode()
    assert evaluate_test(labels, has_words("cat")).tolist() == [True, True, False, True, False, False]
    assert evaluate_test(labels, has_words("*cat*")).tolist() == [True, True, True, True, False, True]
    assert evaluate_test(labels, has_words("TABBY CAT")).tolist() == [True, False, False, False, False, False]
    assert evaluate_test(pa.array(["chat à neige", "été"]), has_words("à")).tolist() == [True, False]
    assert evaluate_test(pa.array(["a.c", "abc"]), has_words("a.c")).tolist() == [True, False]


def test_texts_in_whatever_case():
    texts = pa.array(["Straße", "ÉTÉ", None, "a%b"])
    assert evaluate_test(texts, contains("été")).tolist() == [False, True, False, False]
    assert evaluate_test(texts, same_text("STRASSE")).tolist() == [False, False, False, False]
    assert evaluate_test(texts, contains("%")).tolist() == [False, False, False, True]
    assert evaluate_test(pa.array([], pa.list_(pa.string())), contains("x")).tolist() == []


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.jpg", ["a.jpg", "2024/b.jpg", ".jpg"], ["a.jpg.txt", "ajpg"]),
        ("2024/*.jpg", ["2024/a.jpg"], ["2024/x/a.jpg", "x/2024/a.jpg"]),
        ("2024/**/*.jpg", ["2024/a.jpg", "2024/x/y/a.jpg"], ["2023/a.jpg"]),
        ("**/raw/**", ["raw/a", "x/raw/a/b"], ["draw/a"]),
        ("IMG_000?.[jp][pn]g", ["IMG_0001.jpg", "x/IMG_0009.png"], ["IMG_00010.jpg"]),
        ("[!a]*", ["b", "x/b"], ["a", "x/a"]),
        ("a+(b).txt", ["a+(b).txt"], ["aab.txt"]),
        ("line\nbreak*", ["line\nbreak.txt"], ["line break"]),
    ],
)
def test_patterns_of_keys(glob, yes, no):
    truths = evaluate_test(pa.array(yes + no), matches(key_pattern(glob)))
    assert truths.tolist() == [True] * len(yes) + [False] * len(no)
    prefix = literal_prefix(glob)
    assert all(key.startswith(prefix or "") for key in yes)


# -- a search ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rating", "bounds"), [("4", (4, 4)), ("4..", (4, 5)), ("..2", (1, 2)), ("2..3", (2, 3))]
)  # fmt: skip
def test_ratings(rating, bounds):
    assert parse_search(rating=rating).rating == bounds


@pytest.mark.parametrize(
    "wrong",
    [
        {"rating": "6"}, {"rating": ".."}, {"rating": "4..2"}, {"rating": "45"}, {"radius": "5km"}, {"text": "  "},
        {"label": [" "]}, {"camera": ""}, {"path": ""}, {"status": "done"}, {"min_size": 5, "max_size": 4},
        {"label": ["\ud800"]}, {"path": "x/[z-a]"},
    ],
    ids=str,
)  # fmt: skip
def test_searches_that_make_no_sense_are_refused(wrong):
    with pytest.raises(UsageError) as refused:
        parse_search(**wrong)
    assert refused.value.hint


def test_tags_of_exif_need_no_name_before_them():
    assert [f.name for f in parse_search(exif=["ISO=1", "exif.ISO=2", "$.exif.ISO=1"]).fields] == [
        "exif.ISO",
        "exif.ISO",
        "$.exif.ISO",
    ]
    assert parse_search() == Search()


@pytest.mark.parametrize("distance", [-1, 65])
def test_a_distance_has_at_most_as_many_bits_as_a_hash(distance):
    with pytest.raises(UsageError, match="no distance"):
        Similar(0, distance)


# -- pictures that look alike ------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 2**64 - 1), min_size=2, max_size=40), st.integers(0, 12), st.randoms())
def test_pairs_are_those_of_comparing_each_with_each(numbers, distance, chance):
    for number in list(numbers):  # neighbours
        for _ in range(2):
            numbers.append(number ^ sum({1 << chance.randrange(64) for _ in range(chance.randrange(1, 14))}))
    hashes = np.unique(np.array(numbers, np.uint64))
    pairs = {(a, b) for a in range(len(hashes)) for b in range(a) if int(hashes[a] ^ hashes[b]).bit_count() <= distance}
    found = {
        (max(a, b), min(a, b))
        for left, right in pairs_within(hashes, distance)
        for a, b in zip(left.tolist(), right.tolist(), strict=True)
    }
    assert found == pairs


def test_chains_are_groups():
    pairs = iter([(np.array([0, 4]), np.array([1, 5])), (np.array([2, 1]), np.array([3, 2]))])
    assert components(7, pairs).tolist() == [0, 0, 0, 0, 4, 4, 6]


def test_too_many_comparisons_are_refused(monkeypatch):
    monkeypatch.setattr(similarity, "MAX_PAIRS", 100)
    with pytest.raises(UsageError, match="cannot be compared") as refused:
        list(pairs_within(np.arange(1000, dtype=np.uint64), 10))
    assert "smaller distance" in str(refused.value.hint)
