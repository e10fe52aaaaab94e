from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from counterpoint.rewards.page import Line, line_chart, nice_ticks, padded, shortened, signed


@given(st.floats(-1e3, 1e3), st.floats(1e-3, 1e3))
@settings(deadline=None)
def test_ticks_are_inside_round_and_few(low: float, span: float) -> None:
    ticks = nice_ticks(low, low + span)
    assert 2 <= len(ticks) <= 7
    assert all(low - 1e-6 * span <= tick <= low + span * (1 + 1e-6) for tick in ticks)
    # Ticks are rounded to 12 digits after the point, and float64 rounds to a share of their size.
    rounding = 1e-12 + 4 * np.finfo(float).eps * (abs(low) + span)
    np.testing.assert_allclose(np.diff(ticks), ticks[1] - ticks[0], rtol=0, atol=rounding)


def test_a_line_goes_from_corner_to_corner() -> None:
    chart = line_chart([Line([0, 10], [0.0, 1.0], "c0")], x_label="s", y_label="r", summary="up", y_range=(0, 1))
    assert 'd="M0.0 1000.0L1000.0 0.0"' in chart.html
    assert chart.x_range == (0, 10)
    assert "point" not in chart.html


def test_the_last_values_are_marked() -> None:
    lines = [Line([0, 10], [0.0, 1.0], "c0"), Line([0, 5], [1.0, 0.5], "rest")]
    chart = line_chart(lines, x_label="s", y_label="r", summary="up", y_range=(0, 1), dots=True)
    found = re.findall(r'class="point (\w+)" d="M([\d.]+) ([\d.]+)h', chart.html)
    assert found == [("c0", "1000.0", "0.0"), ("rest", "500.0", "500.0")]


def test_the_first_values_are_marked_with_rings() -> None:
    lines = [Line([0, 10], [0.0, 1.0], "c0"), Line([5, 10], [0.5, 1.0], "rest")]
    chart = line_chart(lines, x_label="s", y_label="r", summary="up", y_range=(0, 1), rings=True)
    for kind in (r"point \w+", "hole"):
        found = re.findall(rf'class="{kind}" d="M([\d.]+) ([\d.]+)h', chart.html)
        assert found == [("0.0", "1000.0"), ("500.0", "500.0")]


def test_a_missing_value_breaks_the_line() -> None:
    lines = [Line([0, 1, 2, 3], [0.0, 1.0, float("nan"), 1.0], "c0")]
    chart = line_chart(lines, x_label="s", y_label="r", summary="gap")
    (path,) = re.findall(r'class="line c0" d="([^"]*)"', chart.html)
    assert path.count("M") == 2
    assert "nan" not in chart.html


@pytest.mark.parametrize("values", [[0.3], [0.3, 0.3], [0.0, 0.0, 0.0], [1e-3] * 4])
def test_short_and_flat_lines_are_plotted(values: list[float]) -> None:
    chart = line_chart([Line(range(len(values)), values, "c0", "flat")], x_label="s", y_label="r", summary="flat")
    assert chart.y_range[0] < values[0] < chart.y_range[1]
    assert "nan" not in chart.html


def test_labels_at_one_height_are_pushed_apart() -> None:
    lines = [Line([0, 1], [0.0, 0.5], f"c{n}", f"label {n}", live=True) for n in range(4)]
    chart = line_chart(lines, x_label="s", y_label="r", summary="all alike", y_range=(0, 1))
    tops = sorted(float(p) for p in re.findall(r"--y:([\d.-]+)%", chart.html))
    assert len(tops) == 4
    assert all(b - a > 10 for a, b in itertools.pairwise(tops))
    assert tops[-1] < 105


def test_labels_of_equal_curves_stay_around_them() -> None:
    lines = [Line([0, 1], [0.0, 0.5], f"c{n}", f"label {n}", live=True) for n in range(2)]
    lines.append(Line([0, 1], [0.0, 0.0], "c2", "low"))
    chart = line_chart(lines, x_label="s", y_label="r", summary="two alike", y_range=(0, 1))
    tops = [float(p) for p in re.findall(r"--y:([\d.-]+)%", chart.html)]
    assert (tops[0] + tops[1]) / 2 == pytest.approx(50.0, abs=0.1)
    assert tops[2] == pytest.approx(100.0, abs=4)


def test_labels_lose_the_middle_that_they_share() -> None:
    texts = [
        f"pick up the red block from the wooden table and put it into the {side} drawer" for side in ("left", "right")
    ]
    assert shortened(texts) == [
        "pick up the red block \N{HORIZONTAL ELLIPSIS} left drawer",
        "pick up the red block \N{HORIZONTAL ELLIPSIS} right drawer",
    ]
    ends = [f"{way} the uppermost drawer of the cabinet by its handle" for way in ("open", "close")]
    assert [text.split()[0] for text in shortened(ends)] == ["open", "close"]
    assert all(len(text) <= 38 and text.endswith("handle") for text in shortened(ends))
    cups = ["pick up the duck and place it on the green plate", "pick up the red cup and place it on the silver pan"]
    for whole, text in zip(cups, shortened(cups), strict=True):  # cut between words
        assert set(text.replace("\N{HORIZONTAL ELLIPSIS}", " ").split()) <= set(whole.split())
        assert len(text) <= 38
    (alone,) = shortened(["x" * 30 + "y" * 30])
    assert (len(alone), alone[0], alone[-1]) == (38, "x", "y")
    assert shortened(["open the drawer", "open the drawer"]) == ["open the drawer"] * 2
    chart = line_chart(
        [Line([0, 1], [0, n], f"c{n}", text) for n, text in enumerate(texts)], x_label="s", y_label="r", summary="two"
    )
    for text in texts:
        assert f'title="{text}"' in chart.html


def test_text_is_escaped() -> None:
    line = Line([0, 1], [0, 1], "c0", "<script>alert(1)</script>")
    chart = line_chart([line], x_label="<b>", y_label="a & b", summary='"', dots=True)
    assert "<script>" not in chart.html
    assert "&lt;b&gt;" in chart.html
    assert "a &amp; b" in chart.html


def test_numbers_are_written_with_a_true_minus() -> None:
    assert signed(-0.5, 2) == "\N{MINUS SIGN}0.50"
    assert signed(-0.001, 2) == "0.00"
    assert signed(float("nan")) == "\N{EM DASH}"
    low, high = padded(2.0, 2.0)
    assert low < 2.0 < high
