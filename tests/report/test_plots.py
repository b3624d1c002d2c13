import random
import re

import numpy as np
import pytest

from raydist.report.plots import line_plot, running_mean, thin


def draw(values, **options) -> str:
    return line_plot("Loss", [("total", np.arange(len(values), dtype=float), np.array(values, dtype=float))], **options)


def test_a_plot_is_an_svg_in_the_colour_of_the_text_with_readable_ticks():
    html = draw([0.001, 0.002, 0.003])
    assert html.count("<svg") == 1
    assert "currentColor" in html
    assert "#010203" not in html
    assert "<metadata" not in html
    assert ' id="axes' not in html
    ticks = re.findall(r"<text[^>]*>([^<]*)</text>", html)
    assert len(set(ticks)) == len(ticks), "labels that were cut are alike"


def test_nothing_finite_makes_no_plot():
    assert draw([]) is None
    assert draw([float("nan"), float("inf")]) is None
    assert draw([float("nan"), float("inf"), 1.0]) is not None


def test_names_are_never_read_as_formulas():
    nothing = np.array([1.0])
    assert "$\\frac{" in line_plot("$\\frac{", [("$\\frac{", nothing, nothing), ("_hidden", nothing, nothing)])


def test_two_figures_share_no_ids():
    ids = [set(re.findall(r' id="([^"]*)"', line_plot(name, [("x", np.arange(3.0), np.arange(3.0))]))) for name in ("a", "b")]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_thinning_keeps_the_mean_of_neighbours():
    steps, values = thin(np.arange(6.0), np.array([1, 3, 5, 7, 9, 11.0]), most=3)
    assert steps.tolist() == [0.5, 2.5, 4.5]
    assert values.tolist() == [2, 6, 10]
    same = thin(np.arange(3.0), np.ones(3), most=3)
    assert len(same[0]) == 3


@pytest.mark.parametrize("width", [0, 1, 4, 30])
def test_running_mean_equals_a_plain_loop(width):
    draw = random.Random(width)
    values = [draw.random() if draw.random() > 0.1 else float("nan") for _ in range(25)]
    expected = []
    for place in range(len(values)):
        reach = max(min(place, len(values) - 1 - place, width), width // 3)
        near = [value for value in values[max(0, place - reach) : place + reach + 1] if value == value]
        expected.append(sum(near) / len(near) if near else float("nan"))
    np.testing.assert_allclose(running_mean(np.array(values), width), expected)
