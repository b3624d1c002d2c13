import re

import pyarrow as pa
import pytest
from helpers.made_run import example

from raydist.records import EVALUATION_SCHEMA
from raydist.report.markup import AROUND_A_MARK, LONG_PASSAGE, Html, el, find_answers, mark_passage, number
from raydist.report.parts import group_means, length_group


def test_text_is_escaped_and_html_is_not():
    assert el("p", "a < b & c", Html("<b>d</b>"), None, title='"x"') == '<p title="&quot;x&quot;">a &lt; b &amp; c<b>d</b></p>'
    assert el("td", "x", class_="n", colspan=None) == '<td class="n">x</td>'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1234, "1,234"),
        (87.123, "87.12"),
        (0.00003, "3.0e-05"),
        (12345.6, "12,346"),
        (0.0, "0.00"),
        (None, "–"),
        ("squad", "squad"),
    ],
)
def test_numbers_read_as_people_write_them(value, text):
    assert number(value) == text


def marks(html: str) -> list[tuple[str, str]]:
    return re.findall(r'<mark class="(\w+)">([^<]*)</mark>', html)


def test_overlapping_marks_become_three_stretches():
    # gold "Denver Broncos", predicted "the Denver": they share "Denver"
    html = mark_passage("Then the Denver Broncos won.", ["Denver Broncos"], "the Denver", 5)
    assert marks(html) == [("predicted", "the "), ("both", "Denver"), ("gold", " Broncos")]
    assert re.sub("<[^>]*>", "", html) == "Then the Denver Broncos won."


def test_the_prediction_is_marked_where_it_was_found_and_gold_wherever_it_occurs():
    html = mark_passage("1931 or 1931, not 19312.", ["1931"], "1931", 8)
    assert marks(html) == [("gold", "1931"), ("both", "1931")]
    assert html.index("gold") < html.index("both")


def test_a_prediction_without_a_place_is_looked_for():
    assert marks(mark_passage("by ferry or by boat", ["by boat"], "by ferry", -1)) == [
        ("predicted", "by ferry"),
        ("gold", "by boat"),
    ]
    assert marks(mark_passage("by ferry", [], "by plane", -1)) == []
    assert marks(mark_passage("by ferry", [], "", -1)) == []


def test_whole_words_come_first_and_parts_of_words_where_there_are_none():
    assert find_answers("art, party, art", ["art"]) == [(0, 3), (12, 15)]
    assert find_answers("في المدرسة", ["مدرسة"]) == [(5, 10)]  # behind the article
    assert find_answers("a.b (c)", ["(c)", "a.b", "", " "]) == [(0, 3), (4, 7)]


def test_a_long_passage_is_cut_to_what_is_marked():
    context = "x " * 5000 + "answer" + " y" * 5000
    html = mark_passage(context, ["answer"], "answer", 10_000)
    assert marks(html) == [("both", "answer")]
    assert html.count("[…]") == 2
    shown = re.sub("<[^>]*>", "", html).replace(" […] ", "")
    assert len(shown) == len("answer") + 2 * AROUND_A_MARK
    nothing_found = mark_passage(context, ["elsewhere"], "", -1)
    assert len(re.sub("<[^>]*>", "", nothing_found)) == LONG_PASSAGE + AROUND_A_MARK + len(" […] ")


def test_a_mark_that_is_cut_away_leaves_one_ellipsis():
    context = " answer ".join(["x" * 700] * 8)  # seven times the answer; the first three and the prediction are shown
    html = mark_passage(context, ["answer"], "x" * 5, 0)
    assert [kind for kind, _ in marks(html)] == ["predicted", "gold", "gold", "gold"]
    assert html.count("[…]") == 4  # after the prediction, between the answers, at the end
    assert html.count("answer") == 3


@pytest.mark.parametrize(
    ("answers", "group"),
    [
        (["1931"], "1 word"),
        (["by the ferry", "ferry boat"], "2 words"),
        (["a b c d"], "3–4 words"),
        (["a b c d e"], "5–8 words"),
        (["a b c d e f g h"], "5–8 words"),
        (["a b c d e f g h i"], "9 words or more"),
        ([], "no answer"),
        (["", " "], "no answer"),
        (["", "one"], "1 word"),
        (None, "no answer"),
    ],
)
def test_the_shortest_answer_decides_the_bar(answers, group):
    assert length_group(answers) == group


def test_group_means_by_hand():
    rows = [example(f1=value) for value in (100.0, 50.0, 0.0, 30.0)]
    means = group_means(["a", "a", "a", None], pa.Table.from_pylist(rows, schema=EVALUATION_SCHEMA))
    # mean 50, sample deviation sqrt((50² + 0 + 50²) / 2) = 50, standard error 50 / sqrt(3) = 28.8675, times 1.96 = 56.580
    assert means["a"].mean == 50.0
    assert means["a"].margin == pytest.approx(56.580, abs=1e-3)
    assert means["a"].questions == 3
    assert means["unknown"] == (30.0, 1, 0.0)
