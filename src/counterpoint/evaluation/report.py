"""`counterpoint report RUN`: one page about a trained encoder, and the same numbers as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from tyro.conf import Positional

from counterpoint.data.cache import prepared
from counterpoint.data.store import EpisodeStore, camera_names
from counterpoint.data.views import OneCameraStore, SubsetStore
from counterpoint.encoders.dual import DualEncoder
from counterpoint.encoders.features import features_of
from counterpoint.errors import require
from counterpoint.evaluation.embedded import EmbeddedVideos, embed_store, spread
from counterpoint.evaluation.reward_eval import CURVES, Evaluation, Heatmap, evaluate_embedded
from counterpoint.evaluation.scenes import scenes_of
from counterpoint.evaluation.statistics import Estimate
from counterpoint.files import read_object, write_atomically
from counterpoint.flags import Computes, File, Name
from counterpoint.formats import open_dataset, split_names
from counterpoint.formats.remote import absolute, url_of
from counterpoint.provenance import provenance
from counterpoint.rewards.curves import MEANING
from counterpoint.rewards.model import Embedder, RewardModel, gains, reads_state, states_of
from counterpoint.rewards.page import Line, Panel, jpeg, line_chart, make_player, padded, render, signed

TEMPLATES = Path(__file__).parent / "templates"
SPLITS = ("test", "val", "validation")
FIRST = ("loss", "categorical_accuracy", "logits_pos", "logits_neg")
MOST_CHARTS, MOST_COLUMNS = 6, 20
TASKS, VIDEOS_A_TASK, ASPECT = 5, 6, 1.6
PLAYERS, IMAGES, IMAGE_SIDE = 6, 48, 224
"""Videos on the page, images of each, and their longer side in pixels: about three megabytes."""


def write_report(
    run: Positional[Path],
    data: File = None,
    *,
    split: Name = None,
    seed: int = 0,
    max_videos: int = 200,
    max_frames: int = 128,
    device: Computes = "cpu",
) -> Path:
    """Write a run's report on held-out episodes: one page, RUN/report.html, and RUN/report.json, with intervals.

    Args:
        run: The run's folder.
        data: Episodes to report on; by default the run's own data.
        split: Split of the data; by default `test`, or `val` where there is no `test`.
        seed: Random seed of segments, shuffles and resamples.
        max_videos: Maximum number of episodes; larger sets are sampled at random.
        max_frames: Greatest number of embedded frames of an episode, evenly spread.
        device: The device that computes, such as cuda.

    Returns:
        The page.

    Raises:
        BadInputError: An unfinished run, one whose encoder has no language, or data that cannot be evaluated.
        MissingExtraError: The extra `report` is not installed.
    """
    config = read_config(run / "config.json")
    rewards = RewardModel.from_pretrained(run, device=device)
    found = f"an encoder for the reward {rewards.form!r}, whose frames and instructions share no space"
    way = "--goal IMAGE" if rewards.form == "goal" else "--instruction TEXT"
    hint = f"measure its rewards: counterpoint compare {run} --data DATA --out OUT"
    hint += f", or plot them: counterpoint reward VIDEO {way} --model {run}"
    require(rewards.form in CURVES, run, found, "one that compares frames with instructions", hint)
    options: Any = {"most": max_videos, "seed": seed, "encoder": rewards.encoder}
    store, source, episodes = open_held_out(config, run / "config.json", data, split, **options)
    texts = {info.instruction for info in store.episodes}
    require(len(texts) > 1, episodes["data"], f"one instruction, {min(texts)!r}", "two or more", hint)
    embedded = embed_store(rewards.encoder, store, cameras=store.cameras or None, max_frames=max_frames)
    scenes = scenes_of(rewards.encoder, config, embedded.instructions, seed, source)
    evaluation = evaluate_embedded(embedded, form=rewards.form, seed=seed, scenes=scenes)
    objective = config.get("objective", "unknown")
    about = {
        "run": run.resolve().name,
        "objective": objective.get("name", "unknown") if isinstance(objective, Mapping) else str(objective),
        **episodes,
        "max_frames": max_frames,
        "provenance": provenance(),
        "trained_with": config.get("provenance"),
    }
    verdict = evaluation.verdict(held_out=not about["episodes_the_run_was_trained_on"])
    result = (
        json.dumps({"verdict": verdict, **about} | {"evaluation": json.loads(evaluation.to_json())}, indent=2) + "\n"
    )
    page = render(
        "report.html.j2",
        [TEMPLATES],
        report_style=Markup((TEMPLATES / "report.css").read_text()),
        about=about,
        evaluation=evaluation,
        verdict=verdict,
        width=embedded.text.shape[1],
        meaning=MEANING,
        players=_players(embedded, source, evaluation),
        heatmaps=[shown(heatmap) for heatmap in evaluation.heatmaps],
        trajectories=_trajectories(embedded.side_by_side()),
        training=_training_charts(_metrics(run / "metrics.jsonl")),
        bar=_bar,
        signed=signed,
        config=json.dumps(config, indent=2),
    )
    write_atomically(run / "report.json", result)
    write_atomically(run / "report.html", page)
    return run / "report.html"


def read_config(path: Path) -> dict[str, Any]:
    """Return a run's configuration.

    Raises:
        BadInputError: No such file, or another than training writes.
    """
    require(path.is_file(), path, "no such file", "a run's folder", "give the folder that training wrote")
    return read_object(path, "a run's configuration", "restore the file")


def _metrics(path: Path) -> list[dict[str, Any]]:
    """Return the lines of `metrics.jsonl` without a last line that a kill left half-written."""
    texts = path.read_text().splitlines() if path.is_file() else []
    lines: list[dict[str, Any]] = []
    for number, text in enumerate(texts, start=1):
        try:
            line = json.loads(text)
            lines.append({**line, "step": line["step"], "split": line["split"]})
        except (json.JSONDecodeError, KeyError, TypeError):
            hint = "restore the file, or delete it for a report without curves"
            expected = 'an object with "step" and "split"'
            require(number == len(texts), f"{path}, line {number}", repr(text[:60]), expected, hint)
    return lines


def open_held_out(
    config: Mapping[str, Any],
    where: Path,
    data: Path | None,
    split: str | None,
    *,
    most: int,
    seed: int,
    encoder: Embedder | None = None,
) -> tuple[EpisodeStore, EpisodeStore, dict[str, Any]]:
    """Open the episodes to report on.

    Args:
        config: The run's configuration: `data.path`, `data.size`, `data.cameras`, `data.cache` and the numbers of the
            episodes that were held out.
        where: Its file, for errors.
        data: Another data set; the run's own by default.
        split: Name of the split; by default the episodes that training held out, else the first of `test`, `val` and
            `validation`, or all episodes of a data set without splits.
        most: Greatest number of episodes; of more, a sample is taken.
        seed: Random seed of that sample.
        encoder: With a frozen backbone it reads frames as recorded, or their features.

    Returns:
        Frames as the encoder was trained on them, the same episodes as recorded, and what the report says of them.

    Raises:
        BadInputError: A key or the data set is missing, or the data set has no such split.
    """
    found: Any = config.get("data")
    section = found if isinstance(found, Mapping) else {}
    good, hint = "path" in section and isinstance(section.get("size"), int), "give a run of this version"
    require(good, where, "no data.path or data.size", "the configuration that training writes", hint)
    source, about, (trained,) = open_unseen([config], Path(data or section["path"]), split, most=most, seed=seed)
    if reads_state(encoder):
        states_of(source, 0)  # refused before frames are decoded
    about |= {"episodes_the_run_was_trained_on": trained}
    names = section.get("cameras") or None
    cameras = camera_names(source.cameras if names == ["all"] else names, source.cameras)
    options: Any = {"root": section.get("cache")}
    if not (isinstance(encoder, DualEncoder) and encoder.config.freeze_image):
        as_trained = {"fit": section.get("fit", "square"), "decode": section.get("decode", "once")}
        store = prepared(source.whole, size=section["size"], cameras=cameras, **as_trained, **options)
        return SubsetStore(store, source.indices), source, about
    if len(cameras) > 1 or not _trains_on(config, Path(about["data"])):  # features of some frames are not worth a store
        return (OneCameraStore(source, cameras[0]) if len(cameras) == 1 else source), source, about
    one = source.whole if cameras == source.cameras[:1] else OneCameraStore(source.whole, cameras[0])
    return SubsetStore(features_of(encoder, one, **options), source.indices), source, about


def open_unseen(
    configs: Sequence[Mapping[str, Any]], path: Path, split: str | None, *, most: int, seed: int
) -> tuple[SubsetStore, dict[str, Any], list[bool]]:
    """Open, as recorded, the instructed episodes of a data set that runs did not train on.

    These are a split, or where the data have none the episodes that every run on these data held out, or all.

    Args:
        configs: The runs' configurations.
        path: The data set.
        split: Name of the split; by default the first of `test`, `val` and `validation`.
        most: Greatest number of episodes; of more, a sample is taken.
        seed: Random seed of that sample.

    Returns:
        The episodes, facts about them, and for each run whether it was trained on them.

    Raises:
        BadInputError: No such data set or split, or no episode that can be used.
    """
    require(url_of(path) or path.exists(), path, "no such data set", "the run's data", "say where it is: --data PATH")
    splits, own = split_names(path), [_trains_on(config, path) for config in configs]
    chosen = split or next((name for name in SPLITS if name in splits), None)
    mine = [config for config, same in zip(configs, own, strict=True) if same]
    held = None
    if chosen is None and mine and all("held_out" in config for config in mine):
        held = set.intersection(*(set(config["held_out"]) for config in mine))
        inside = mine[0]["data"].get("train_split")
        source = open_dataset(path, split=inside if inside in splits else None)
    else:
        hint = "name the split to report on: --split NAME (the training split flatters the encoder)"
        good = chosen is not None or not splits or not mine
        require(good, path, f"splits {list(splits)}", f"one of {list(SPLITS)}", hint)
        source = open_dataset(path, split=chosen)
    way = f"the split {chosen}" if chosen else "all episodes"
    if held is not None:
        numbers = ", ".join(map(str, sorted(held)))
        way = f"{len(held)} of {len(source.episodes)} episodes, left out of training by task: {numbers}"
        source = SubsetStore(source, sorted(held))
    infos = list(enumerate(source.episodes))
    good_ones = [at for at, info in infos if info.length > 1 and info.instruction.strip()]
    require(good_ones, path, "no episode with an instruction", "some", "report on instructed episodes")
    sample = np.random.default_rng(seed).choice(len(good_ones), min(most, len(good_ones)), replace=False)
    kept = [good_ones[at] for at in sorted(sample.tolist())]
    trained = [
        same and held is None and chosen in (None, config["data"].get("train_split", "train"))
        for config, same in zip(configs, own, strict=True)
    ]
    about = {
        "data": str(path),
        "split": chosen,
        "held_out": way,
        "episodes_left_out": len(infos) - len(good_ones),
        "episodes_drawn_from": len(good_ones),
    }
    return SubsetStore(source, kept), about, trained


def _trains_on(config: Mapping[str, Any], path: Path) -> bool:
    section = config.get("data")
    return isinstance(section, Mapping) and "path" in section and absolute(section["path"]) == absolute(path)


def _bar(estimate: Estimate, start: float = 0.0, end: float = 1.0, bad: float | None = None) -> dict[str, float | None]:
    """Return a number, its interval and a worthless encoder's number, in per cent of the scale."""

    def position(value: float) -> float:
        shown = value if np.isfinite(value) else estimate.value if np.isfinite(estimate.value) else start
        return float(np.clip(100 * (shown - start) / (end - start), 0, 100))

    ends = {"place": position(estimate.value), "low": position(estimate.low), "high": position(estimate.high)}
    return {**ends, "bad": None if bad is None else position(bad)}


def shown(heatmap: Heatmap) -> dict[str, Any]:
    """Return DecisionNCE's Figure 6 for the first `MOST_COLUMNS` instructions, and the largest score (`reach`)."""
    names = heatmap.columns[:MOST_COLUMNS]
    scores = zip(heatmap.rows, heatmap.values, strict=True)
    rows = [(names.index(row), values[: len(names)]) for row, values in scores if row in names]
    reach = max(abs(value) for _, values in rows for value in values) or 1.0
    return {"title": heatmap.name[:1].upper() + heatmap.name[1:], "names": names, "rows": rows, "reach": reach}


def _training_charts(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """Return one chart a metric from the lines of `metrics.jsonl`, training beside validation; the loss first."""
    numbers = {name for line in lines for name, value in line.items() if isinstance(value, int | float)}
    held_out = {name for line in lines if line["split"] == "val" for name in line}

    def rank(name: str) -> tuple[int, bool, str]:
        return FIRST.index(name) if name in FIRST else len(FIRST), name not in held_out, name

    charts = []
    for name in sorted(numbers - {"step", "lr"}, key=rank)[:MOST_CHARTS]:
        plotted, words = [], name.replace("_", " ").replace("/", " ")
        for split, kind, label in (("train", "rest", "training"), ("val", "c0", "validation")):
            points = [(line["step"], line[name]) for line in lines if line["split"] == split and name in line]
            if points:
                steps, values = zip(*points, strict=True)
                plotted.append(Line(steps, values, kind, label))
        summary = f"{words} over training"
        chart = line_chart(plotted, x_label="optimiser steps", y_label=words, summary=summary, dots=True)
        charts.append((words, chart.html))
    return charts


def _trajectories(embedded: EmbeddedVideos) -> tuple[Markup, dict[str, str]]:
    """Return AcTOL's Figure 5, videos as lines in the plane of two principal directions, and each instruction's colour.

    PCA and not t-SNE: it is linear, has no seed, and cannot invent clusters or cut a path in two. Embeddings have unit
    length, as in the cosine. Both axes have one scale, in a plot `ASPECT` times as wide as high.
    """
    units = [v / np.maximum(np.linalg.norm(v, axis=1, keepdims=True), 1e-12) for v in embedded.videos]
    cloud = np.concatenate(units)
    centre = cloud.mean(axis=0)
    _, widths, axes = np.linalg.svd(cloud - centre, full_matrices=False)
    plane, share = np.zeros((2, cloud.shape[1])), np.zeros(2)
    plane[: len(axes)] = axes[:2]
    share[: len(widths)] = widths[:2] ** 2 / max(float((widths**2).sum()), 1e-12)
    colours = {own: f"c{at}" for at, own in enumerate(list(dict.fromkeys(embedded.own.tolist()))[:TASKS])}
    lines = []
    for own, colour in colours.items():
        for number, at in enumerate(np.flatnonzero(embedded.own == own)[:VIDEOS_A_TASK]):
            x, y = (plane @ (units[at] - centre).T).tolist()
            lines.append(Line(x, y, colour, "" if number else embedded.instructions[own]))
    axes_values = ([line.x for line in lines], [line.y for line in lines])
    edges = [padded(min(map(min, values)), max(map(max, values))) for values in axes_values]
    span = max(edges[0][1] - edges[0][0], ASPECT * (edges[1][1] - edges[1][0]))
    x_range, y_range = (
        ((low + high - wide) / 2, (low + high + wide) / 2)
        for (low, high), wide in zip(edges, (span, span / ASPECT), strict=True)
    )
    chart = line_chart(
        lines,
        x_label=f"first principal direction ({share[0]:.0%} of the variance)",
        y_label=f"second principal direction ({share[1]:.0%} of the variance)",
        summary="Held-out videos as lines through the embedding space, coloured by instruction",
        x_range=x_range,
        y_range=y_range,
        dots=True,
    )
    return chart.html, {embedded.instructions[own]: colour for own, colour in colours.items()}


def _players(
    embedded: EmbeddedVideos, source: EpisodeStore, evaluation: Evaluation
) -> list[tuple[str, dict[str, Any]]]:
    """Return the first video of each of the first instructions, on one range of values: (instruction, player)."""
    chosen = [embedded.own.tolist().index(own) for own in dict.fromkeys(embedded.own.tolist())][:PLAYERS]
    curves = [gains(CURVES[evaluation.form](embedded.videos[at], embedded.text), evaluation.form) for at in chosen]
    y_range = padded(min(float(curve.min()) for curve in curves), max(float(curve.max()) for curve in curves))
    players = []
    for at, curve in zip(chosen, curves, strict=True):
        own, steps, shown = int(embedded.own[at]), embedded.steps[at], spread(len(embedded.steps[at]), IMAGES)
        seconds = source.timestamps(at)[steps].tolist()
        *rest, strongest = sorted((i for i in range(len(curve)) if i != own), key=lambda i: curve[i, -1])
        lines = [Line(seconds, curve[i].tolist(), "rest") for i in rest]
        if rest:  # the middle line has the label
            label = f"{len(rest)} other instruction{'s' if len(rest) > 1 else ''}"
            lines[len(rest) // 2] = replace(lines[len(rest) // 2], label=label)
        for i, kind in ((strongest, "c1"), (own, "c0")):
            lines.append(Line(seconds, curve[i].tolist(), kind, embedded.instructions[i], live=True))
        frames = zip(shown, source.frames(at, steps[shown]), strict=True)
        gained = evaluation.form == "potential"
        panel = Panel(
            lines,
            y_label="reward gained (change of the cosine)" if gained else "reward (cosine)",
            summary=f"Reward of a video of {embedded.instructions[own]!r} under all instructions",
            y_range=y_range,
        )
        images = {int(number): jpeg(frame, side=IMAGE_SIDE, quality=70) for number, frame in frames}
        view = make_player([panel], seconds, steps.tolist(), images)
        players.append((embedded.instructions[own], view))
    return players
