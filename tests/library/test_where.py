"""Conditions against plain Python over the same rows, and what is wrong with a condition said where it is."""

import datetime as dt

import pyarrow as pa
import pytest

from raydist.errors import InputError
from raydist.library.where import parse

ROWS = pa.table(
    {
        "headings": pa.array([["A", "Storage"], ["Storage (old)"], [], None], pa.list_(pa.string())),
        "year": pa.array([2019, 2020, None, 2022]),
        "price": pa.array([0.5, 1.5, 2.5, None]),
        "day": pa.array([dt.date(2020, 1, 1), None, dt.date(2021, 1, 1), dt.date(2022, 5, 5)]),
        "at": pa.array([dt.datetime(2020, 1, 1, 12), None, dt.datetime(2021, 1, 1), None], pa.timestamp("us", tz="UTC")),
        "lang": ["de", "en", "it's", None],
        "draft": [True, False, None, True],
        "two words": ["x", "y", "x", "y"],
    }
)
COLUMNS = {item.name: item.type for item in ROWS.schema}


def rows(where: str) -> list[int]:
    return ROWS.append_column("row", pa.array(range(len(ROWS)))).filter(parse(where, COLUMNS).expression)["row"].to_pylist()


@pytest.mark.parametrize(
    ("where", "wanted"),
    [
        ("year >= 2020", [1, 3]),
        ("year != 2020", [0, 3]),
        ("year <> 2020 AND year < 2e3", []),
        ("year > 2018.5 and year < 2020.5", [0, 1]),
        ("price <= 1.5", [0, 1]),
        ("year = -1", []),
        ("lang = 'it''s'", [2]),
        ('lang = "de"', [0]),
        ("\"two words\" = 'x'", [0, 2]),
        ("lang in ('de', 'en')", [0, 1]),
        ("lang not in ('de')", [1, 2]),
        ("lang is null or year in (2019, 2020)", [0, 1, 3]),
        ("lang is not null", [0, 1, 2]),
        ("draft", [0, 3]),
        ("not draft", [1]),
        ("draft = false", [1]),
        ("not (draft or year = 2020)", []),
        ("draft or lang = 'en' and year = 2019", [0, 3]),
        ("(draft or lang = 'en') and year = 2019", [0]),
        ("day >= 2021-01-01", [2, 3]),
        ("day = '2020-01-01'", [0]),
        ("at > '2020-01-01T11:59'", [0, 2]),
        ("at > '2020-01-01T12:00+01:00' and at < 2021-01-01", [0]),
        ("headings = 'Storage'", [0]),
        ("headings != 'Storage'", [1, 2]),
        ("headings in ('A', 'Storage (old)')", [0, 1]),
        ("headings is null", [3]),
        ("year < 99999999999999999999999", [0, 1, 3]),
        (" or ".join(["year = 2019"] * 600), [0]),
    ],
)
def test_what_passes(where, wanted):
    assert rows(where) == wanted


@pytest.mark.parametrize(
    ("where", "place", "said"),
    [
        ("yeer = 3", 1, "there is no column 'yeer'; there are headings, year, price"),
        ("year = 'x'", 8, "the column year holds numbers"),
        ("lang = de", 8, "write it as 'text'"),
        ("lang = 3", 8, "holds text"),
        ("draft = 1", 9, "true or false"),
        ("day = 2024-13-01", 7, "holds days"),
        ("at = 'noon'", 6, "holds times"),
        ("year >", 7, "holds numbers"),
        ("year", 5, "expected one of ="),
        ("year in 3", 9, "expected ("),
        ("(year = 3", 10, "expected )"),
        ("year = 3 3", 10, "expected and, or, or the end"),
        ("year = 3; drop", 9, "';' means nothing here"),
        ("lang = 'x", 8, "a quote is not closed"),
        ("", 1, "expected a column"),
        ("3 = year", 1, "as in year >= 2020"),
        ("headings < 'a'", 1, "a list of texts, which = and != are for"),
        ("(" * 60, 51, "more than 50 parentheses"),
        ("year = __import__('os')", 8, "holds numbers"),
    ],
)
def test_what_is_wrong_is_said_with_its_place(where, place, said):
    with pytest.raises(InputError) as error:
        parse(where, COLUMNS)
    assert said in str(error.value)
    assert f"(character {place})" in str(error.value)


def test_a_condition_beyond_all_measure_is_not_read():
    with pytest.raises(InputError, match="at most 10,000"):
        parse("year = 1 or " * 1000 + "year = 2", COLUMNS)
