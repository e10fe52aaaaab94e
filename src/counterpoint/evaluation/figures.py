"""The report's figures, made from numbers: training curves, the heatmap, intervals, trajectories."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from counterpoint.evaluation.embedded import EmbeddedVideos
from counterpoint.evaluation.result import Heatmap
from counterpoint.evaluation.statistics import Estimate
from counterpoint.rewards.chart import Line, Point, line_chart, padded, signed

__all__ = ["Bar", "HeatmapView", "bar", "heatmap_view", "training_charts", "trajectories"]

Array = NDArray[np.float64]

FIRST = ("loss", "categorical_accuracy", "logits_pos", "logits_neg")
MOST_CHARTS, MOST_COLUMNS, MOST_NUMBERS = 6, 20, 6
TASKS, VIDEOS_A_TASK, ASPECT = 5, 6, 1.6


@dataclass(frozen=True)
class Bar:
    """Where a number and its interval lie on a scale, in per cent of its length.

    Attributes:
        place: Of the value.
        low: Of the interval's lower end.
        high: Of its upper end.
        bad: Of what a worthless encoder would get; `None` where there is no such number.
    """

    place: float
    low: float
    high: float
    bad: float | None


def bar(estimate: Estimate, start: float = 0.0, end: float = 1.0, bad: float | None = None) -> Bar:
    """An estimate laid on the scale from `start` to `end`; what falls outside is drawn at the scale's end."""

    def place(value: float) -> float:
        shown = value if np.isfinite(value) else estimate.value if np.isfinite(estimate.value) else start
        return float(np.clip(100 * (shown - start) / (end - start), 0, 100))

    marked = None if bad is None else place(bad)
    return Bar(place(estimate.value), place(estimate.low), place(estimate.high), marked)


@dataclass(frozen=True)
class HeatmapView:
    """A heatmap as a grid of cells.

    Attributes:
        title: Which segments.
        names: The instructions, which columns and rows give by number.
        columns: Their numbers, 1 to L.
        rows: Number, instruction, and cells: the CSS class, the opacity, the number as written, and whether
            the segment and the instruction belong together.
        numbers: Whether there is room to write the numbers.
        reach: The score of full colour.
    """

    title: str
    names: Sequence[str]
    columns: Sequence[int]
    rows: Sequence[Mapping[str, Any]]
    numbers: bool
    reach: float


def heatmap_view(heatmap: Heatmap) -> HeatmapView:
    """DecisionNCE's Figure 6: blue above zero, orange below, full colour at the largest score.

    Of more than `MOST_COLUMNS` instructions, the first are shown.
    """
    names = heatmap.columns[:MOST_COLUMNS]
    shown = [
        (row, values[: len(names)])
        for row, values in zip(heatmap.rows, heatmap.values, strict=True)
        if row in names
    ]
    reach = max(abs(value) for _, values in shown for value in values) or 1.0
    rows = [
        {
            "number": names.index(row) + 1,
            "name": row,
            "cells": [
                {
                    "kind": "pos" if value >= 0 else "neg",
                    "opacity": round(abs(value) / reach, 3),
                    "text": signed(value, 2),
                    "own": column == row,
                    "column": column,
                }
                for column, value in zip(names, values, strict=True)
            ],
        }
        for row, values in shown
    ]
    return HeatmapView(heatmap.name, names, range(1, len(names) + 1), rows, len(names) <= MOST_NUMBERS, reach)


def training_charts(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """One chart a metric from the lines of `metrics.jsonl`, training beside validation; the loss first."""
    names = {name for line in lines for name, value in line.items() if _is_result(name, value)}
    held_out = {name for line in lines if line["split"] == "val" for name in line}
    ordered = sorted(names, key=lambda name: (_rank(name), name not in held_out, name))
    return [(_words(name), _training_chart(name, lines)) for name in ordered[:MOST_CHARTS]]


def trajectories(embedded: EmbeddedVideos) -> tuple[Markup, dict[str, str]]:
    """AcTOL's Figure 5: held-out videos as lines in the plane of the two widest directions (PCA).

    PCA and not t-SNE: it is linear, it has no seed, and it cannot invent clusters or tear a path that is
    whole. Embeddings are brought to unit length, as the cosine sees them. Both axes have one scale.

    Returns:
        The chart, and the colour class of each instruction in it.
    """
    units = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in embedded.videos]
    cloud = np.concatenate(units)
    centre = cloud.mean(axis=0)
    _, widths, axes = np.linalg.svd(cloud - centre, full_matrices=False)
    plane = np.zeros((2, cloud.shape[1]))
    plane[: len(axes)] = axes[:2]
    share = np.zeros(2)
    share[: len(widths)] = widths[:2] ** 2 / max(float((widths**2).sum()), 1e-12)
    chosen = list(dict.fromkeys(embedded.own.tolist()))[:TASKS]
    lines, points = [], []
    for colour, own in enumerate(chosen):
        members = [at for at, instruction in enumerate(embedded.own) if instruction == own][:VIDEOS_A_TASK]
        for number, at in enumerate(members):
            x, y = plane @ (units[at] - centre).T
            label = embedded.instructions[own] if number == len(members) - 1 else ""
            lines.append(Line(x.tolist(), y.tolist(), f"c{colour}", label))
            points.append(Point(float(x[-1]), float(y[-1]), f"c{colour}"))
    x_range, y_range = _one_scale(lines)
    chart = line_chart(
        lines,
        x_label=f"first principal direction ({share[0]:.0%} of the variance)",
        y_label=f"second principal direction ({share[1]:.0%} of the variance)",
        summary="Held-out videos as lines through the embedding space, coloured by instruction",
        x_range=x_range,
        y_range=y_range,
        points=points,
    )
    return chart.html, {embedded.instructions[own]: f"c{colour}" for colour, own in enumerate(chosen)}


def _one_scale(lines: Sequence[Line]) -> tuple[tuple[float, float], tuple[float, float]]:
    """Ranges in which one unit is as long across as it is up, in a plot `ASPECT` times as wide as high."""
    left, right = padded(min(min(line.x) for line in lines), max(max(line.x) for line in lines))
    low, high = padded(min(min(line.y) for line in lines), max(max(line.y) for line in lines))
    width, height = right - left, high - low
    wider, higher = max(width, ASPECT * height), max(height, width / ASPECT)
    return (
        ((left + right - wider) / 2, (left + right + wider) / 2),
        ((low + high - higher) / 2, (low + high + higher) / 2),
    )


def _training_chart(name: str, lines: Sequence[Mapping[str, Any]]) -> Markup:
    drawn, ends = [], []
    for split, kind, label in (("train", "rest", "training"), ("val", "c0", "validation")):
        points = [(line["step"], line[name]) for line in lines if line["split"] == split and name in line]
        if points:
            steps, values = zip(*points, strict=True)
            drawn.append(Line(steps, values, kind, label))
            ends.append(Point(steps[-1], values[-1], kind))
    return line_chart(
        drawn,
        x_label="optimiser steps",
        y_label=_words(name),
        summary=f"{_words(name)} over training",
        points=ends,
    ).html


def _is_result(name: str, value: object) -> bool:
    """A number that training brought about, unlike the step and the learning rate."""
    return name not in ("step", "lr") and isinstance(value, int | float) and not isinstance(value, bool)


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _words(name: str) -> str:
    return name.replace("_", " ").replace("/", " ")
