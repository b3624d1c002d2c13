import pytest
from helpers.documents import read_block_texts, read_one

from raydist.corpus.rejected import BROKEN_FRONT_MATTER, TOO_DEEP, Fault

GUIDE = """---
title: The guide
year: 2020
draft: false
score: 1.5
day: 2020-02-29
tags: [mills, rivers]
lang: de
---

# Mills

A *mill* by `the river`,
![a picture](x.png) and [a link](http://example.org).

- one
- two

  and a half

## Owners

| Owner | Year |
|-------|------|
| Ada   | 1746 |

```python
if mill:
    grind()
```

# Rivers

> Two of them
"""


@pytest.fixture
def guide(tmp_path):
    return read_one(tmp_path / "guide.md", GUIDE)


def test_text_is_what_is_read_under_its_headings_and_with_its_line(guide):
    assert [(block.text, block.headings, block.line) for block in guide.blocks] == [
        ("A mill by the river, a picture and a link.", ("Mills",), 13),
        ("one", ("Mills",), 16),
        ("two", ("Mills",), 17),
        ("and a half", ("Mills",), 19),
        ("Owner | Year", ("Mills", "Owners"), 23),
        ("Ada | 1746", ("Mills", "Owners"), 25),
        ("if mill:", ("Mills", "Owners"), 28),
        ("    grind()", ("Mills", "Owners"), 29),
        ("Two of them", ("Rivers",), 34),
    ]


def test_front_matter_is_typed_metadata(guide):
    from datetime import date

    assert guide.title == "The guide"
    assert guide.language == "de"
    assert guide.metadata == {
        "year": 2020,
        "draft": False,
        "score": 1.5,
        "day": date(2020, 2, 29),
        "tags": "mills, rivers",
        "lang": "de",
    }


def test_a_title_that_is_not_stated_is_the_first_heading_of_the_highest_level(tmp_path):
    assert read_one(tmp_path / "a.md", "## Later\n\nx\n\n# First\n\ny\n\n# Second").title == "First"


def test_metadata_never_takes_the_name_of_a_column_of_passages(tmp_path):
    assert read_one(tmp_path / "a.md", "---\npage: 3\ntext: x\n---\ny").metadata == {"page_": 3, "text_": "x"}


def test_html_in_markdown_is_read_without_its_markup(tmp_path):
    texts = read_block_texts(
        tmp_path / "a.md", 'a<br>b <i>c</i>\n\n<div align="center">\n<p>in <b>the</b> middle</p></div>\n\n<!-- no -->\n\nend'
    )
    assert texts == ["a b c", "in the middle", "end"]


def test_a_rule_at_the_start_is_no_front_matter(tmp_path):
    (block,) = read_one(tmp_path / "a.md", "---\nonly text\n---\n\nmore").blocks
    assert (block.text, block.headings) == ("more", ("only text",))
    assert read_block_texts(tmp_path / "b.md", "---\nno end") == ["no end"]


@pytest.mark.parametrize(
    ("matter", "said"),
    [
        ("a: &x [1]\nb: [*x, *x]", "line 3: aliases"),
        ("a: " + "[" * 200, "nested more than 50 deep"),
        ("a: [1", "while parsing"),
        ("day: 2026-02-31", "day is out of range"),
        ("a: " + "x" * 70_000, "70,0"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
    ],
)
def test_front_matter_that_cannot_be_read_is_refused_by_name(tmp_path, matter, said):
    with pytest.raises(Fault) as fault:
        read_one(tmp_path / "a.md", f"---\n{matter}\n---\ntext")
    assert fault.value.reason == BROKEN_FRONT_MATTER
    assert said in fault.value.detail


def test_lists_may_be_nested_but_not_so_deep_that_the_rest_is_lost(tmp_path):
    assert read_block_texts(tmp_path / "a.md", "- " * 20 + "x\n\nafter") == ["x", "after"]
    for mark in ("- ", "> ", "1. "):
        with pytest.raises(Fault) as fault:
            read_one(tmp_path / "a.md", mark * 1000 + "x\n\nafter")
        assert fault.value.reason == TOO_DEEP
