"""`counterpoint report RUN`: compare one reward with controls and measure its encoder, as a page and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from jaxtyping import Float
from markupsafe import Markup
from numpy.typing import NDArray
from tyro.conf import Positional, arg

from counterpoint.encoders.calibration import RewardForm
from counterpoint.encoders.card import write_results
from counterpoint.encoders.hub import is_foreign, saved_kind
from counterpoint.encoders.released import is_released
from counterpoint.errors import require, require_extras
from counterpoint.evaluation.agent_report import write_agent_report
from counterpoint.evaluation.bench import RANDOM, WRONG
from counterpoint.evaluation.compare import NEEDED, TEMPLATES, Compared, compare_command, compare_unseen, page_values
from counterpoint.evaluation.comparison import Row
from counterpoint.evaluation.definitions import METRICS, REWARD
from counterpoint.evaluation.embedded import CENTRED, RECORDED, SHUFFLED, EmbeddedVideos, measure_space, spread
from counterpoint.evaluation.held_out import read_config, read_metrics
from counterpoint.evaluation.statistics import Estimate
from counterpoint.evaluation.trajectories import (
    FLAT_VIDEOS_A_TASK,
    MOST_FRAMES,
    PERPLEXITY,
    TASKS,
    draw_flat,
    flatten,
    principal_plane,
    require_frames,
)
from counterpoint.files import write_atomically
from counterpoint.parameter_types import Computes, File, Name
from counterpoint.rewards.curves import MEANING, axis_label
from counterpoint.rewards.embedding import embed_text
from counterpoint.rewards.model import RewardModel
from counterpoint.rewards.page import Line, Panel, jpeg, line_chart, make_player, padded, render
from counterpoint.rewards.sources import Curves, EncoderReward, Frames
from counterpoint.workers import IN_PROCESS, Foreign

Array = NDArray[np.float64]

FIRST = ("loss", "categorical_accuracy", "logits_pos", "logits_neg")
MOST_CHARTS = 6
PLAYERS, IMAGES, IMAGE_SIDE = 6, 48, 224
"""Number of videos on the page, images per video, and longer side of an image in pixels; in all about three
megabytes."""
CARDS = (
    ("accuracy", RECORDED, "right instruction first, whole videos"),
    ("accuracy", RANDOM, "right instruction first, random segments"),
    ("voc", RECORDED, "reward against time, own instruction"),
    ("voc", WRONG, "reward against time, other instructions"),
    ("voc", "reversed", "reward against time, video reversed"),
    ("auroc", RECORDED, "success above the rest"),
)
"""Numbers for the top of the page, which shows the first four that are defined."""
READINGS: tuple[RewardForm, ...] = ("potential", "similarity", "transition")
"""Reward forms that any encoder of frames and instructions has. If a run was trained for one of these forms, the page
has a row for each form."""


class WatchedReward(EncoderReward):
    """A reward that keeps the curves and embeddings of its videos: [T, D], or [T, C, D] with several cameras."""

    def __init__(self, model: RewardModel, name: str) -> None:
        super().__init__(model, name)
        self.seen: list[Float[Array, "T *C D"]] = []
        self.curves: list[Curves] = []

    def watch(self, frames: Frames, shared: dict[Any, Any]) -> Curves:
        """Store the embedded video and its curves. Arguments and result are those of `EncoderReward.watch`."""
        self.seen.append(self.embedded(frames, shared))
        self.curves.append(super().watch(frames, shared))
        return self.curves[-1]


def write_report(
    run: Positional[Path],
    data: File = None,
    *,
    split: Name = None,
    seed: int = 0,
    max_videos: int = 200,
    max_frames: int = 128,
    embedding: bool = False,
    device: Computes = "cpu",
    foreign: Foreign = IN_PROCESS,
    out: File = None,
    dialect: Name = None,
    others: Annotated[tuple[Path, ...], arg(metavar="RUN...")] = (),
) -> Path:
    """Show what a run learned, as a page and as numbers: `RUN/report.html` and `RUN/report.json`.

    A reward is compared with controls on held-out episodes; for a model of others, or a released model, this comparison
    is the whole page, `OUT/compare.html`. The page of a goal-reaching agent shows the success of its
    last evaluation, its learning curves and, in a maze, a map of its value (also in `RUN/value.png`). The run's verdict
    is printed, and the main numbers are written into the model's card.

    Time on two cores: for a reward one pass over at most 200 videos, at 2,600 frames per second with the demo's encoder
    and 87 with EfficientNet-Lite0, and some seconds for intervals and the t-SNE; for an agent some seconds. Disk: about
    three megabytes for a reward, and some hundred kilobytes for an agent.

    Args:
        run: The run's folder; the name of a released model, such as liv; or a model of others: the folder of a LeRobot
            reward model, or module:function.
        data: Data set to report on; by default the run's data. Rewards only.
        split: Split of the data; by default `test`, or `val` if there is no `test`. Rewards only.
        seed: Random seed of segments, shuffles and resamples; for an agent, of the episode whose start and goal the map
            of its value has.
        max_videos: Maximum number of episodes; larger sets are sampled at random.
        max_frames: Maximum number of embedded frames of an episode, evenly spread.
        embedding: True to add a t-SNE of the frames' embeddings, as in AcTOL's Figure 5. Rewards only.
        device: The device that computes, such as cuda.
        foreign: How a model of others runs.
        out: The folder to write for a model of others or a released model.
        dialect: The dialect of HDF5 files, if the files do not identify it; by default as in training, for the run's
            own data. Rewards only.
        others: Runs of the same agent with other seeds, whose learning curves are drawn with this one's; agents only.

    Returns:
        The page.

    Raises:
        BadInputError: If the run is not finished, an argument does not apply to its kind, the data cannot be evaluated,
            or they have too few frames for the t-SNE. If one of `others` has another agent or environment.
        MissingExtraError: If the extra `report`, or an agent's simulator, is not installed.
    """
    require_extras(NEEDED)
    if is_foreign(str(run)) or is_released(run):
        complete = data is not None and out is not None and not (embedding or others)
        hint = "name both, and leave --embedding and --others out"
        require(complete, run, "a model that is no run", "--data DATA and --out OUT", hint)
        assert data is not None
        assert out is not None
        settings: dict[str, Any] = {"split": split, "seed": seed, "max_videos": max_videos, "max_frames": max_frames}
        settings |= {"device": device, "foreign": foreign, "dialect": dialect}
        return compare_command({str(run) if ":" in str(run) else run.name: [str(run)]}, data, out, **settings)
    require(out is None, "--out", str(out), "nothing: a run's report lies in its folder", "leave it out")
    config, kind = read_config(run / "config.json"), saved_kind(run)
    if kind == "agent":
        given = {"data": data, "split": split, "embedding": embedding, "dialect": dialect}
        unused = [f"--{name}" for name, value in given.items() if value]
        hint = f"leave {' and '.join(unused)} out"
        require(not unused, run, f"a model of kind {kind!r}", "a reward model", hint)
        return write_agent_report(run, others, seed=seed, device=device)
    require(not others, run, f"a model of kind {kind!r}", "an agent", "leave --others out")
    found: Any = config.get("data")
    section = found if isinstance(found, Mapping) else {}
    hint, lines = "give a run of this version", read_metrics(run / "metrics.jsonl")
    require("path" in section, run / "config.json", "no data.path", "the configuration that training writes", hint)
    reward = WatchedReward(RewardModel.from_pretrained(run, device=device), run.resolve().name)
    model, reward.run = reward.model, run
    forms = [form for form in READINGS if form != model.form] if model.form in READINGS else []
    compared = compare_unseen(
        {reward.name: [reward]},
        {reward.name: [config]},
        Path(data or section["path"]),
        split=split,
        seed=seed,
        max_videos=max_videos,
        dialect=dialect,
        max_frames=max_frames,
        check=(lambda store: require_frames(store, max_frames)) if embedding else None,
        segments=True,
        readings={f"read as {form}": [EncoderReward(RewardModel(model.encoder, form=form), form)] for form in forms},
    )
    comparison, embedded = compared.comparison, _embedded(reward, compared, max_frames)
    row, space = comparison.rows[0], measure_space(embedded, words=bool(forms), seed=seed)
    flat = flatten(embedded, seed=seed) if embedding else None
    objective = config.get("objective", "unknown")
    about = {
        "run": reward.name,
        "form": model.form,
        "objective": objective.get("name", "unknown") if isinstance(objective, Mapping) else str(objective),
        "trained_with": config.get("provenance"),
        **comparison.about,
        "episodes_the_run_was_trained_on": row.trained_on_these,
    }
    comparison = replace(comparison, about=about)
    page = render(
        "report.html.j2",
        [TEMPLATES],
        **page_values(comparison),
        row=row,
        known=model.calibration,
        judges=len(config.get("judged", ())) if reward.judges else 0,
        cards=[card for card in CARDS if card[0] in row.inputs.get(card[1], {})][:4],
        space=space,
        recorded_space=RECORDED,
        shuffled=SHUFFLED,
        centred=CENTRED,
        all=METRICS,
        width=embedded.text.shape[1],
        frames=sum(map(len, embedded.videos)),
        meaning=MEANING,
        players=_players(reward, compared, embedded),
        trajectories=principal_plane(embedded),
        flat=flat,
        flattened=None if flat is None else draw_flat(flat),
        flat_rule=(TASKS, FLAT_VIDEOS_A_TASK, MOST_FRAMES, PERPLEXITY),
        training=_training_charts(lines),
        bar=_bar,
        config=json.dumps(config, indent=2),
    )
    own = json.loads(comparison.to_json())
    numbers = {name: {key: one.as_json() for key, one in some.items()} for name, some in space.items()}
    result = {"verdict": row.verdict, "results": results(row), **own, "space": numbers}
    if flat is not None:
        result["embedding"] = flat.as_json()
    write_atomically(run / "report.json", json.dumps(result, indent=2) + "\n")
    write_atomically(run / "report.html", page)
    write_results(run)
    print(row.verdict)
    return run / "report.html"


def results(row: Row) -> dict[str, dict[str, Any]]:
    """Return the numbers for the model's card, each with its interval, keyed by title."""
    chosen = [(name, RECORDED) for name in REWARD] + [("accuracy", RANDOM), ("voc", WRONG), ("accuracy", "last frame")]
    return {
        REWARD[name].title + (f", {given}" if given != RECORDED else ""): row.inputs[given][name].as_json()
        for name, given in chosen
        if name in row.inputs.get(given, {})
    }


def _embedded(reward: WatchedReward, compared: Compared, max_frames: int) -> EmbeddedVideos:
    """Return the reward's embeddings of the compared videos, without the validation videos that follow them."""
    infos, texts = compared.store.episodes, compared.comparison.instructions
    return EmbeddedVideos(
        videos=tuple(reward.seen[: len(infos)]),
        steps=tuple(spread(info.length, max_frames) for info in infos),
        own=np.array([texts.index(info.instruction) for info in infos], np.int64),
        instructions=texts,
        text=embed_text(reward.model.encoder, texts),
        fingerprint=compared.store.fingerprint,
    )


def _bar(estimate: Estimate, start: float = 0.0, end: float = 1.0, bad: float | None = None) -> dict[str, float | None]:
    """Return positions of a number, its interval and its chance level, in per cent of the range `start` to `end`."""

    def position(value: float) -> float:
        shown = value if np.isfinite(value) else estimate.value if np.isfinite(estimate.value) else start
        return float(np.clip(100 * (shown - start) / (end - start), 0, 100))

    ends = {"place": position(estimate.value), "low": position(estimate.low), "high": position(estimate.high)}
    return {**ends, "bad": None if bad is None else position(bad)}


def _training_charts(lines: Sequence[Mapping[str, Any]]) -> list[tuple[str, Markup]]:
    """Return one chart per metric in `metrics.jsonl`, with the training and the validation curve; the loss is first."""
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


def _players(reward: WatchedReward, compared: Compared, embedded: EmbeddedVideos) -> list[tuple[str, dict[str, Any]]]:
    """Return (instruction, player) for the first video of each of up to `PLAYERS` instructions.

    All players have the same y range.
    """
    store, form = compared.store, reward.model.form
    chosen = [embedded.own.tolist().index(own) for own in dict.fromkeys(embedded.own.tolist())][:PLAYERS]
    curves = [reward.curves[at](np.arange(len(embedded.steps[at])), embedded.instructions) for at in chosen]
    y_range = padded(min(float(curve.min()) for curve in curves), max(float(curve.max()) for curve in curves))
    players = []
    for at, curve in zip(chosen, curves, strict=True):
        own, steps, shown = int(embedded.own[at]), embedded.steps[at], spread(len(embedded.steps[at]), IMAGES)
        seconds = store.timestamps(at)[steps].tolist()
        others = sorted((i for i in range(len(curve)) if i != own), key=lambda i: curve[i, -1])
        lines = [Line(seconds, curve[i].tolist(), "rest") for i in others[:-1]]
        if lines:  # the middle line gets the label
            label = f"{len(lines)} other instruction{'s' if len(lines) > 1 else ''}"
            lines[len(lines) // 2] = replace(lines[len(lines) // 2], label=label)
        for i, kind in [*((i, "c1") for i in others[-1:]), (own, "c0")]:
            lines.append(Line(seconds, curve[i].tolist(), kind, embedded.instructions[i], live=True))
        panel = Panel(
            lines,
            y_label=axis_label(form),
            summary=f"Reward of a video of {embedded.instructions[own]!r} under all instructions",
            y_range=y_range,
        )
        images = zip(shown, store.frames(at, steps[shown], compared.cameras[0]), strict=True)
        small = {int(number): jpeg(frame, side=IMAGE_SIDE, quality=70) for number, frame in images}
        players.append((embedded.instructions[own], make_player([panel], seconds, steps.tolist(), small)))
    return players
