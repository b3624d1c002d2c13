from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from raydist.corpus.rejected import Fault
from raydist.documents.metadata import (
    MOST_COLUMNS,
    columns_by_kind,
    common_kind,
    from_json,
    names_and_kinds,
    parsed,
    plain,
    to_json,
    wanted,
    with_kinds,
)
from raydist.documents.schema import PASSAGES
from raydist.errors import InputError


@pytest.mark.parametrize(
    ("texts", "values"),
    [
        (["1", "-20", None], [1, -20, None]),
        (["1", "2.5"], [1.0, 2.5]),
        (["007", "8"], ["007", "8"]),
        (["true", "false"], [True, False]),
        (["2020-02-29", ""], [date(2020, 2, 29), None]),
        (["2020-02-30"], ["2020-02-30"]),
        (["2020-02-29T12:00+02:00", "2020-02-29"], [datetime(2020, 2, 29, 10, tzinfo=UTC), datetime(2020, 2, 29, tzinfo=UTC)]),
        (["1e400"], [None]),
        (["9" * 30], [1e30]),
        (["one", "2"], ["one", "2"]),
    ],
)
def test_a_column_of_text_is_of_the_first_kind_that_all_of_it_can_be(texts, values):
    assert parsed(texts) == values


def test_values_are_plain_or_texts():
    assert plain(2**70) == str(2**70)
    assert plain(float("nan")) is None
    assert plain({"a": [date(2020, 1, 1)]}) == '{"a": ["2020-01-01"]}'
    assert plain("a\n\x00b") == "a b"
    for value in (1, 1.5, True, "x", date(2020, 1, 1), datetime(2020, 1, 1, tzinfo=UTC)):
        assert from_json(to_json(value)) == value


def test_the_kind_of_several_holds_them_all():
    assert [
        common_kind(kinds) for kinds in (["int"], ["int", "float"], ["date", "timestamp"], ["int", "date"], ["bool", "int"])
    ] == [
        "int",
        "float",
        "timestamp",
        "string",
        "string",
    ]


def as_passages(rows, where="x") -> pa.Table:
    columns = columns_by_kind(rows, where)
    return pa.table({name: pa.nulls(len(rows), PASSAGES.field(name).type) for name in PASSAGES.names} | columns)


@pytest.mark.parametrize("cut", [0, 1, 2, 3, 4])
def test_columns_are_the_same_however_rows_are_put_into_parts(cut):
    rows = [{"year": 2020}, {"year": 2020.0, "a:b": "x"}, {"year": "about 2020"}, {}]
    tables = [as_passages(part) for part in (rows[:cut], rows[cut:])]
    kinds: dict[str, set[str]] = {}
    for table in tables:
        for name, own in names_and_kinds(table.column_names).items():
            kinds.setdefault(name, set()).update(own)
    common = {name: common_kind(kinds[name]) for name in sorted(kinds)}
    whole = pa.concat_tables([with_kinds(table, common) for table in tables])
    assert whole["year"].to_pylist() == ["2020", "2020.0", "about 2020", None]
    assert whole["a:b"].to_pylist() == [None, "x", None, None]


def test_a_column_that_the_config_types_takes_what_can_be_of_it():
    assert wanted(2020, "string", "year") == "2020"
    assert wanted("2020", "int", "year") == 2020
    assert wanted(3, "float", "x") == 3.0
    assert wanted("2020-02-29", "date", "day") == date(2020, 2, 29)
    assert wanted(date(2020, 2, 29), "timestamp", "day") == datetime(2020, 2, 29, tzinfo=UTC)
    for value, kind in (("about 2020", "int"), (1.5, "int"), (True, "int"), ("2020-02-30", "date")):
        with pytest.raises(Fault, match="wanted"):
            wanted(value, kind, "year")


def test_more_columns_than_anyone_wants_are_refused():
    with pytest.raises(InputError, match=r"part: 201 columns of metadata \(a0, a1.*name those to keep in documents.metadata"):
        columns_by_kind([{f"a{n}": 1} for n in range(MOST_COLUMNS + 1)], "part")
