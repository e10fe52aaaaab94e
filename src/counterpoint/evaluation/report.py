"""`counterpoint report RUN`: one page about a trained encoder, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from counterpoint.data.store import EpisodeStore
from counterpoint.errors import BadInputError
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store, open_held_out, spread
from counterpoint.evaluation.reward_eval import CURVES, Evaluation, Heatmap, evaluate_embedded, reward_curves
from counterpoint.evaluation.statistics import Estimate
from counterpoint.files import write_atomically
from counterpoint.provenance import provenance
from counterpoint.rewards.curves import MEANING, gains
from counterpoint.rewards.model import RewardModel, read_run_config
from counterpoint.rewards.page import Line, PlayerView, Point, jpeg, line_chart, make_player, padded, render, signed

Array = NDArray[np.float64]

FIRST = ("loss", "categorical_accuracy", "logits_pos", "logits_neg")
MOST_CHARTS, MOST_COLUMNS, MOST_NUMBERS = 6, 20, 6
TASKS, VIDEOS_A_TASK, ASPECT = 5, 6, 1.6


def _bar(estimate: Estimate, start: float = 0.0, end: float = 1.0, bad: float | None = None) -> dict[str, float | None]:
    """Return a number, its interval and a worthless encoder's number, in per cent of the scale."""

    def position(value: float) -> float:
        shown = value if np.isfinite(value) else estimate.value if np.isfinite(estimate.value) else start
        return float(np.clip(100 * (shown - start) / (end - start), 0, 100))

    ends = {"place": position(estimate.value), "low": position(estimate.low), "high": position(estimate.high)}
    return {**ends, "bad": None if bad is None else position(bad)}


def _heatmap_view(heatmap: Heatmap) -> dict[str, Any]:
    """Return DecisionNCE's Figure 6: blue above zero, orange below, full colour (`reach`) at the largest score.

    Of more than `MOST_COLUMNS` instructions, the first are shown.
    """
    names = heatmap.columns[:MOST_COLUMNS]
    shown = [
        (row, values[: len(names)]) for row, values in zip(heatmap.rows, heatmap.values, strict=True) if row in names
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
    numbers = len(names) <= MOST_NUMBERS
    columns = range(1, len(names) + 1)
    return {"title": heatmap.name, "names": names, "columns": columns, "rows": rows, "numbers": numbers, "reach": reach}


def _training_charts(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """Return one chart a metric from the lines of `metrics.jsonl`, training beside validation; the loss first."""
    names = {name for line in lines for name, value in line.items() if _is_result(name, value)}
    held_out = {name for line in lines if line["split"] == "val" for name in line}
    ordered = sorted(names, key=lambda name: (_rank(name), name not in held_out, name))
    return [(_words(name), _training_chart(name, lines)) for name in ordered[:MOST_CHARTS]]


def _trajectories(embedded: EmbeddedVideos) -> tuple[Markup, dict[str, str]]:
    """Return AcTOL's Figure 5, videos as lines in the plane of two principal directions, and each instruction's colour.

    PCA and not t-SNE: it is linear, has no seed, and cannot invent clusters or cut a path in two. Embeddings have unit
    length, as in the cosine. Both axes have one scale.
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
    """Return ranges with one scale for both axes, in a plot `ASPECT` times as wide as high."""
    left, right = padded(min(min(line.x) for line in lines), max(max(line.x) for line in lines))
    low, high = padded(min(min(line.y) for line in lines), max(max(line.y) for line in lines))
    width, height = right - left, high - low
    wider, higher = max(width, ASPECT * height), max(height, width / ASPECT)
    return (
        ((left + right - wider) / 2, (left + right + wider) / 2),
        ((low + high - higher) / 2, (low + high + higher) / 2),
    )


def _training_chart(name: str, lines: Sequence[Mapping[str, Any]]) -> Markup:
    plotted, ends = [], []
    for split, kind, label in (("train", "rest", "training"), ("val", "c0", "validation")):
        points = [(line["step"], line[name]) for line in lines if line["split"] == split and name in line]
        if points:
            steps, values = zip(*points, strict=True)
            plotted.append(Line(steps, values, kind, label))
            ends.append(Point(steps[-1], values[-1], kind))
    return line_chart(
        plotted, x_label="optimiser steps", y_label=_words(name), summary=f"{_words(name)} over training", points=ends
    ).html


def _is_result(name: str, value: object) -> bool:
    """Return whether a logged number is a result, unlike the step and the learning rate."""
    return name not in ("step", "lr") and isinstance(value, int | float) and not isinstance(value, bool)


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def _words(name: str) -> str:
    return name.replace("_", " ").replace("/", " ")


TEMPLATES = Path(__file__).parent / "templates"
PLAYERS, IMAGES, IMAGE_SIDE = 6, 48, 224
"""Videos on the page, images of each, and their longer side in pixels: about three megabytes."""


def write_report(
    run: Path,
    data: Path | None = None,
    *,
    split: str | None = None,
    seed: int = 0,
    max_videos: int = 200,
    max_frames: int = 128,
    device: str = "cpu",
) -> Path:
    """Evaluate a run's encoder on held-out episodes and write `RUN/report.html` and `RUN/report.json`.

    Args:
        run: The run's folder.
        data: Episodes to report on; by default the run's own data.
        split: Name of the split; by default `test`, or `val` where there is no `test`.
        seed: Random seed of segments, shuffles and resamples.
        max_videos: Greatest number of episodes; of more, a sample is taken.
        max_frames: Greatest number of embedded frames of an episode, evenly spread.
        device: The device that computes.

    Returns:
        The page.

    Raises:
        BadInputError: An unfinished run, one whose encoder has no language, or data that cannot be evaluated.
        MissingExtraError: The extra `report` is not installed.
    """
    config = read_run_config(run)
    rewards = RewardModel.from_pretrained(run, device=device)
    if rewards.form not in CURVES:
        way = "--goal IMAGE" if rewards.form == "goal" else "--instruction TEXT"
        found = f"an encoder for the reward {rewards.form!r}, whose frames and instructions share no space"
        hint = f"plot its rewards: counterpoint reward VIDEO {way} --model {run}"
        raise BadInputError(run, found, "one that compares frames with instructions", hint)
    held_out = open_held_out(config, run / "config.json", data, split, most=max_videos, seed=seed)
    embedded = embed_store(rewards.encoder, held_out.store, max_frames=max_frames)
    evaluation = evaluate_embedded(embedded, form=rewards.form, seed=seed)
    origin = provenance()
    about = {
        "run": run.resolve().name,
        "objective": _objective(config),
        "data": str(held_out.path),
        "split": held_out.split,
        "episodes_the_run_was_trained_on": held_out.seen,
        "episodes_left_out": held_out.left_out,
        "episodes_drawn_from": held_out.drawn_from,
        "max_frames": max_frames,
        "provenance": origin,
        "trained_with": config.get("provenance"),
    }
    result = json.dumps(about | {"evaluation": json.loads(evaluation.to_json())}, indent=2) + "\n"
    page = render(
        "report.html.j2",
        [TEMPLATES],
        report_style=Markup((TEMPLATES / "report.css").read_text()),
        about=about,
        evaluation=evaluation,
        width=embedded.text.shape[1],
        meaning=MEANING,
        players=_players(embedded, held_out.source, evaluation),
        heatmaps=[_heatmap_view(heatmap) for heatmap in evaluation.heatmaps],
        trajectories=_trajectories(embedded),
        training=_training_charts(_metrics(run / "metrics.jsonl")),
        bar=_bar,
        signed=signed,
        config=json.dumps(config, indent=2),
    )
    write_atomically(run / "report.json", result)
    write_atomically(run / "report.html", page)
    return run / "report.html"


def _objective(config: Mapping[str, Any]) -> str:
    section = config.get("objective", "unknown")
    return str(section.get("name", "unknown")) if isinstance(section, Mapping) else str(section)


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` without a last line that a kill left half-written."""
    if not path.is_file():
        return []
    found: list[dict[str, Any]] = []
    lines = path.read_text().splitlines()
    for number, text in enumerate(lines):
        try:
            line = json.loads(text)
            found.append({**line, "step": line["step"], "split": line["split"]})
        except (json.JSONDecodeError, KeyError, TypeError) as error:
            if number < len(lines) - 1:
                where, hint = f"{path}, line {number + 1}", "restore the file, or delete it for a report without curves"
                raise BadInputError(where, f"{text[:60]!r}", 'an object with "step" and "split"', hint) from error
    return found


def _players(embedded: EmbeddedVideos, source: EpisodeStore, evaluation: Evaluation) -> list[tuple[str, PlayerView]]:
    """Return the first video of each of the first instructions, on one range of values: (instruction, player)."""
    curves = [gains(curve, evaluation.form) for curve in reward_curves(embedded, evaluation.form)]
    first = {int(own): at for at, own in reversed(list(enumerate(embedded.own)))}
    chosen = [first[own] for own in sorted(first, key=lambda own: first[own])][:PLAYERS]
    shown = np.concatenate([curves[at].ravel() for at in chosen])
    y_range = padded(float(shown.min()), float(shown.max()))
    return [_player(embedded, source, evaluation, at, curves[at], y_range) for at in chosen]


def _player(
    embedded: EmbeddedVideos,
    source: EpisodeStore,
    evaluation: Evaluation,
    at: int,
    curve: Array,
    y_range: tuple[float, float],
) -> tuple[str, PlayerView]:
    own, steps = int(embedded.own[at]), embedded.steps[at]
    seconds = source.timestamps(at)[steps].tolist()
    others = sorted((i for i in range(len(curve)) if i != own), key=lambda i: curve[i, -1])
    strongest, rest = others[-1], others[:-1]
    grey = [Line(seconds, curve[i].tolist(), "rest") for i in rest]
    if grey:  # the middle line has the label
        middle = len(grey) // 2
        label = f"{len(grey)} other instruction{'s' if len(grey) > 1 else ''}"
        grey[middle] = Line(grey[middle].x, grey[middle].y, "rest", label)
    lines = [
        *grey,
        Line(seconds, curve[strongest].tolist(), "c1", embedded.instructions[strongest], live=True),
        Line(seconds, curve[own].tolist(), "c0", embedded.instructions[own], live=True),
    ]
    gained = evaluation.form == "potential"
    shown = spread(len(steps), IMAGES)
    frames = source.frames(at, steps[shown])
    view = make_player(
        lines,
        seconds,
        steps.tolist(),
        {int(p): jpeg(frame, side=IMAGE_SIDE, quality=70) for p, frame in zip(shown, frames, strict=True)},
        y_label="reward gained (change of the cosine)" if gained else "reward (cosine)",
        summary=f"Reward of a video of {embedded.instructions[own]!r} under all instructions",
        y_range=y_range,
    )
    return embedded.instructions[own], view
